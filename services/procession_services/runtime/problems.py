"""What is wrong with a configuration: where, what, and how to mend it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from procession_schemas.base import WireStruct
from procession_schemas.nearest import nearest

__all__ = ["ConfigurationError", "Problem", "suggested_field", "suggestion", "unreadable"]

_FEW: Final = 12


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        where: The file, with a line where it is known, or the setting.
        path: What in it, such as `agents.demo.inputProcessors.0.id`; may be empty.
        message: What is wrong and how to mend it.
        warning: Whether the system works all the same.
    """

    where: str
    path: str
    message: str
    warning: bool = False

    def __str__(self) -> str:
        mark = "warning: " if self.warning else ""
        return ": ".join(part for part in (self.where, self.path, f"{mark}{self.message}") if part)


class ConfigurationError(Exception):
    """A file of the configuration is wrong; `problems` lists everything, and so does the message."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Why a file that was named just before cannot be read."""
    why = error.strerror if isinstance(error, OSError) else None
    return f"cannot be read: {why or error}"


def suggestion(wrong: str, known: Iterable[str], prefix: str = "") -> str:
    """How to mend an unknown name: the nearest known one, or all when there are few; may be empty.

    The names' common prefix makes none of them nearer than another; one that is only the beginning of some means the
    shortest of them (`PROCESSION_NATS`).
    """
    names, own = sorted(name.removeprefix(prefix) for name in known), wrong.removeprefix(prefix)
    begun = [name for name in names if prefix and name.startswith(f"{own}_")]
    if near := min(begun, key=len, default=None) or nearest(own, names):
        return f"; did you mean {prefix + near!r}?"
    return f"; known: {', '.join(prefix + name for name in names)}" if 0 < len(names) <= _FEW else ""


def suggested_field(path: Sequence[str | int], model: type[BaseModel] | None) -> str:
    """How to mend an unknown field at that path of what `model` takes, as `suggestion`."""
    *place, wrong = path
    models = [model] if model else []
    for step in place:  # the number of an entry, or the key of a mapping, is no field
        fields = [field for each in models for field in _named(each, step)]
        models = [each for field in fields for each in _models_of(field.annotation)] if fields else models
    known = {field.alias or name for each in models for name, field in each.model_fields.items()}
    return suggestion(str(wrong), known)


def _named(model: type[BaseModel], step: str | int) -> list[FieldInfo]:
    return [field for name, field in model.model_fields.items() if step in (name, field.alias)]


def _models_of(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if isinstance(annotation, type) and issubclass(annotation, WireStruct):
        return [annotation.form()]
    return [each for argument in get_args(annotation) for each in _models_of(argument)]
