"""The processOutputStream chain of a run: pure control flow, no bus (R-OS)."""

import inspect
from collections.abc import Awaitable, Callable
from copy import copy
from functools import partial
from types import CoroutineType, TracebackType
from typing import Any, NamedTuple, Self
from weakref import ref

import orjson

from procession.args import OutputStreamArgs
from procession.authors import is_ours
from procession.awaiting import awaited
from procession.calls import Calls, Clock, Link, abort, failure, of_another, within
from procession.context import RunContext
from procession.errors import ProcessorError, TripWire
from procession.json_values import UNTOUCHED, NotJsonError, given
from procession.processor import Hook
from procession.response import ResponseCollector
from procession.returns import INVALID_RETURN, chunk_fault, is_chunk, wrong
from procession.writers import TurnWriter
from procession_schemas.chunks import CORE_TYPES, HIDDEN_TYPES, RUNTIME_TYPES, Chunk
from procession_schemas.run import HookReport

UNDELIVERED = HIDDEN_TYPES | {"finish"}
"""Chunks of an answer that are not the client's."""
_FREQUENT = CORE_TYPES - {"tool-call", "tool-result"}
"""Chunks in which a NaN becomes null, and an enum its value: to look for one in each delta takes long."""
_HOOK = Hook.OUTPUT_STREAM


class _Place(NamedTuple):
    """A link of a chain, with what a chunk meets there; `received` is what it has got in this run."""

    k: int
    link: Link
    hook: Callable[[OutputStreamArgs], Any]
    args: OutputStreamArgs
    received: list[Chunk]
    report: HookReport


