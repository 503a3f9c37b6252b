"""What is wrong with a configuration: where, what, and how to mend it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from procession_schemas.nearest import nearest

__all__ = ["ConfigurationError", "Problem", "suggestion"]

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


def suggestion(wrong: str, known: Iterable[str], prefix: str = "") -> str:
    """How to mend an unknown name: the nearest known one, or all when there are few; may be empty.

    The names' common prefix makes none of them nearer than another.
    """
    names = sorted(name.removeprefix(prefix) for name in known)
    if near := nearest(wrong.removeprefix(prefix), names):
        return f"; did you mean {prefix + near!r}?"
    return f"; known: {', '.join(prefix + name for name in names)}" if 0 < len(names) <= _FEW else ""
