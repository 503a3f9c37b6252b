"""Small repairs of what providers send: JSON that ends too early, text that is not Unicode, lists that are none."""

import json
import re
from collections.abc import Callable
from typing import Any, Final

from procession.json_values import plain

_CLOSERS: Final = {"{": "}", "[": "]"}
_SURROGATE: Final = re.compile(r"\\u[dD]|[\ud800-\udfff]")


class InvalidJsonError(ValueError):
    """The text is not JSON, or none that can travel on."""


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; nothing of what is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def sendable(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields of a provider's own as they can travel on; what nests too deep, or is no JSON, as its text."""
    return {name: plain(value) for name, value in fields.items()}


def valid_value(value: Any) -> Any:
    """Return a JSON value with lone surrogates replaced, and halves of a pair that stand together joined."""
    return json.loads(valid_unicode(json.dumps(value, ensure_ascii=False)))


def parse_json(text: str, *, nan: bool = False, valid: Callable[[Any], Any] = valid_value) -> Any:
    """Return the value of a JSON text; control characters inside strings are forgiven.

    With `nan`, so are NaN and Infinity: they count as null. `valid` makes Unicode of a value with surrogates.

    Raises:
        InvalidJsonError: when it is not JSON, or holds NaN or Infinity.
    """
    try:
        value = json.loads(text, strict=False, parse_constant=_nothing if nan else _refuse)
        if _SURROGATE.search(text):
            value = valid(value)
    except (ValueError, RecursionError) as error:
        raise InvalidJsonError(str(error)) from error
    return value


def close_json(text: str) -> str:
    """Return the text with the string, arrays and objects closed that were still open at its end."""
    closers: list[str] = []
    in_string = escaped = False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in _CLOSERS:
            closers.append(_CLOSERS[character])
        elif closers and character == closers[-1]:
            closers.pop()
    if in_string:
        text = text.removesuffix("\\") if escaped else text
        return text + '"' + "".join(reversed(closers))
    return text.rstrip().removesuffix(",") + "".join(reversed(closers))


def valid_unicode(text: str) -> str:
    """Return the text with lone surrogates replaced, so that it can be encoded."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _nothing(_constant: str) -> None:
    return None


def _refuse(constant: str) -> Any:
    raise InvalidJsonError(f"{constant} is not JSON")
