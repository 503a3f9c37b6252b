"""The little JavaScript that the scenarios are written in: patterns, replacements, text of values."""

import json
import re
from typing import Any, Final

__all__ = ["UNDEFINED", "json_text", "pattern", "replace_all", "same", "text", "without_undefined"]


class _Undefined:
    """JavaScript's value of what is not there; `clone`s of objects leave it out."""

    def __repr__(self) -> str:
        return "undefined"

    def __bool__(self) -> bool:
        return False


UNDEFINED: Final = _Undefined()

_GROUP: Final = re.compile(r"\(\?<(?![=!])")
_REPLACEMENT: Final = re.compile(r"\$(?:\$|&|`|'|<(?P<name>[^>]*)>|(?P<number>\d{1,2}))")


def without_undefined(value: Any) -> Any:
    """A deep copy in which undefined members are gone, as a JSON round trip leaves them."""
    if isinstance(value, dict):
        return {str(k): without_undefined(v) for k, v in value.items() if v is not UNDEFINED}
    if isinstance(value, list | tuple):
        return [None if v is UNDEFINED else without_undefined(v) for v in value]
    return value


def json_text(value: Any) -> str:
    """What `JSON.stringify` gives; an undefined value gives an empty text."""
    if value is UNDEFINED:
        return ""
    return json.dumps(_whole_numbers(without_undefined(value)), ensure_ascii=False, separators=(",", ":"))


def text(value: Any) -> str:
    """What `String` gives, where null and undefined count as empty."""
    if value is None or value is UNDEFINED:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list):
        return ",".join(text(each) for each in value)
    return "[object Object]" if isinstance(value, dict) else str(value)


def same(one: Any, other: Any) -> bool:
    """What `===` says of two plain values: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def pattern(source: str) -> re.Pattern[str]:
    """Compiles a regular expression that was written for JavaScript, without flags."""
    return re.compile(_dialect(source), re.ASCII)


def replace_all(find: str, replacement: str, subject: str) -> str:
    """What `subject.replace(new RegExp(find, "g"), replacement)` gives."""
    return pattern(find).sub(lambda match: _expand(replacement, match), subject)


def _dialect(source: str) -> str:
    """Rewrites what Python spells otherwise: named groups, `$`, `[^]`, `[]`."""
    source = _GROUP.sub("(?P<", source)
    out: list[str] = []
    in_class = False
    i = 0
    while i < len(source):
        character = source[i]
        if character == "\\" and i + 1 < len(source):
            if source.startswith("\\k<", i):
                name, _, _ = source[i + 3 :].partition(">")
                out.append(f"(?P={name})")
                i += 4 + len(name)
                continue
            out.append("/" if source[i + 1] == "/" else source[i : i + 2])
            i += 2
            continue
        if not in_class and source.startswith("[^]", i):
            out.append(r"[\s\S]")
            i += 3
            continue
        if not in_class and source.startswith("[]", i):
            out.append(r"(?!)")
            i += 2
            continue
        if character == "[":
            out.append(r"\[" if in_class else "[")
            in_class = True
        elif character == "]" and in_class:
            in_class = False
            out.append(character)
        elif character == "$" and not in_class:
            out.append(r"\Z")
        else:
            out.append(character)
        i += 1
    return "".join(out)


def _expand(replacement: str, match: re.Match[str]) -> str:
    def one(sign: re.Match[str]) -> str:
        whole = sign[0]
        if whole == "$$":
            return "$"
        if whole == "$&":
            return match[0]
        if whole == "$`":
            return match.string[: match.start()]
        if whole == "$'":
            return match.string[match.end() :]
        if sign["name"] is not None:
            return (match.groupdict().get(sign["name"]) or "") if match.re.groupindex else whole
        digits = sign["number"]
        groups = match.re.groups
        if 0 < int(digits) <= groups:
            return match[int(digits)] or ""
        if len(digits) == 2 and 0 < int(digits[0]) <= groups:
            return (match[int(digits[0])] or "") + digits[1]
        return whole

    return _REPLACEMENT.sub(one, replacement)


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {k: _whole_numbers(v) for k, v in value.items()}
    return [_whole_numbers(v) for v in value] if isinstance(value, list) else value
