"""A plugin whose parts quote what they are given in all that they raise: what the services log must not have it."""

from typing import Any, ClassVar

from procession.processor import Hook, Options, Processor
from procession.registry import Registry
from procession.tools import tool

__all__ = ["register"]


class QuotingOptions(Options):
    hooks: frozenset[Hook]
    abort: bool = False
    retry: bool = False


class Quoting(Processor[QuotingOptions]):
    """Fails or aborts in the hooks that the options name."""

    id: ClassVar[str] = "quoting"

    @classmethod
    def hooks_for(cls, options: dict[str, Any]) -> frozenset[Hook]:
        return QuotingOptions.model_validate(options).hooks

    def _quote(self, args: Any) -> Any:
        chunk = getattr(args, "part", None)
        if chunk is not None and chunk["type"] != "text-delta":
            return chunk
        said = f"{chunk} {args.message_list.get.all.db() if hasattr(args, 'message_list') else ''} {args}"
        if self.options.abort:
            args.abort(said, retry=self.options.retry, metadata={"said": said})
        try:
            raise LookupError(said)
        except LookupError as error:
            raise RuntimeError(f"cannot do anything with {said}") from error

    process_input = process_input_step = process_llm_request = process_output_stream = _quote
    process_output_step = process_output_result = process_tool_result = process_api_error = _quote

    def on_violation(self, violation: Any) -> None:
        raise RuntimeError(f"cannot tell of {violation}")


class MemoryQuoting(Quoting):
    """The same, in the memory service."""

    id: ClassVar[str] = "memory-quoting"
    host: ClassVar[str | None] = "memory"


@tool
async def post(text: str) -> str:
    """Posts a text."""
    return f"posted {text}"


@tool
async def quote(text: str) -> str:
    """Fails."""
    raise RuntimeError(f"cannot post {text}")


def quoting_factory(context: Any, options: dict[str, Any]) -> list[Any]:
    """Fails."""
    raise LookupError(f"no processors for {context} and {options}")


def register(registry: Registry) -> None:
    for processor in (Quoting, MemoryQuoting):
        registry.add_processor(processor)
    for made in (post, quote):
        registry.add_tool(made)
    registry.factories["quoting-factory"] = quoting_factory
