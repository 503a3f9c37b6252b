"""The processOutputStream chain of a run: pure control flow, no bus (R-OS)."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import ref

from procession.args import OutputStreamArgs
from procession.calls import Calls, Clock, Link, abort, check_custom, failure, of_another, within
from procession.context import RunContext
from procession.errors import TripWire
from procession.processor import Hook
from procession.response import ResponseCollector
from procession.returns import invalid
from procession_schemas.chunks import HIDDEN_TYPES, Chunk

_UNDELIVERED = HIDDEN_TYPES | {"finish"}
_HOOK = Hook.OUTPUT_STREAM


class _StreamWriter:
    """The writer of one link: what it sends goes past the links behind it, then to the client (D-19, R-WR-7)."""

    def __init__(self, chain: "StreamChain", position: int) -> None:
        self._chain = ref(chain)
        self._position = position

    async def custom(self, chunk: Mapping[str, Any]) -> None:
        """Sends a `data-*` chunk before the chunk in hand; one for a stream that is over goes nowhere."""
        checked, chain = check_custom(chunk), self._chain()
        if chain is not None:
            await chain.send(checked, self._position + 1)  # type: ignore[arg-type]  # has a type


class StreamChain:
    """Runs chunks through processors, one after another, and hands on what comes out.

    `parts[k]` is what link k has received in this run; the caller keeps it between steps. `deliver` gets each chunk
    for the client.
    """

    def __init__(
        self,
        links: list[Link],
        ctx: RunContext,
        calls: Calls,
        deliver: Callable[[Chunk], None],
        *,
        parts: list[list[Chunk]] | None = None,
        collector: ResponseCollector | None = None,
    ) -> None:
        self.parts = parts if parts is not None else [[] for _ in links]
        self.links = links
        self._calls = calls
        self._deliver = deliver
        self._wake: dict[int, int] = {}
        self._collector = collector
        self._reports = [calls.report(link, _HOOK) for link in links]
        self._data = [link.processor.process_data_parts for link in links]
        self._args = [
            OutputStreamArgs(
                abort=abort,
                retry_count=ctx.retry_count,
                request_context=ctx.request_context,
                tracing_context=ctx.tracing_context,
                state=ctx.state(link.id),
                run_id=ctx.run_id,
                part={"type": ""},
                stream_parts=self.parts[k],
                message_list=ctx.messages,
                writer=_StreamWriter(self, k),
                services=calls.services(ctx, link, _HOOK),
                wake_after=partial(_wake_after, self._wake, calls.clock, k),
                place=k,
            )
            for k, link in enumerate(links)
        ]
        self._hooks = [link.processor.process_output_stream for link in links]
        self._holders = [k for k, link in enumerate(links) if link.processor.holds_back()]
        for link in links:
            link.processor.processor_index = link.index

    async def feed(self, chunk: Chunk) -> None:
        """Takes one chunk from the provider (or the runtime) through the chain.

        Raises:
            TripWire: A processor aborted; the chunk in hand is not delivered (R-OS-14).
            ProcessorError: A processor failed whose policy is `fail`.
        """
        if self._collector is not None:
            if self._collector.repeated(chunk):
                return
            self._collector.arrived(chunk)
            if chunk["type"] == "finish" and self._collector.finish_reason == "tool-calls":
                self._collector.passed(chunk)  # not offered: the run goes on after the tools (R-OS-8)
                return
        await self.send(chunk, 0)

    async def send(self, chunk: Chunk, start: int) -> None:
        """Takes a chunk through the links from `start` on and delivers what is left of it."""
        is_data = chunk["type"].startswith("data-")
        for k in range(start, len(self.links)):
            if is_data and not self._data[k]:
                continue
            self.parts[k].append(chunk)
            self._args[k].part = chunk
            out = await self._one(k, self._hooks[k], chunk)
            if out is None:
                return
            if isinstance(out, list):
                for each in out:
                    await self.send(each, k + 1)
                return
            chunk = out
            is_data = chunk["type"].startswith("data-")
        if self._collector is not None:
            self._collector.passed(chunk)
        if chunk["type"] not in _UNDELIVERED:
            self._deliver(chunk)

    @property
    def wakes_at(self) -> int | None:
        """When `wake` is due, on the clock of the calls; None while no processor waits."""
        return min(self._wake.values(), default=None)

    async def wake(self) -> None:
        """Flushes the processors whose time is up; raises as `feed` does."""
        now = self._calls.clock()
        for k in sorted(k for k, due in self._wake.items() if due <= now):
            await self._flush(k)

    async def end(self) -> None:
        """Flushes every processor that holds chunks back: the stream has ended; raises as `feed` does."""
        for k in self._holders:
            await self._flush(k)

    async def _flush(self, k: int) -> None:
        self._wake.pop(k, None)
        out = await self._one(k, self.links[k].processor.flush_stream, None)
        for each in out if isinstance(out, list) else [out] if out else []:
            await self.send(each, k + 1)

    async def _one(
        self, k: int, hook: Callable[[OutputStreamArgs], Any], chunk: Chunk | None
    ) -> Chunk | list[Chunk] | None:
        """Calls one link; a failure that its policy skips gives the chunk back."""
        report = self._reports[k]
        report.calls += 1
        clock = self._calls.clock
        started = clock()
        try:
            out: Any = hook(self._args[k])
            if inspect.isawaitable(out):
                out = await within(out, self.links[k].timeout)
        except TripWire as tripwire:
            await self._calls.violated(self.links[k], _HOOK, tripwire)
            raise
        except Exception as error:  # an author's code: skipped or reported with its place (D-2)
            if of_another(self.links[k], error):
                raise
            report.errors += 1
            if self.links[k].skips(_HOOK):
                return chunk
            raise failure(self.links[k], _HOOK, error) from error
        finally:
            report.micros += (clock() - started) / 1000
        if out is not chunk:
            self._check(k, out)
        return out or None

    def _check(self, k: int, out: Any) -> None:
        """Counts what a hook made of a chunk, and refuses what is no chunk."""
        if out is None or out == []:
            self._reports[k].dropped += 1
            return
        self._reports[k].changed += 1
        if not all(map(_is_chunk, out if isinstance(out, list) else (out,))):
            allowed = "allowed are a chunk (with `type`), a list of chunks, or nothing"
            raise invalid(self.links[k], _HOOK, out, allowed)


def _wake_after(wake: dict[int, int], clock: Clock, k: int, seconds: float | None) -> None:
    wake.pop(k, None)
    if seconds is not None:
        wake[k] = clock() + int(seconds * 1e9)


def _is_chunk(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)
