"""What clients, models and an author's code hand over, as it travels: JSON, and the texts of whatever is raised."""

from collections.abc import Iterable
from math import isfinite
from typing import Any, Final

import orjson
from pydantic_core import to_jsonable_python

from procession_schemas.base import from_json

_DEPTH: Final = 250
"""A little less than orjson takes."""
_GIVEN_DEPTH: Final = 100
_AROUND: Final = 200 - _GIVEN_DEPTH
"""pydantic reads 200 levels. So many are left for what is made of such a value: messages, results, commands, states."""
_TOO_DEEP: Final = "... contains itself, or is nested too deeply"
UNTOUCHED: Final = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
"""orjson's options for chunks: it refuses dates and dataclasses, of which it would make texts and objects."""
_LONGEST_ERROR: Final = 8192
"""Characters of an error's text: several messages of a run say it, some of them more than once."""


class NotJsonError(TypeError):
    """A value has no JSON form; the message says where it is, but does not quote it.

    Attributes:
        field: Where it is, such as `requestContext.a`; empty where it is all of the value, or nobody knows.
    """

    def __init__(self, told: str, field: str = "") -> None:
        super().__init__(told)
        self.field = field


def encoded(value: Any, where: str) -> bytes:
    """The JSON of a value that is nothing else: read again it is the same, but for lists in place of tuples.

    Args:
        value: Anything.
        where: The name of the value in the message.

    Raises:
        NotJsonError: It holds something that is not JSON, or that would come back as something else, such as a NaN.
    """
    body, why = b"", ""
    try:
        body = orjson.dumps(value)
        if orjson.loads(body) == value:
            return body
    except TypeError as error:
        why = f"{where}: {error}"
    told, field = _problem(value, where)
    if told or why:
        raise NotJsonError(told or why, field)
    return body


def given(value: Any, where: str) -> bytes:
    """`encoded` for a value that is put into others: it may not nest so deeply that these could not be read."""
    body = encoded(value, where)
    if len(body) > 2 * _GIVEN_DEPTH:
        try:
            from_json(b"[" * _AROUND + body + b"]" * _AROUND)
        except ValueError as error:
            raise NotJsonError(*_problem(value, where, _GIVEN_DEPTH)) from error
    return body


def plain(value: Any) -> Any:
    """The nearest JSON to a value: lists for sets, objects for models and dataclasses, texts for everything else."""
    try:
        found = _plain(to_jsonable_python(value, serialize_unknown=True, bytes_mode="base64"))
        given(found, "value")
    except Exception:  # noqa: BLE001 - an author's object may raise anything; its text has to do
        return text(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {text(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return text(value) if leaf_fault(value) else value


def text(value: Any) -> str:
    """The text of anything, without the half characters (lone surrogates) that no message holds."""
    try:
        return str(value).encode(errors="replace").decode()
    except BaseException:  # noqa: BLE001 - an author's `__str__` may raise anything, also `sys.exit`
        return ""


def is_true(value: object, *, unknown: bool) -> bool:
    """The truth of anything; `unknown` where it does not tell, as an array does not."""
    try:
        return bool(value)
    except Exception:  # noqa: BLE001 - an author's `__bool__` may raise anything
        return unknown


def error_text(error: BaseException) -> str:
    """The beginning of what an error says, its class where it says nothing; that of a group tells its first one."""
    if isinstance(error, BaseExceptionGroup):
        return f"{text(error)}: {error_text(error.exceptions[0])}"[:_LONGEST_ERROR]
    return text(error)[:_LONGEST_ERROR] or type(error).__name__


def _problem(value: Any, where: str, depth: int = _DEPTH) -> tuple[str, str]:
    """What is not JSON first, with its place, and the field that it is; empty where all is."""
    path: list[str | int] = []
    if not (told := _fault(value, depth, path)):
        return "", ""
    path.reverse()
    place = "".join([where, *(f"[{step!r}]" for step in path)])
    told = f"{place:.80}{told}: {depth} levels at most" if told is _TOO_DEEP else f"{place}{told}"
    return told, ".".join(map(str, path))


def _fault(value: Any, depth: int, path: list[str | int]) -> str:
    """What is wrong first; the path gets where, its end first: to name the places of all that is right takes long."""
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, list) or type(value) is tuple:
        items = enumerate(value)
    elif isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or leaf_fault(key):
                return f" has the key {text(repr(key)):.80}; keys must be strings"
        items = value.items()
    else:
        return leaf_fault(value)
    if depth == 0:
        return _TOO_DEEP
    for key, item in items:
        if told := _fault(item, depth - 1, path):
            path.append(key)
            return told
    for key in value if isinstance(value, dict) else ():
        if type(key) is not str:
            return (
                f" has the key {text(repr(key)):.80} of type {type(key).__name__}; keys must be plain strings"
            )
    return ""


def leaf_fault(value: Any) -> str:
    """What keeps a value that holds no others from being JSON; empty where nothing does."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, str):
        return " contains half a character (a lone surrogate)" if text(value) != value else ""
    if isinstance(value, int):
        return "" if -(2**63) <= value < 2**64 else " is an integer of more than 64 bits"
    if type(value) is float:
        return "" if isfinite(value) else f" is {value}, which is not valid JSON"
    return f" is of type {type(value).__name__}; only JSON values are allowed"
