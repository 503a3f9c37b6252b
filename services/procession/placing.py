"""Where a processor must not stand as it is configured: told by `procession check`, refused when a run is planned."""

from typing import Any

from procession.processor import Hook, Processor, Traits
from procession_schemas.agent import ProcessorRef
from procession_schemas.catalog import WORKERS

INPUT_SERVICE = "input_processors"
_OUTPUT_SERVICE = "output_processors"
_STREAM_HOOKS = frozenset({Hook.OUTPUT_STREAM, Hook.TOOL_RESULT})


def runs_beside(kind: str, traits: Traits) -> bool:
    """Whether its `processInput` runs beside the model call, in the array of that kind (`input`, `output`, `error`)."""
    return kind == "input" and traits.parallel


def misplaced(
    kind: str, cls: type[Processor[Any]], ref: ProcessorRef, traits: Traits
) -> tuple[str, str] | None:
    """The field of the reference that does not fit and what is wrong with it; None when all is well."""
    skips = (ref.on_error or cls.on_error) == "skip"
    if kind == "output" and skips and cls.holds_back() and Hook.OUTPUT_STREAM in traits.hooks:
        text = (
            f"{ref.id} holds back parts of a stream (it has flush_stream): skipping its failures could lose or "
            "reorder what it holds; use onError: fail"
        )
        return "onError", text
    if runs_beside(kind, traits) and (cls.host or INPUT_SERVICE) != INPUT_SERVICE:
        return (
            "options",
            f"{ref.id} runs in {cls.host}; only processors of {INPUT_SERVICE} can run in parallel with the model",
        )
    return None


def unhosted(kind: str, cls: type[Processor[Any]], ref: ProcessorRef, traits: Traits) -> str | None:
    """Why the service that `host` names cannot run it in the array of that kind; None when all is well."""
    if cls.host is None:
        return None
    if cls.host not in WORKERS:
        return f"{ref.id}: `host` of its class is {cls.host!r}, which is not a service; use one of {', '.join(WORKERS)}"
    if kind == "output" and cls.host != _OUTPUT_SERVICE and traits.hooks & _STREAM_HOOKS:
        return f"processor {ref.id} runs in {cls.host}; stream and tool-result hooks can only run in {_OUTPUT_SERVICE}"
    return None
