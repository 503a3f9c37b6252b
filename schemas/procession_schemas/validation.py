"""What does not fit a model, in words for the sender."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final, Self

from pydantic import ValidationError
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from procession_schemas.agent import Agent
from procession_schemas.memory import RequestMemory
from procession_schemas.model_settings import setting_of
from procession_schemas.nearest import nearest
from procession_schemas.run import Failure, RunRequest
from procession_schemas.subjects import TOKEN_PATTERN

_LOOKED_AT: Final = 200
"""Of what is wrong: a request may have a hundred thousand fields."""
_TOLD: Final = 20
_LONGEST: Final = 300
_HALF: Final = "hex escape"
"""What is in pydantic's words for an escape that is half of a character."""
_HAVE_SETTINGS: Final = {"agent", "model"}
"""What in a request has `modelSettings` of its own, besides itself."""
_FIELDS: Final = [field.alias or name for name, field in RunRequest.model_fields.items()]
_FIELDS_OF: Final = {
    part: [field.alias or name for name, field in model.model_fields.items()]
    for part, model in (("agent", Agent), ("memory", RequestMemory))
}
_OF_OTHERS: Final = {
    "messages": "it is `input` here",
    "prompt": "it is `input` here",
    "thread": "this belongs in `memory`",
    "resource": "this belongs in `memory`",
    "tenant": "it is a part of the subject, and of `Procession(url, tenant=...)`",
    "threadId": "this belongs in `memory`, as `thread`",
    "resourceId": "this belongs in `memory`, as `resource`",
}
"""What a request says elsewhere, or by another name, to other libraries."""
Place = tuple[str | int, ...]


