"""One command being worked on."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, Protocol

from msgspec import Struct

from procession.args import AbortSignal
from procession.calls import Calls
from procession.context import RunContext
from procession.errors import ProcessorError
from procession.message_list import MessageList
from procession.registry import Registry
from procession.writers import TurnWriter
from procession_schemas.agent import ProcessorRef
from procession_schemas.chunks import Chunk
from procession_schemas.run_ids import answer_id
from procession_schemas.work import ANY_VERSION, Op, StopOp, WorkCommand, WorkResult
from procession_services.processor_host.instances import Instances
from procession_services.processor_host.outbox import Outbox
from procession_services.processor_host.wire import wire_failure
from procession_services.runtime.clock import now_iso

_LEFT_BY_HOOKS: Final = frozenset({"CONTEXT_NOT_JSON", "STATE_NOT_JSON"})
_AUTHORS_TOO: Final = frozenset({"arrays", "stop", "tools"})
"""Operations in which code of authors runs that is no hook, and gets what hooks get."""


class ChunkSink(Protocol):
    """Where chunks of a command go: through the output chain, or straight to the client.

    `rewritten` tells, once the sink is closed, what the chain made of tool results: by tool call id, `{"streamed":
    result}` where it changed one, `{"hidden": True}` where it dropped it (R-OS-7). `told_error` is the error
    that was sent as the chain left it, None where it dropped that.
    """

    rewritten: dict[str, dict[str, Any]]
    told_error: Any

    async def send(self, chunks: list[Chunk], *, last: bool = False) -> None:
        """Hands chunks on, in order; `last`: no more will come, and what follows sends them with its own.

        Raises:
            TripWire: An output processor aborted.
            ProcessorError: One failed whose policy is `fail`.
        """


SinkFactory = Callable[["Job", list[ProcessorRef]], AbstractAsyncContextManager[ChunkSink]]


class Job(Struct):
    """A command, the context it works on, and the result that it fills."""

    command: WorkCommand
    ctx: RunContext
    calls: Calls
    instances: Instances
    outbox: Outbox
    result: WorkResult
    open_sink: SinkFactory
    new_id: Callable[[], str]
    """Makes the ids of this command's messages."""
    left: bytes | None = None
    """The context as somebody else has left it, in the place of `ctx`: its JSON."""
    parts: bytes = b""
    """What the stream hooks of somebody else received, to be logged with the context."""

    def ops_from(self, op: Op) -> list[Op]:
        """The command's operations from this one on."""
        at = next(k for k, other in enumerate(self.command.ops) if other is op)
        return self.command.ops[at:]

    def to_json(self) -> bytes:
        """The JSON of the context.

        Raises:
            ProcessorError: It is none, or too long; names who has done it, if only one processor can have, or the stop
                conditions, if only they can.
        """
        try:
            return self.ctx.to_json()
        except ProcessorError as error:
            if error.code not in _LEFT_BY_HOOKS:
                raise
            others = [op for op in self.command.ops if op.op in _AUTHORS_TOO]
            conditions = [ref.id for op in others if isinstance(op, StopOp) for ref in op.conditions]
            if not others:
                self.calls.blame(error)
            elif not self.calls.reports and all(isinstance(op, StopOp) for op in others):
                who = f"one of the stop conditions {', '.join(map(repr, conditions))}"
                error.args = (f"{who} left what is not JSON: {error}",)
            raise

    def context_body(self) -> bytes | None:
        """The JSON of the context; one that is none fails the command, which may have failed for that already."""
        try:
            return self.to_json() if self.left is None else self.left
        except ProcessorError as error:
            if self.result.outcome != "failed":
                self.result.outcome, self.result.error = "failed", wire_failure(error)
            return None

    @property
    def registry(self) -> Registry:
        """What is installed in this process."""
        return self.instances.registry

    @property
    def abort_signal(self) -> AbortSignal:
        """Fires when the run is cancelled."""
        return self.calls.abort_signal

    def emit(self, *chunks: Chunk) -> None:
        """Sends chunks straight to the client, before anything that takes time."""
        for chunk in chunks:
            self.outbox.put(chunk)

    def sink(self, processors: list[ProcessorRef]) -> AbstractAsyncContextManager[ChunkSink]:
        """The way through `processors`; what they keep of data chunks joins the conversation (R-WR-8)."""
        return self.open_sink(self, processors) if processors else nullcontext(_Direct(self))

    def writer(self, processors: list[ProcessorRef]) -> TurnWriter:
        """A writer for hooks outside the stream; `processors` are the output chain where some want data chunks."""

        async def send(chunk: Chunk) -> None:
            async with self.sink(processors) as sink:
                await sink.send([chunk])
            await self.outbox.flush()

        return TurnWriter(send)

    def keep_data(self, chunk: Mapping[str, Any]) -> None:
        """Keeps a data chunk that reached the client as a part of the assistant message, unless transient."""
        if chunk["type"].startswith("data-") and not chunk.get("transient"):
            self.ctx.pending_parts.append({"type": chunk["type"], "data": chunk.get("data")})


class _Direct:
    """The sink of a run without stream processors."""

    def __init__(self, job: Job) -> None:
        self.rewritten: dict[str, dict[str, Any]] = {}
        self.told_error = None
        self._job = job

    async def send(self, chunks: list[Chunk], *, last: bool = False) -> None:
        for chunk in chunks:
            self._job.outbox.put(chunk)
            self._job.keep_data(chunk)
        if not last:
            await self._job.outbox.flush()


def restore(command: WorkCommand, data: dict[str, Any] | None, new_id: Callable[[], str]) -> RunContext:
    """The context that a command starts from."""
    if data is not None:
        return RunContext.from_dict(data, new_id=new_id, now=now_iso)
    return RunContext(
        run_id=command.run,
        tenant=command.tenant,
        agent=command.agent,
        message_id=command.message_id,
        messages=MessageList(new_id=new_id, now=now_iso),
    )


def id_maker(command: WorkCommand, place: str = "") -> Callable[[], str]:
    """Message ids for one command: deterministic, so that it makes the same when it is delivered, or sent, again.

    Whoever works on a part of the command elsewhere names its `place`: two makers of one place make the same ids.
    """
    number = command.seq if command.version == ANY_VERSION else command.version + 1
    count = 0

    def new_id() -> str:
        nonlocal count
        count += 1
        return f"{answer_id(command.run)}-{number}{place}-{count}"

    return new_id


OpRunner = Callable[[Any, Job], Awaitable[None]]
