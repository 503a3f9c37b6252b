"""`memory-token-limiter`: keeps recalled history inside a token budget, for good (R-WIRE-6, R-HIST-6, R-TOKLIM-10).

No model calls. What it removes stays removed in later turns: time and ids of the newest removed messages are stored as
the thread's boundary, and `message-history` reads no further back than that.
"""

from typing import Any, Literal

from pydantic import Field

from procession.args import InputArgs
from procession.processor import Hook
from procession.services import conversation_key
from procession.usage import scope_keys
from procession_schemas.memory import MEMORY_KEY
from procession_services.processors.token_limiter import TokenLimiter, TokenLimiterOptions

__all__ = ["MemoryTokenLimiter", "MemoryTokenLimiterOptions"]


class MemoryTokenLimiterOptions(TokenLimiterOptions):
    """Options of `memory-token-limiter`: `limit`, `atMaxRemoveTokens` and `encoding` as in `token-limiter`."""

    trim_mode: Literal["memory-only"] = Field(
        default="memory-only", description="Only recalled messages are removed."
    )


class MemoryTokenLimiter(TokenLimiter):
    """Removes the oldest recalled messages over the budget, and remembers how far it got."""

    id = "memory-token-limiter"
    name = "Memory token limiter"
    description = "Keeps recalled history inside a token budget."

    @classmethod
    def options_type(cls) -> type[MemoryTokenLimiterOptions]:
        """Always `memory-only`."""
        return MemoryTokenLimiterOptions

    @classmethod
    def hooks_for(cls, options: dict[str, Any]) -> frozenset[Hook]:  # noqa: ARG003 - the mode is fixed
        """The two hooks of the mode."""
        return frozenset({Hook.INPUT, Hook.INPUT_STEP})

    async def process_input(self, args: InputArgs) -> None:
        """Removes what is over the budget and stores the boundary; never in read-only memory."""
        messages = args.message_list
        before = messages.get.remembered.db()
        await super().process_input(args)
        left = {message["id"] for message in messages.get.remembered.db()}
        memory = args.request_context.get(MEMORY_KEY) or {}
        named = scope_keys(args.request_context, args.run_id)
        thread = named.get("thread")
        gone = [m for m in before if m["id"] not in left and m.get("threadId", thread) == thread]
        if not gone or not thread or (memory.get("memoryConfig") or {}).get("readOnly"):
            return
        key = f"{self.id}:boundary:{conversation_key(named.get('resource', thread), thread)}"
        known = await args.services.store.get(key)
        limits = {"maxTokens": self.options.limit, "atMaxRemoveTokens": self.options.removed_tokens}
        newest = max(message["createdAt"] for message in gone)
        ids = {message["id"] for message in gone if message["createdAt"] == newest}
        if isinstance(known, dict) and all(known.get(name) == value for name, value in limits.items()):
            before_that = str(known.get("createdAt", ""))
            if before_that > newest:
                return
            ids.update(known.get("messageIds") or () if before_that == newest else ())
        await args.services.store.put(key, {**limits, "createdAt": newest, "messageIds": sorted(ids)})