class StreamChain:
    """Runs chunks through processors, one after another, and hands on what comes out; as a context, until that ends.

    `parts[k]` is what link k has received in this run; the caller keeps it between steps. `deliver` gets each chunk
    for the client. Behind the end of the context nothing comes out any more, until it is begun `again`: what is written
    then is refused.
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
        self.links = links
        self.on_chance: Callable[[], Awaitable[None]] | None = None
        """Called before something is on its way `by_chance`."""
        self._calls = calls
        self._deliver = deliver
        self._wake: dict[int, int] = {}
        self._collector = collector
        this = ref(self)
        beside = partial(_written_beside, this)
        self._writers = [TurnWriter(partial(_send_past, this, k), beside=beside) for k in range(len(links))]
        lists = parts if parts is not None else [[] for _ in links]
        pairs = zip(links, lists, strict=True)
        self._places = [self._place(k, link, ctx, received) for k, (link, received) in enumerate(pairs)]
        self._waiting = [False] * len(links)
        self._holders = [k for k, link in enumerate(links) if link.processor.holds_back()]
        for link in links:
            link.processor.processor_index = link.index

    def _place(self, k: int, link: Link, ctx: RunContext, received: list[Chunk]) -> _Place:
        calls = self._calls
        args = OutputStreamArgs(
            abort=abort,
            retry_count=ctx.retry_count,
            request_context=ctx.request_context,
            tracing_context=ctx.tracing_context,
            state=ctx.state(link.id),
            run_id=ctx.run_id,
            part={"type": ""},
            stream_parts=received,
            message_list=ctx.messages,
            writer=self._writers[k],
            services=calls.services(ctx, link, _HOOK),
            wake_after=partial(_wake_after, self._wake, calls.clock, k),
            place=k,
            json_text=ctx.config.structured_output is not None,
        )
        return _Place(
            k, link, link.processor.process_output_stream, args, received, calls.report(link, _HOOK)
        )

    async def __aenter__(self) -> Self:
        for writer in self._writers:
            writer.begin()
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers:
            if writer.end():
                await writer.__aexit__(error_type, error, trace)
        self._deliver, self._collector = _nowhere, None  # no circle (ADR 23)

    def again(self, deliver: Callable[[Chunk], None], collector: ResponseCollector) -> Self:
        """The chain for what comes behind the end of its stream, on the same context."""
        self._deliver, self._collector = deliver, collector
        return self

    async def feed(self, chunk: Chunk) -> None:
        """Takes one chunk from the provider (or the runtime) through the chain.

        Raises:
            TripWire: A processor aborted; the chunk in hand is not delivered (R-OS-14).
            ProcessorError: A processor failed whose policy is `fail`.
        """
        if self._collector is not None:
            self._collector.arrived(chunk)
            if chunk["type"] == "finish" and self._collector.finish_reason == "tool-calls":
                self._collector.passed(chunk)  # not offered: the run goes on after the tools (R-OS-8)
                return
        await self.send(chunk, 0)

    async def send(self, chunk: Chunk | None, start: int) -> None:
        """Takes a chunk through the links from `start` on and delivers what is left of it.

        Without a chunk it is what link `start` holds back.
        """
        clock, waiting, kind = self._calls.clock, self._waiting, chunk["type"] if chunk else ""
        since = clock()
        for k, link, hook, own, received, report in self._places_from(start, kind):
            # A hook that waits keeps the chunk that it has in hand: another one may be written beside it meanwhile.
            args = copy(own) if (waits := waiting[k]) else own
            if chunk:
                received.append(chunk)
                args.part = chunk
            report.calls += 1
            try:
                out: Any = (hook if chunk else link.processor.flush_stream)(args)
                if type(out) is CoroutineType or (out is not chunk and inspect.isawaitable(out)):
                    waiting[k] = True
                    out = await (out if link.timeout is None else within(awaited(out), link.timeout))
            except TripWire as tripwire:
                await self._calls.violated(link, _HOOK, tripwire)
                raise
            except BaseException as error:  # an author's code: skipped or reported with its place (D-2)
                await self._calls.violated_in(link, _HOOK, error)
                if is_ours(error) or not self._forgiven(k, error, args):
                    raise
                await self.by_chance()
                out = chunk
            finally:
                if not waits:
                    waiting[k] = False
                now = clock()
                report.micros += (now - since) / 1000
                since = now
            if out is not chunk or chunk is None or chunk.get("type") != kind:
                for made in self._made(k, chunk, kind, out):
                    await self.send(made, k + 1)
                return
        assert chunk is not None  # what a link held back is on its way by now
        self._pass(chunk)

    def _places_from(self, start: int, kind: str) -> list[_Place]:
        """The places from a link on, without those that do not want chunks of that type."""
        if kind.startswith("data-"):
            return [place for place in self._places[start:] if place.link.processor.process_data_parts]
        return self._places[start:]

    async def by_chance(self) -> None:
        """Tells who wants to know that the same chunks might not lead to what comes next again."""
        if self.on_chance is not None:
            await self.on_chance()

    def _pass(self, chunk: Chunk) -> None:
        """Hands on what has come through."""
        if self._collector is not None:
            if self._collector.repeated(chunk):
                return
            self._collector.passed(chunk)
        if chunk["type"] not in UNDELIVERED:
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
        await self.send(None, k)

    def _forgiven(self, k: int, error: BaseException, args: OutputStreamArgs) -> bool:
        """Counts a failure. True: the link's policy is to pass the chunk on; False: another link has failed.

        Raises:
            ProcessorError: The policy is to fail; the error names the link and the hook.
        """
        link = self.links[k]
        if of_another(link, error):
            return False
        self._calls.raised(link, _HOOK, error, args)
        if not link.skips(_HOOK):
            raise failure(link, _HOOK, error) from error
        return True

    def _made(self, k: int, chunk: Chunk | None, kind: str | None, out: Any) -> list[Chunk]:
        """The chunks that a hook returned for a chunk of that kind, or when it was flushed (no chunk); counts them.

        Raises:
            ProcessorError: One is no chunk, or none that a processor may make.
        """
        if out is None or out == []:
            self._places[k].report.dropped += out is not chunk
            return []
        self._places[k].report.changed += 1
        made = out if isinstance(out, list) else [out]
        for each in made:
            if chunk and each is chunk and each.get("type") == kind:
                continue
            if not is_chunk(each):
                raise self._refused(k, f"returned {chunk_fault(each)}")
            if each["type"] in RUNTIME_TYPES:
                self._check_received(k, chunk, kind, each["type"])
            elif told := (_unsendable if each["type"] in _FREQUENT else _not_json)(each):
                raise self._refused(k, f"returned {told}")
        return made

    def _check_received(self, k: int, chunk: Chunk | None, was: str | None, kind: str) -> None:
        """Refuses a chunk that only the runtime makes, unless the link gives back such a one that it got."""
        if kind != was and not any(
            part["type"] == kind for part in self._places[k].received if part is not chunk
        ):
            told = f"a chunk of type {kind!r}, which belongs to the runtime; use `abort` to end a run"
            raise self._refused(k, f"returned {told}")

    def _refused(self, k: int, told: str) -> ProcessorError:
        """Counts and logs what a link has made of a chunk; gives the error."""
        self._calls.refused(self.links[k], _HOOK, INVALID_RETURN, self._places[k].args.run_id)
        return wrong(self.links[k], _HOOK, INVALID_RETURN, told)

    def spoiled(self, error: BaseException) -> ProcessorError | None:
        """The error about a chunk that hooks were given and have spoiled in place, if nobody has raised `error`.

        It names the link if no other one was given that chunk. What hooks return is checked at once; this looks at all
        chunks of the run, since something has failed over one.
        """
        if isinstance(error, TripWire) or (isinstance(error, ProcessorError) and error.processor_id):
            return None
        for place in self._places:
            for chunk in place.received:
                told = _unsendable(chunk) if is_chunk(chunk) else chunk_fault(chunk)
                if told:
                    return self._left(chunk, told)
        return None

    def makers(self, kind: str, fits: Callable[[Chunk], bool]) -> list[str]:
        """The ids of the links of which one has made a chunk of that type that does not fit.

        These are the last one that gets such chunks and was given none that does not fit, and all behind it.
        """
        gets = self._places_from(0, kind)
        first = max((place.k for place in gets if all(map(fits, place.received))), default=0)
        return [link.id for link in self.links[first:]]

    def _left(self, chunk: Chunk, told: str) -> ProcessorError:
        had = [place.link.id for place in self._places if any(each is chunk for each in place.received)]
        who = f"one of {', '.join(map(repr, had))} " if had[1:] else ""
        return ProcessorError(
            f"{who}left {told}",
            processor_id="" if who else had[0],
            hook=_HOOK.value,
            code=INVALID_RETURN,
            name="ProcessorReturnError",
        )


def _unsendable(chunk: Chunk) -> str:
    """What keeps clients from getting a chunk; empty where nothing does."""
    try:
        orjson.dumps(chunk, option=UNTOUCHED)
    except TypeError:
        return _not_json(chunk)
    return ""


def _not_json(chunk: Chunk) -> str:
    """What keeps clients from getting a chunk as it is; empty where nothing does."""
    try:
        given(chunk, "chunk")
    except NotJsonError as error:
        return f"a chunk that is not JSON: {error}"
    return ""


def _nowhere(_chunk: Chunk) -> None:
    """Where chunks of a chain that has ended go."""


async def _send_past(chain: "ref[StreamChain]", k: int, chunk: Chunk) -> None:
    """What link k writes goes past the links behind it, before the chunk in hand (D-19, R-WR-7).

    What it writes for a stream that is over goes nowhere.
    """
    alive = chain()
    if alive is not None:
        await alive.send(chunk, k + 1)


async def _written_beside(chain: "ref[StreamChain]") -> None:
    """What a task of its own writes has its place among the chunks by chance."""
    if (alive := chain()) is not None:
        await alive.by_chance()


def _wake_after(wake: dict[int, int], clock: Clock, k: int, seconds: float | None) -> None:
    wake.pop(k, None)
    if seconds is not None:
        wake[k] = clock() + int(seconds * 1e9)
