"""Models of every provider that LiteLLM knows, read as streams.

LiteLLM's configuration classes build the request, and our own client sends it (`direct`). For providers that lack
them LiteLLM opens the stream, and the events are read below its stream wrapper: that wrapper invents usage and a
finish reason where the provider gave none, gives up on repeated text, and costs more than all the rest of a run. What
its per-provider iterators yield is OpenAI-shaped already.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, Final

from procession_schemas.admin import ModelUse
from procession_schemas.chunks import Chunk
from procession_services.llm_gateway.core.adapter import REASONS, ChunkAdapter
from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.core.request import (
    Timeouts,
    UnsendableSettingError,
    litellm_kwargs,
    service_tier,
    timeouts,
)
from procession_services.llm_gateway.providers.direct import (
    Connections,
    build_request,
    direct_events,
    limit_fetching,
    mend_parser,
    with_media,
)
from procession_services.llm_gateway.providers.direct.lower import UNKNOWN_REASON
from procession_services.llm_gateway.providers.event_errors import UNEXPECTED, unreadable
from procession_services.llm_gateway.providers.litellm_errors import provider_error
from procession_services.llm_gateway.providers.litellm_lines import LineSplitter
from procession_services.llm_gateway.providers.litellm_readers import mend_readers
from procession_services.llm_gateway.providers.openai_events import END, openai_events
from procession_services.runtime import garbage
from procession_services.runtime.secrets import DEMO_KEY

log = logging.getLogger(__name__)
_KEPT_SECONDS: Final = "4"
"""How long an idle connection is kept: many servers close theirs after five, and what is asked then would be lost."""
_SILENCE_SECONDS: Final = 30.0
"""How long an answer may be silent behind its reason: some proxies send no end, and keep the connection open."""
_END: Final = object()
_FOR_EVER: Final = nullcontext()
_DONE: Final = {
    "text": "",
    "is_finished": True,
    "finish_reason": "stop",
    "usage": None,
    "index": 0,
    "tool_use": None,
}
"""What some iterators make of the end of the stream; it says nothing about why the model stopped."""

_TELLING: Final = ("text", "tool_use", "finish_reason", "usage")
"""What a chunk of LiteLLM's says something by; it makes an empty one of every line that is no data."""

_LITELLM_REASONS: Final = {
    "tool-calls": "tool_calls",
    "content-filter": "content_filter",
    "error": "malformed_function_call",
}
"""The contract's reasons as LiteLLM's types allow them, where it has another word."""


class _Reasons(dict[str, str]):
    """LiteLLM's table of why models stop, which takes nothing for "stop" that it does not know."""

    def get(self, word: str, default: Any = UNKNOWN_REASON) -> Any:
        """Return the reason."""
        return super().get(word, default)


