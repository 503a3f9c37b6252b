"""Compares what a vector expects with what was observed: structure exactly, prose by the facts in it."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

PROSE = frozenset({"reason", "message", "throws", "error", "logs"})
"""Keys whose text is for people (R-GEN-5): it must be there, and name the same facts."""

_NOTHING = (None, "<undefined>")
_PLACEHOLDER = re.compile(r"<hash(\d+)>")
_WORD = re.compile(r"[\w@.+-]*\w")
_STRUCTURAL = frozenset(
    {"type", "role", "hook", "id", "strategy", "level", "call", "phase", "mode", "state", "writer", "runId", "name",
     "format", "kind", "regex", "flags", "text", "content", "errorStrategy", "scope", "countMode", "trimMode"}
)  # fmt: skip


def differences(vector: dict[str, Any], observed: Any, prose: Iterable[str] = ()) -> list[str]:
    """Each difference as `path: what`; none where the observation is what the vector expects."""
    return list(_Comparison(vector, PROSE | set(prose)).compare(vector.get("expected"), observed, "", ""))


class _Comparison:
    def __init__(self, vector: dict[str, Any], prose: frozenset[str] | set[str]) -> None:
        self._prose = prose
        told = {key: value for key, value in vector.items() if key != "name"}
        self._facts = {str(fact).lower() for fact in _facts(told, "", prose)}
        self._options = {str(fact).lower() for fact in _facts(vector.get("options"), "", prose)}

    def compare(self, expected: Any, observed: Any, path: str, key: str) -> Iterator[str]:
        """The differences of two values that stand at a path, under a key."""
        if key == "logs":
            yield from self._logs(expected, observed, path)
        elif key in self._prose and not path.endswith("stepResult.reason"):
            yield from self._told(expected, observed, path)
        elif isinstance(expected, dict) and isinstance(observed, dict):
            yield from self._objects(expected, observed, path, key)
        elif isinstance(expected, list) and isinstance(observed, list):
            if len(expected) != len(observed):
                yield f"{path}: {len(observed)} entries, expected {len(expected)}"
            for at, (one, other) in enumerate(zip(expected, observed, strict=False)):
                yield from self.compare(one, other, f"{path}[{at}]", "")
        elif not _same(expected, observed) and not (_absent(expected) and _absent(observed)):
            yield f"{path or 'result'}: is {_short(observed)}, expected {_short(expected)}"

    def _objects(
        self, expected: dict[str, Any], observed: dict[str, Any], path: str, key: str
    ) -> Iterator[str]:
        if key in ("tripwire", "blocked"):
            expected, observed = _tripwires(expected, observed)
        for name in [*expected, *(name for name in observed if name not in expected)]:
            below = f"{path}.{name}" if path else str(name)
            yield from self.compare(expected.get(name), observed.get(name), below, str(name))

    def _told(self, expected: Any, observed: Any, path: str) -> Iterator[str]:
        """Compares prose: both or none, and the facts."""
        if _absent(expected) != _absent(observed):
            yield f"{path}: is {_short(observed)}, expected {_short(expected)}"
        elif (
            isinstance(expected, list | dict)
            and isinstance(observed, type(expected))
            and not _error(expected)
        ):
            keys = enumerate(expected) if isinstance(expected, list) else expected.items()
            if isinstance(expected, list) and len(expected) != len(observed):
                yield f"{path}: {len(observed)} entries, expected {len(expected)}"
            for name, value in keys:
                other = (
                    observed.get(name)
                    if isinstance(observed, dict)
                    else (observed[name : name + 1] or [None])[0]
                )
                yield from self.compare(value, other, f"{path}.{name}", str(name))
        elif isinstance(expected, bool | int | float) and not _same(expected, observed):
            yield f"{path}: is {_short(observed)}, expected {_short(expected)}"
        elif missing := self._unnamed(_words(expected), _words(observed)):
            yield f"{path}: does not name {', '.join(sorted(missing))}: {_short(observed)}"

    def _logs(self, expected: Any, observed: Any, path: str) -> Iterator[str]:
        """Compares what was logged: warnings must be there and name what the options name; other lines are free."""
        warned = [
            line for line in expected or () if not isinstance(line, dict) or line.get("level") != "info"
        ]
        if warned and not observed:
            yield f"{path}: nothing was logged, expected {_short(warned)}"
        elif missing := (_words(warned) & self._options) - _words(observed):
            yield f"{path}: does not name {', '.join(sorted(missing))}: {_short(observed)}"

    def _unnamed(self, expected: set[str], observed: set[str]) -> set[str]:
        return (expected & self._facts) - observed


def _facts(value: Any, key: str, prose: Iterable[str]) -> Iterator[Any]:
    """Names and numbers that stand in the structured part of a vector."""
    if key in prose or key in _STRUCTURAL:
        if key == "name" and isinstance(value, str):
            yield value
        return
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _facts(below, name, prose)
    elif isinstance(value, list):
        for below in value:
            yield from _facts(below, key, prose)
    elif (isinstance(value, str) and _WORD.fullmatch(value) and not value[0].isupper()) or (
        isinstance(value, int | float) and not isinstance(value, bool)
    ):
        yield value


def _words(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*(_words(below) for name, below in value.items() if name not in ("level", "name")))
    if isinstance(value, list):
        return set().union(*map(_words, value))
    return {word.lower() for word in _WORD.findall(str(value))} if value is not None else set()


def _error(value: Any) -> bool:
    return isinstance(value, dict) and set(value) <= {"name", "message"}


def _tripwires(expected: dict[str, Any], observed: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Without what is the same as nothing: no retry, and an id that only one side tells (R-COM-6)."""
    sides = [{k: v for k, v in side.items() if not (k == "retry" and not v)} for side in (expected, observed)]
    if len({"processorId" in side for side in sides}) > 1:
        for side in sides:
            side.pop("processorId", None)
    return sides[0], sides[1]


def _absent(value: Any) -> bool:
    return value in _NOTHING if isinstance(value, str | None) else False


def _same(expected: Any, observed: Any) -> bool:
    if isinstance(expected, bool) or isinstance(observed, bool):
        return expected is observed
    if expected == observed:
        return True
    if isinstance(expected, int | float) and isinstance(observed, int | float):
        return math.isclose(expected, observed, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(expected, str) and isinstance(observed, str) and "<hash" in expected:
        pieces = _PLACEHOLDER.split(expected)
        pattern = "".join(f"[0-9a-f]{{{p}}}" if at % 2 else re.escape(p) for at, p in enumerate(pieces))
        return re.fullmatch(pattern, observed) is not None
    return isinstance(expected, str) and expected.startswith("<function") and observed is not None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
