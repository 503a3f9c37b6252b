"""What does not fit a model, as whoever sent it is told."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final, Self

from pydantic import ValidationError
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from procession_schemas.model_settings import setting_of
from procession_schemas.run import Failure, RunRequest

_LOOKED_AT: Final = 200
"""Of what is wrong: a request may have a hundred thousand fields."""
_TOLD: Final = 20
_LONGEST: Final = 300
_HAVE_SETTINGS: Final = {"agent", "model"}
"""What in a request has `modelSettings` of its own, besides itself."""
_FIELDS: Final = [field.alias or name for name, field in RunRequest.model_fields.items()]
_OF_OTHERS: Final = {
    "messages": "it is `input` here",
    "prompt": "it is `input` here",
    "threadId": "this belongs in `memory`, as `thread`",
    "resourceId": "this belongs in `memory`, as `resource`",
}
"""What a request says elsewhere, or by another name, to other libraries."""
_LONGEST_NAME: Final = 40


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
    """What is wrong, by dotted path; that of the value as a whole is empty.

    With `body`, which is what was validated, paths are those that its author has written, and what fits no branch of a
    union is told once, where a branch came farthest.
    """
    told: dict[str, list[str]] = {}
    for each in error.errors():
        told.setdefault(".".join(_path(each, body)), []).append(_plain(each))
    return {
        path: " or ".join(dict.fromkeys(messages))
        for path, messages in told.items()
        if body is None or not any(other.startswith(f"{path}.") for other in told)
    }


def belongs(place: Iterable[str | int]) -> str:
    """Where an unknown field belongs that is a setting of the model call; empty for any other one."""
    *parents, name = place
    setting = setting_of(str(name))
    named = {step for step in parents if isinstance(step, str) and step.isidentifier()}
    if setting is None or not named <= _HAVE_SETTINGS:
        return ""
    return f"; this belongs in `modelSettings`, as `{setting}`"


def explained(error: ValidationError) -> ValidationError:
    """The same error in plainer words: with what is known of the remedy, and no addresses of pydantic's pages."""
    lines = [
        InitErrorDetails(
            type=PydanticCustomError(each["type"], _message(each, error.title if at < _TOLD else "")),
            loc=each["loc"],
            input=each["input"],
        )
        for at, each in enumerate(error.errors())
    ]
    return ValidationError.from_exception_data(error.title, lines)


def _message(problem: ErrorDetails, model: str) -> str:
    """What is told of it; of the fields of `model`, where that is a request's, the nearest is named."""
    place, hint = problem["loc"], ""
    if problem["type"] == "extra_forbidden":
        hint = belongs(place)
        if not hint and len(place) == 1 and model == RunRequest.__name__:
            hint = _of_a_request(str(place[0]))
    return _plain(problem) + hint


def _of_a_request(name: str) -> str:
    """What an unknown field of a request may have been meant for."""
    camel = to_camel(name[:_LONGEST_NAME])
    if camel in _OF_OTHERS:
        return f"; {_OF_OTHERS[camel]}"
    near = get_close_matches(camel, _FIELDS, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _plain(problem: ErrorDetails) -> str:
    return problem["msg"].removeprefix("Value error, ")


def in_words(problems: Iterable[tuple[str, str]], root: str) -> str:
    """What is wrong, paths and messages in one line, the first 20; `root` is the name of the value as a whole."""
    told = [f"{short(path) or root}: {short(what)}" for path, what in islice(problems, _TOLD + 1)]
    return "; ".join([*told[:_TOLD], "and more"] if len(told) > _TOLD else told)


def short(text: str) -> str:
    """A text of somebody else as a message may have it: with at most 300 characters."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def misfit(error: ValidationError, prefix: str = "", body: Any = None) -> Failure:
    """A request that is none: the first wrong field as the field, the first 20 of them in the message.

    `prefix` is where the value stood in the request. `body` is what was validated: with it, places are those that the
    sender has written, and what fits no branch of a union is told where a branch came farthest.
    """
    found = error.errors()[:_LOOKED_AT]
    if found[0]["type"] == "json_invalid":
        return Failure(code="INVALID_JSON", message=f"the request is not JSON: {found[0]['msg']}")
    problems = [
        (".".join([prefix, *_path(each, body)]).strip("."), _message(each, error.title if at < _TOLD else ""))
        for at, each in enumerate(found)
    ]
    inner = [each for each in problems if not any(path.startswith(f"{each[0]}.") for path, _ in problems)]
    problems = inner or problems
    return Failure(
        code="INVALID_REQUEST", message=in_words(problems, "request"), field=short(problems[0][0]) or None
    )


def _path(problem: ErrorDetails, body: Any) -> list[str]:
    """The place in the body; pydantic's also names the branches of unions, which no sender has written."""
    if body is None:
        return [str(step) for step in problem["loc"]]
    path: list[str] = []
    *_, last = problem["loc"] or (None,)
    for named in problem["loc"]:
        snake = to_snake(named) if isinstance(named, str) else named
        step = snake if isinstance(body, dict) and named not in body and snake in body else named
        here = step in body if isinstance(body, dict) else isinstance(body, list) and isinstance(step, int)
        if here:
            body = body[step]
        elif not (named is last and problem["type"] == "missing"):
            continue  # the branch of a union
        path.append(str(step))
    return path


__all__ = ["RefusedError", "belongs", "explained", "in_words", "misfit", "short", "wrong_fields"]