class LiteLLMProvider:
    """The `Provider` that asks through LiteLLM.

    LiteLLM is imported when it is first needed (it takes seconds; `prepare` does it ahead) and kept quiet: no
    telemetry, no logging, no retries, no network at import, no `.env` file.
    """

    def __init__(self, *, direct: bool = True) -> None:
        """Makes a provider; `direct=False` has LiteLLM carry every request itself."""
        self._direct = direct
        self._connections = Connections()

    async def prepare(self) -> None:
        """Load LiteLLM without holding up the event loop; a service does it before it takes work."""
        if not _warmed_up.cache_info().currsize:
            with garbage.loading():
                await asyncio.to_thread(_warmed_up)

    async def stream(self, call: ModelCall) -> AsyncGenerator[list[Chunk], None]:
        """Stream one answer; see `Provider.stream`.

        Raises:
            ProviderError: when the call cannot be made, is refused, or breaks off.
        """
        adapter = ChunkAdapter(call.provider, include_raw=call.include_raw_chunks)
        begun = False
        try:
            async with aclosing(await self._events(call)) as events:
                while True:
                    batch = await (_rest(events) if adapter.reasons == 1 else anext(events, None))
                    if batch is None:
                        break
                    begun = True
                    over = batch[-1] is END
                    if over:
                        batch.pop()
                    chunks, strange = _fed(adapter, batch)
                    if over and not strange:  # the end goes with them: nobody has to read on to learn of it
                        yield chunks + _finish(adapter, call, over=True)
                        return
                    if chunks:
                        yield chunks
                    if strange:
                        raise strange  # noqa: TRY301 - behind the chunks that came before it
        except ProviderError:
            raise
        except Exception as error:  # LiteLLM and the libraries below it raise whatever they like
            raise provider_error(error, call, begun=begun) from error
        yield _finish(adapter, call, over=False)

    def knows(self, model: str) -> bool:
        """Whether the model is written `provider/name`, with a provider that LiteLLM has.

        Some providers of LiteLLM take an address for a name, and would send the operator's key there: that is none.
        """
        return "://" not in model and _known(model)

    def missing_keys(self, use: ModelUse) -> list[str]:
        """The variables of the environment that a model needs and that are not set, or only as in the example."""
        told = _litellm().validate_environment(model=use.model)
        if not told["keys_in_environment"]:
            return [str(name) for name in told["missing_keys"]]
        provider = use.model.partition("/")[0]
        name = f"{provider.upper()}_API_KEY"
        return [name] if use.api_base is None and os.environ.get(name) == DEMO_KEY else []

    def cost(self, call: ModelCall, usage: Mapping[str, int | None]) -> float | None:
        """Return US dollars by LiteLLM's bundled prices; None when model or tokens are not known (D-24)."""
        prompt, completion = usage.get("inputTokens"), usage.get("outputTokens")
        if (prompt is None and completion is None) or not _priced(call.model):
            return None
        try:
            costs = _litellm().cost_per_token(
                model=call.model,
                prompt_tokens=prompt or 0,
                completion_tokens=completion or 0,
                cache_read_input_tokens=usage.get("cachedInputTokens") or 0,
                cache_creation_input_tokens=usage.get("cacheCreationInputTokens") or 0,
                service_tier=service_tier(call),
            )
        except Exception:  # noqa: BLE001 - LiteLLM says "no price" in several ways
            return None
        return float(sum(costs))

    async def aclose(self) -> None:
        """Close the connections, also those that LiteLLM keeps; what is needed again will be made anew."""
        await self._connections.aclose()
        if not _litellm.cache_info().currsize:
            return
        litellm = _litellm()
        await litellm.close_litellm_async_clients()
        litellm.in_memory_llm_clients_cache.flush_cache()
        if shared := vars(litellm).pop("module_level_aclient", None):
            await shared.close()

    async def _events(self, call: ModelCall) -> AsyncGenerator[list[dict[str, Any]], None]:
        """The events of the answer; nothing has been sent yet, and the connection is closed when they are."""
        await self.prepare()
        try:
            kwargs = litellm_kwargs(call)
        except ValueError as error:
            setting = error.setting if isinstance(error, UnsendableSettingError) else ""
            raise ProviderError(
                str(error), provider=call.provider, model=call.model, setting=setting
            ) from error
        deadlines = _Deadlines(timeouts(call.model_settings))
        request = None
        async with deadlines.next():
            kwargs = await with_media(_litellm(), call, kwargs)
            if self._direct:
                request = await build_request(_litellm(), call, kwargs)
        if request is None:
            return _litellm_events(kwargs, deadlines)
        batches = direct_events(request, self._connections)
        return _within(deadlines, batches) if deadlines.limited else batches


async def _rest(events: AsyncGenerator[list[dict[str, Any]], None]) -> list[dict[str, Any]] | None:
    """The next events of an answer whose reason is known; where nothing comes any more, that was all."""
    silence = asyncio.timeout(_SILENCE_SECONDS)
    try:
        async with silence:
            return await anext(events, None)
    except TimeoutError:
        if silence.expired():
            return [END]
        raise


def _fed(adapter: ChunkAdapter, batch: list[dict[str, Any]]) -> tuple[list[Chunk], Exception | None]:
    """The chunks of the events before the first one that cannot be read, and what is wrong with that; else of all."""
    chunks: list[Chunk] = []
    for event in batch:
        try:
            chunks += adapter.feed(event)
        except UNEXPECTED as error:
            strange = unreadable(event)
            strange.__cause__ = error
            return chunks, strange
    return chunks, None


def _finish(adapter: ChunkAdapter, call: ModelCall, *, over: bool) -> list[Chunk]:
    if adapter.usage.is_doubtful:
        log.warning("%s reported impossible numbers of tokens, which are ignored", call.model)
    return adapter.finish(over=over)


