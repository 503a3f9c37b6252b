"""When an action is done, and what its texts stand for."""

import copy
import re
from typing import Any, Final

from tests.conformance.javascript import UNDEFINED, json_text, pattern, same, text
from tests.conformance.record import text_of, visible

__all__ = ["substitute", "when"]

_STATE: Final = re.compile(r"\$state(?:\.(\w+))?", re.ASCII)
_PLACE: Final = re.compile(r"\$\{(\w+)\}", re.ASCII)


def substitute(value: Any, env: dict[str, Any]) -> Any:
    """Fills `${step}`, `${retryCount}`, `${n}`, state keys, and the whole texts `$state` and `$state.key`."""
    if isinstance(value, str):
        state = env.get("state") or {}
        if whole := _STATE.fullmatch(value):
            found = state.get(whole[1], UNDEFINED) if whole[1] else visible(state) or UNDEFINED
            return copy.deepcopy(found) if found is not UNDEFINED else UNDEFINED

        def fill(place: re.Match[str]) -> str:
            own = env.get(place[1])
            return text(state.get(place[1]) if own is None or own is UNDEFINED else own)

        return _PLACE.sub(fill, value)
    if isinstance(value, list):
        return [substitute(each, env) for each in value]
    if isinstance(value, dict):
        return {k: substitute(v, env) for k, v in value.items()}
    return value


def when(condition: dict[str, Any] | None, hook: str, args: Any, n: int) -> bool:
    """Whether an action's condition holds; without one it does."""
    if not condition:
        return True
    state = args.state or {}
    for name, wanted in condition.items():
        match name:
            case "retryCountBelow":
                held = (args.retry_count or 0) < wanted
            case "fromCache":
                held = getattr(args, "from_cache", UNDEFINED) is wanted
            case "match":
                held = pattern(wanted).search(text_of(hook, args)) is not None
            case "state":
                held = all(json_text(state.get(k, UNDEFINED)) == json_text(v) for k, v in wanted.items())
            case "stateAtLeast":
                held = all((state.get(k) or 0) >= v for k, v in wanted.items())
            case _:
                held = _among(wanted, _fact(name, args, n))
        if not held:
            return False
    return True


def _fact(name: str, args: Any, n: int) -> Any:
    match name:
        case "step":
            return getattr(args, "step_number", UNDEFINED)
        case "retryCount":
            return args.retry_count
        case "type":
            return (getattr(args, "part", None) or {}).get("type", UNDEFINED)
        case "toolName":
            return getattr(args, "tool_name", UNDEFINED)
        case "finishReason":
            own = getattr(args, "finish_reason", None)
            return (
                own if own is not None else getattr(getattr(args, "result", None), "finish_reason", UNDEFINED)
            )
        case "statusCode":
            return getattr(getattr(args, "error", None), "status_code", UNDEFINED)
        case "call":
            return n
        case _:
            raise ValueError(f"unknown condition {name}")


def _among(wanted: Any, fact: Any) -> bool:
    return any(same(each, fact) for each in (wanted if isinstance(wanted, list) else [wanted]))