class RefusedError(Exception):
    """A request that is not taken; `failure` is what its sender is told."""

    def __init__(self, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.failure = Failure(code=code, message=message, field=field)

    @classmethod
    def because(cls, error: ValidationError, prefix: str = "", body: Any = None) -> Self:
        """What `misfit` makes of the error, to raise."""
        failure = misfit(error, prefix, body)
        return cls(failure.code, failure.message, failure.field)


def wrong_fields(error: ValidationError, body: Any = None) -> dict[str, str]:
    """What is wrong, by dotted path, as `placed` tells it; that of the value as a whole is empty."""
    return _by_path((_dotted(place), plain(each)) for place, each in placed(error.errors(), body))


def _by_path(problems: Iterable[tuple[str, str]]) -> dict[str, str]:
    """One message a path: what the branches of a union say are alternatives."""
    told: dict[str, list[str]] = {}
    for path, message in problems:
        told.setdefault(path, []).append(message)
    return {path: " or ".join(dict.fromkeys(messages)) for path, messages in told.items()}


def placed(errors: Iterable[ErrorDetails], body: Any) -> list[tuple[Place, ErrorDetails]]:
    """What is wrong, each with its place in `body`, which is what was validated, as its author has written it.

    What fits no branch of a union is told where a branch came farthest. Places are pydantic's where `body` is None.
    """
    found = [(_place(each, body), each) for each in errors]
    passed = {place[:steps] for place, _ in found for steps in range(len(place))}
    return [(place, each) for place, each in found if place not in passed]


def _place(problem: ErrorDetails, body: Any) -> Place:
    """The place in the body; pydantic's also names the branches of unions, which nobody has written."""
    if body is None:
        return problem["loc"]
    place: list[str | int] = []
    for at, named in enumerate(problem["loc"], 1):
        step = next((spelt for spelt in spellings(named) if _has(body, spelt)), None)
        if step is not None:
            body = body[step]
            place.append(step)
        elif at == len(problem["loc"]) and problem["type"] == "missing":
            place.append(named)
    return tuple(place)


def spellings(step: str | int) -> tuple[str | int, ...]:
    """How an author may have written a step of a place."""
    return (step, to_snake(step)) if isinstance(step, str) else (step,)


def _has(body: Any, step: str | int) -> bool:
    if isinstance(body, Mapping):
        return step in body
    return isinstance(body, list) and isinstance(step, int) and step < len(body)


def _dotted(place: Place) -> str:
    return ".".join(map(str, place))


def belongs(place: Iterable[str | int]) -> str:
    """Where an unknown field belongs that is a setting of the model call; empty for any other one."""
    *parents, name = place
    setting = setting_of(str(name))
    named = {step for step in parents if isinstance(step, str) and step.isidentifier()}
    if setting is None or not named <= _HAVE_SETTINGS:
        return ""
    return f"; this belongs in `modelSettings`, as `{setting}`"


def explained(error: ValidationError, body: Any = None) -> ValidationError:
    """The same error in plainer words: with what is known of the remedy, and no addresses of pydantic's pages.

    What fits no branch of a union is told once, in its place in `body`, as `placed` does it.
    """
    alternatives: dict[Place, list[ErrorDetails]] = {}
    for place, each in placed(error.errors(), body):
        alternatives.setdefault(place, []).append(each)
    lines = []
    for at, (place, each_of) in enumerate(alternatives.items()):
        words = dict.fromkeys(_message(place, each, error.title if at < _TOLD else "") for each in each_of)
        first = each_of[0]
        kind = PydanticCustomError(first["type"], " or ".join(words))
        lines.append(InitErrorDetails(type=kind, loc=place, input=first["input"]))
    return ValidationError.from_exception_data(error.title, lines)


def _message(place: Place, problem: ErrorDetails, model: str) -> str:
    """What is told of it; of the fields of `model`, where that is a request's, the nearest is named."""
    hint = ""
    if problem["type"] == "extra_forbidden":
        hint = belongs(place)
        if not hint and model == RunRequest.__name__:
            hint = _of_a_request(place)
    return plain(problem) + hint


def _of_a_request(place: Place) -> str:
    """What an unknown field of a request, or of the agent or the memory in it, may have been meant for."""
    *parents, name = map(str, place)
    camel = to_camel(name)
    if parents:
        return _near(camel, _FIELDS_OF.get(".".join(parents), []))
    if camel in _OF_OTHERS:
        return f"; {_OF_OTHERS[camel]}"
    if camel in _FIELDS and name == to_snake(camel):  # alone it would have been taken
        return f"; `{camel}` is also given"
    return _near(camel, _FIELDS)


def _near(name: str, fields: list[str]) -> str:
    near = nearest(name, fields)
    return f"; did you mean {near!r}?" if near else ""


def plain(problem: ErrorDetails) -> str:
    """What pydantic says, or our own words if one of our checks found it."""
    if problem.get("ctx", {}).get("pattern") == TOKEN_PATTERN:
        return "should have only letters, digits, '_' and '-'"
    told = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "tuple_type":
        return told.replace("tuple", "list")  # nobody can write a tuple in YAML or JSON
    return told


def in_words(problems: Iterable[tuple[str, str]], root: str) -> str:
    """What is wrong, paths and messages in one line, the first 20; `root` is the name of the value as a whole."""
    told = [f"{short(path) or root}: {short(what)}" for path, what in islice(problems, _TOLD + 1)]
    return "; ".join([*told[:_TOLD], "and more"] if len(told) > _TOLD else told)


def short(text: str) -> str:
    """A text from outside, cut to at most 300 characters, for a message."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def misfit(error: ValidationError, prefix: str = "", body: Any = None) -> Failure:
    """A request that does not fit: the first wrong field as the field, the first 20 of them in the message.

    `prefix` is where the value stood in the request; see `placed` for `body`.
    """
    found = error.errors()[:_LOOKED_AT]
    if found[0]["type"] == "json_invalid":
        told = found[0]["msg"].removeprefix("Invalid JSON: ")
        half = "; a text was cut in the middle of a character (a lone surrogate)" if _HALF in told else ""
        return Failure(code="INVALID_JSON", message=f"the request is not JSON: {told}{half}")
    problems = _by_path(
        (f"{prefix}.{_dotted(place)}".strip("."), _message(place, each, error.title if at < _TOLD else ""))
        for at, (place, each) in enumerate(placed(found, body))
    )
    return Failure(
        code="INVALID_REQUEST",
        message=in_words(problems.items(), "request"),
        field=short(next(iter(problems))) or None,
    )


__all__ = [
    "Place", "RefusedError", "belongs", "explained", "in_words", "misfit", "placed", "plain", "short", "spellings",
    "wrong_fields",
]  # fmt: skip