async def _litellm_events(
    kwargs: dict[str, Any], deadlines: "_Deadlines"
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Has LiteLLM open the stream, and reads it."""
    async with deadlines.next():
        answer = await _litellm().acompletion(**kwargs, _skip_mcp_handler=True)
    try:
        async with deadlines.next():
            if getattr(answer, "completion_stream", answer) is None:
                await answer.fetch_stream()
        # Of models that complete texts it is a generator.
        source = getattr(answer, "completion_stream", answer)
        if isinstance(source, _openai_stream()):
            items = openai_events(source)
        else:
            items = aiter(source if hasattr(source, "__aiter__") else answer)
        while True:
            async with deadlines.next():
                item = await anext(items, _END)
            if item is _END:
                return
            deadlines.begun = True
            if isinstance(item, list):
                yield item
            elif (event := _event(item, answer)) is not None:
                yield [event]
    finally:
        stream = _held(answer)
        await answer.aclose()
        if stream is not None:
            await stream.close()


def _held(answer: Any) -> Any:
    """The provider's stream behind a generator of LiteLLM, which does not close it; None where there is no such."""
    frame = getattr(answer, "ag_frame", None)
    return None if frame is None else frame.f_locals.get("response")


class _Deadlines:
    """The moments until which the next event may take."""

    def __init__(self, limits: Timeouts) -> None:
        self.limited = limits != Timeouts()
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self.begun = False

    def next(self) -> AbstractAsyncContextManager[object]:
        """Return the limit of one wait; without a limit it waits for ever."""
        if not self.limited:
            return _FOR_EVER
        limits = self._limits
        moments = []
        if limits.whole is not None:
            moments.append(self._start + limits.whole)
        if not self.begun and limits.first is not None:
            moments.append(self._start + limits.first)
        if self.begun and limits.between is not None:
            moments.append(self._loop.time() + limits.between)
        return asyncio.timeout_at(min(moments, default=None))


async def _within(
    deadlines: _Deadlines, batches: AsyncGenerator[list[dict[str, Any]], None]
) -> AsyncGenerator[list[dict[str, Any]], None]:
    async with aclosing(batches):
        while True:
            async with deadlines.next():
                batch = await anext(batches, None)
            if batch is None:
                return
            deadlines.begun = True
            yield batch


def _event(item: Any, answer: Any) -> dict[str, Any] | None:
    """Return what a provider's iterator yielded as a `chat.completion.chunk`."""
    if isinstance(item, dict) and "is_finished" in item:
        return None if item == _DONE or not any(map(item.get, _TELLING)) else _generic_event(item)
    known = item if hasattr(item, "model_dump") else _unwrapped(item, answer)
    return known and dict(known.model_dump(exclude_none=True, warnings=False))


def _unwrapped(item: Any, answer: Any) -> Any:
    """Let LiteLLM's wrapper read an item of an old iterator, which nobody else understands."""
    try:
        return answer.chunk_creator(chunk=item)
    except StopIteration:
        return None


def _generic_event(item: Mapping[str, Any]) -> dict[str, Any]:
    """Convert LiteLLM's own generic chunk, which some of its iterators still yield."""
    delta: dict[str, Any] = {"content": item.get("text") or ""}
    if item.get("tool_use"):
        delta["tool_calls"] = [item["tool_use"]]
    usage: Any = item.get("usage")
    return {
        "choices": [{"delta": delta, "finish_reason": item.get("finish_reason") or None}],
        "usage": usage.model_dump(exclude_none=True) if hasattr(usage, "model_dump") else usage,
    }


@cache
def _litellm() -> Any:
    """Import LiteLLM and silence it.

    Raises:
        ModuleNotFoundError: when it is not installed; says how to install it.
    """
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["LITELLM_MODE"] = "PRODUCTION"
    os.environ.setdefault("AIOHTTP_KEEPALIVE_TIMEOUT", _KEPT_SECONDS)
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).disabled = True
    for name in ("httpx", "openai"):  # they report every request, and its body when debugging
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        import litellm  # noqa: PLC0415 - takes seconds
        from litellm.litellm_core_utils import core_helpers  # noqa: PLC0415
        from litellm.llms.custom_httpx import sse_lines  # noqa: PLC0415
        from litellm.responses import main as responses  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "litellm":
            raise
        raise ModuleNotFoundError("LiteLLM is missing: pip install 'procession[llm-gateway]'") from error
    # Imports mcp, and with it 24 MB, to find out that no tool is one of LiteLLM's MCP gateway.
    vars(responses)["_responses_try_dispatch_mcp_gateway"] = lambda **_: None
    limit_fetching()
    mend_parser()
    mend_readers()
    vars(sse_lines)["_SSELineSplitter"] = LineSplitter
    ours = {word: _LITELLM_REASONS.get(reason, reason) for word, reason in REASONS.items()}
    vars(core_helpers)["_FINISH_REASON_MAP"] = _Reasons(ours)
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.disable_hf_tokenizer_download = True
    litellm.disable_stop_sequence_limit = True  # it drops those after the fourth, whoever is asked
    return litellm


@lru_cache(maxsize=1024)
def _known(model: str) -> bool:
    litellm = _litellm()
    provider, slash, name = model.partition("/")
    try:
        litellm.get_llm_provider(model=model)
    except litellm.BadRequestError:
        return False
    return bool(provider and slash and name)


@lru_cache(maxsize=1024)
def _priced(model: str) -> bool:
    """Whether LiteLLM has a price for the model; looking for one in vain is what costs most."""
    try:
        _litellm().cost_per_token(model=model, prompt_tokens=1, completion_tokens=1)
    except Exception:  # noqa: BLE001 - LiteLLM says "no price" in several ways
        return False
    return True


@cache
def _warmed_up() -> None:
    """Load what LiteLLM and the OpenAI client would load in the event loop during the first call."""
    litellm = _litellm()
    import_module("openai.resources")

    async def pretend() -> None:
        messages = [{"role": "user", "content": ""}]
        answer = await litellm.acompletion("openai/none", messages, stream=True, mock_response="-")
        await answer.aclose()

    asyncio.run(pretend())


@cache
def _openai_stream() -> type:
    """The class of a stream that the OpenAI SDK reads: its bytes are read here at a fraction of the cost."""
    from openai import AsyncStream  # noqa: PLC0415 - loaded with LiteLLM

    return AsyncStream
