"""Renders a run for a terminal: the chunks as they come, and a summary of what happened. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from procession_schemas.run import ModelReport, RunResult

__all__ = ["chunk_text", "error_text", "summary", "table"]

_SHOWN: Final = 160


def chunk_text(chunk: Mapping[str, Any]) -> str:
    """What a terminal shows of a chunk: text as it is, events as lines of their own; often nothing."""
    kind = chunk["type"]
    if kind == "text-delta":
        return str(chunk["payload"].get("text", ""))
    if kind.startswith("data-"):
        return f"\n[{kind} {_json(chunk.get('data'))}]\n"
    told = _EVENTS[kind](chunk.get("payload") or {}) if kind in _EVENTS else ""
    return f"\n[{told}]\n" if told else ""


def error_text(error: Any) -> str:
    """The message of an error as it travels in a chunk."""
    return str(error.get("message", error)) if isinstance(error, Mapping) else str(error)


def _raised(error: Any) -> str:
    """The same with the class of what a tool raised: of a KeyError the message alone says nothing."""
    text, name = error_text(error), error.get("name") if isinstance(error, Mapping) else None
    return text if name in (None, "Error", text) else f"{name}: {text}"


def summary(result: RunResult) -> str:
    """What the processors did, what the model cost, and how the run went; ends with a line break."""
    parts = []
    if result.processors:
        rows = [
            [
                report.processor,
                report.hook,
                str(report.calls),
                _duration(report.micros),
                *(str(n or "") for n in (report.changed, report.dropped, report.aborts, report.errors)),
            ]
            for report in result.processors
        ]
        head = ["processor", "hook", "calls", "time", "changed", "dropped", "aborted", "failed"]
        parts.append(table(head, rows))
    if result.models:
        rows = [
            [model.model, str(model.calls), *_tokens(model.usage), _cost(model)] for model in result.models
        ]
        parts.append(table(["model", "calls", "tokens in", "tokens out", "cost"], rows))
    outcome = f"{result.status} ({result.finish_reason})"
    if result.duration_ms is not None:
        outcome += f" in {result.duration_ms / 1000:.2f} s"
    counts = f"{len(result.steps)} {'step' if len(result.steps) == 1 else 'steps'}, retries: {result.retries}"
    parts.append(f"{outcome}; {counts}; run {result.run_id}\n")
    if result.error:
        field = f" [{result.error.field}]" if result.error.field else ""
        parts.append(f"{result.error.code}{field}: {result.error.told()}\n")
    if waiting := (result.suspend_payload or {}).get("calls"):
        parts.append("".join(f"{_answer_to(call, result.run_id)}\n" for call in waiting))
    if result.tripwire:
        parts.append(f"blocked by {result.tripwire.processor_id}: {result.tripwire.reason}\n")
    return "\n".join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in columns; a column whose cells are all empty is left out."""
    kept = [i for i in range(len(head)) if any(row[i] for row in rows)]
    grid = [[row[i] for i in kept] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in grid) for i in range(len(kept))]
    numeric = [all(_is_number(row[i]) for row in grid[1:] if row[i]) for i in range(len(kept))]
    lines = (
        "  ".join(c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric, strict=True))
        for row in grid
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _is_number(cell: str) -> bool:
    """Whether it is one, with a unit perhaps; a sentence may begin with one, too."""
    return cell[0] in "0123456789<$" and cell.count(" ") <= 1


def _answer_to(call: Mapping[str, Any], run: str) -> str:
    """The command that decides about a call."""
    here = f"{run} {call['toolCallId']}"
    if call["kind"] == "approval":
        return f"procession approve {here}, or decline"
    return f"procession resume {here} JSON"


def _tries_again(payload: Mapping[str, Any]) -> str:
    step = payload.get("stepResult") or {}
    reason = step.get("retryReason")
    return f"tries again{f': {reason}' if reason else ''}" if step.get("reason") == "retry" else ""


def _json(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _duration(micros: float) -> str:
    return f"{micros:.0f} µs" if micros < 1000 else f"{micros / 1000:.1f} ms"  # noqa: PLR2004 - unit


def _tokens(usage: Mapping[str, int | None]) -> list[str]:
    return [
        str(usage.get(key) if usage.get(key) is not None else "") for key in ("inputTokens", "outputTokens")
    ]


def _cost(model: ModelReport) -> str:
    return "unknown" if model.cost is None else f"${model.cost:.6f}"


_EVENTS: Final[dict[str, Callable[[Mapping[str, Any]], str]]] = {
    "tool-call": lambda p: f"calls {p.get('toolName')} {_json(p.get('args'))}",
    "tool-result": lambda p: f"{p.get('toolName')} returned {_json(p.get('result'))}",
    "tool-error": lambda p: f"{p.get('toolName')} failed: {_raised(p.get('error'))}",
    "tool-call-approval": lambda p: f"{p.get('toolName')} {_json(p.get('args'))} waits for approval",
    "tool-call-suspended": lambda p: f"{p.get('toolName')} waits: {_json(p.get('suspendPayload'))}",
    "tool-output-denied": lambda p: f"{p.get('toolName')} was declined",
    "step-finish": _tries_again,
    "reset": lambda _: "a service was lost; the answer begins again",
    "tripwire": lambda p: f"blocked by {p.get('processorId')}: {p.get('reason')}",
    "error": lambda p: f"error: {error_text(p.get('error'))}",
    "abort": lambda _: "cancelled",
}
"""What is said about a chunk that is not text, from its payload."""
