"""`mastra/response-cache`: answers a request that was asked before with the answer of then (R-RC, R-CA).

No model, no cost; a hit saves a call. Request and response hooks. The answers are kept in Redis, each tenant's apart.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from procession.args import LLMRequestArgs, LLMRequestResult, LLMResponseArgs
from procession.errors import TripWire
from procession.processor import Options, Processor
from procession.usage import scope_keys
from procession_services.processors.core.own_state import own_by_options
from procession_services.processors.core.response_key import CacheInputs, call_facts, response_key

__all__ = ["CONTEXT_KEY", "DEFAULT_TTL", "CacheInputs", "ResponseCache", "ResponseCacheOptions"]

CONTEXT_KEY: Final = "mastra__response_cache_context"
"""Entry of the request context: `{"key"?, "scope"?, "bust"?}` for one request (R-RC-1)."""
DEFAULT_TTL: Final = 300
"""Seconds."""
_GOOD_ENDS: Final = frozenset({"stop", "length", "tool-calls"})
_FAILURES: Final = frozenset({"error", "tripwire"})


class ResponseCacheOptions(Options):
    """Options of `mastra/response-cache`."""

    key: str | None = Field(
        default=None, min_length=1, description="One key for all requests; default: made from each request."
    )
    ttl: float = Field(default=DEFAULT_TTL, gt=0, description="Seconds that an answer is kept.")
    scope: str | None = Field(
        default=None,
        description="Who shares answers; left out: the request's resource; null: everybody.",
    )
    bust: bool = Field(default=False, description="Always ask the model, and keep its answer.")
    agent_id: str = Field(
        default="mastra-response-cache",
        min_length=1,
        description="Keeps the answers of several caches apart.",
    )


class ResponseCache(Processor[ResponseCacheOptions]):
    """Replays answers; override `key_for` for keys of your own."""

    id = "mastra/response-cache"
    name = "@mastra/response-cache"
    description = "Answers a repeated request without a model call."

    def key_for(self, inputs: CacheInputs) -> str | None:  # noqa: ARG002 - for overriding
        """The key of a request; None, or raising, means the digest of everything that decides the answer."""
        return self.options.key

    async def process_llm_request(self, args: LLMRequestArgs) -> LLMRequestResult | None:
        """Returns the kept answer, or notes under which key the coming one is to be kept (R-RC-3)."""
        asked = _Asked(self.options, args.request_context)
        key = self._key(asked, args)
        own_by_options(args.state, "asked", self.options)["key"] = key
        if asked.bust:
            return None
        try:
            kept = await args.services.store.get(self._stored(key))
        except Exception:  # noqa: BLE001 - whatever ails the store, the model can still be asked (D-23)
            args.services.warn("an answer could not be read from the cache")
            return None
        if not isinstance(kept, dict) or not kept.get("chunks"):
            return None
        return {"response": kept}

    async def process_llm_response(self, args: LLMResponseArgs) -> None:
        """Keeps a good answer that is not a replayed one (R-RC-4)."""
        key = own_by_options(args.state, "asked", self.options).pop("key", None)
        if key is None or args.from_cache or not _is_good(args.chunks):
            return
        answer = {
            "chunks": args.chunks,
            "warnings": args.warnings,
            "request": args.request,
            "rawResponse": args.raw_response,
        }
        try:
            await args.services.store.put(self._stored(key), answer, ttl=self.options.ttl)
        except Exception:  # noqa: BLE001 - the answer is there; only the next request pays
            args.services.warn("an answer could not be written to the cache")

    def _stored(self, key: str) -> str:
        return f"{ResponseCache.id}:{key}"

    def _key(self, asked: "_Asked", args: LLMRequestArgs) -> str:
        inputs = CacheInputs(
            agent_id=self.options.agent_id,
            step_number=args.step_number,
            scope=asked.scope,
            model=args.model,
            prompt=args.prompt,
            call=call_facts(
                agent=args.services.agent,
                tools=args.tools,
                tool_choice=args.tool_choice,
                active_tools=args.active_tools,
                model_settings=args.model_settings,
                provider_options=args.provider_options,
                structured_output=args.structured_output,
            ),
        )
        if asked.key:
            return _of_step(asked.key, args.step_number)
        try:
            own = self.key_for(inputs)
        except TripWire:
            raise
        except Exception:  # noqa: BLE001 - an author's function; the made key is always right (R-RC-2)
            args.services.warn("key_for failed; the generated key is used")
            own = None
        if own and own == self.options.key:
            return _of_step(own, args.step_number)
        return own or response_key(inputs)


class _Asked:
    """What holds for one request: the options, and over them what the request context says (R-RC-1)."""

    def __init__(self, options: ResponseCacheOptions, context: Mapping[str, Any]) -> None:
        given = context.get(CONTEXT_KEY)
        told: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        key, bust = told.get("key"), told.get("bust")
        self.key = key if isinstance(key, str) and key else None
        self.bust = bust if isinstance(bust, bool) else options.bust
        if "scope" in told:
            scope = told["scope"]
        elif "scope" in options.model_fields_set:
            scope = options.scope
        else:
            scope = scope_keys(context, "").get("resource")
        self.scope = scope if isinstance(scope, str) and scope else None


def _of_step(key: str, step: int) -> str:
    """A given key, for one step: a later step is another request, or it would get the first one's answer (D-77)."""
    return key if step == 0 else f"{key}:{step}"


def _is_good(chunks: list[dict[str, Any]]) -> bool:
    """Whether an answer came to a good end, and all of it is here.

    A tool call whose id an earlier step of the run has used is not among the chunks, so a replay would lose it.
    """
    called = any(chunk.get("type") == "tool-call" for chunk in chunks)
    for chunk in chunks:
        if chunk.get("type") in _FAILURES:
            return False
        if chunk.get("type") == "finish":
            payload = chunk.get("payload") or {}
            ours = (payload.get("stepResult") or {}).get("reason")
            reason = ours or payload.get("finishReason")
            if (reason and reason not in _GOOD_ENDS) or (ours == "tool-calls" and not called):
                return False
    return True
