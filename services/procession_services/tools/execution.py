"""The tool calls of one round while they run, apart from the delivery that started them.

A delivery may be lost in the middle: its acknowledgement came too late, or its handler was cancelled. The
calls then run on, and the next delivery of the same round to this process joins them: it sends every
chunk from the first on, so that numbers come out the same, and gets the same outcomes. No tool runs twice
for one round while the process lives; after a crash another process runs the calls again (at least
once, with run id and call id as the key).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import orjson

from procession.args import AbortSignal, RequestContext
from procession.errors import ProcessionError
from procession_schemas.chunks import Chunk
from procession_services.processor_host.cancels import LEAVE_SECONDS
from procession_services.processor_host.errors import Cancelled
from procession_services.tools.core.outcomes import Outcome

_KEPT: Final = 256
_KEPT_BYTES: Final = 32 * 1024 * 1024


class Sink(Protocol):
    """Where chunks of a command go."""

    async def send(self, chunks: list[Chunk]) -> None:
        """Hands chunks on, in order."""


Round = tuple[str, str, int, bytes]
"""Tenant, run, version of its context, and what tells the calls from others."""
OpenSink = Callable[[], AbstractAsyncContextManager[Sink]]


@dataclass(slots=True)
class Ended:
    """What calls came to: outcomes in call order, calls that wait for a person, what tools set for hooks."""

    outcomes: list[Outcome] = field(default_factory=list)
    waiting: list[dict[str, Any]] = field(default_factory=list)
    request_context: RequestContext = field(default_factory=RequestContext)


class Execution:
    """A task that runs calls, and the log of the chunks that they write.

    Attributes:
        size: Bytes of the log and the outcomes as JSON, and letters of the request context; 0 before the calls have
            ended.
    """

    def __init__(self, work: Callable[["Execution"], Coroutine[Any, Any, Ended]]) -> None:
        self.signal = AbortSignal()
        self.size = 0
        self._log: list[Chunk] = []
        self._sent = 0
        self._readers = 0
        self._changed = asyncio.Event()
        self._leaving: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(work(self))
        self._task.add_done_callback(self._finish)

    def on_end(self, callback: Callable[[], None]) -> None:
        """Calls back when all calls have ended."""
        self._task.add_done_callback(lambda _task: callback())

    def cancel(self) -> None:
        """Notes that the run was cancelled: no call is begun any more, and none goes on for long."""
        self.signal.abort()
        if self._leaving is None and not self._task.done():
            self._leaving = asyncio.get_running_loop().call_later(LEAVE_SECONDS, self._task.cancel)

    async def write(self, chunk: Chunk) -> None:
        """Logs a chunk and returns when it is sent; at once while no delivery listens."""
        self._log.append(chunk)
        number = len(self._log)
        self._wake()
        while self._readers and self._sent < number:
            await self._changed.wait()

    async def follow(self, open_sink: OpenSink) -> Ended:
        """Sends the chunks of the calls, from the first on, until the calls have ended.

        The sink is opened for the first chunk.

        Raises:
            ProcessionError: A processor aborted or failed over a chunk, or a tool raised a tripwire; no
                further call is begun.
            Cancelled: The run was cancelled, and calls that did not end were cancelled, too.
        """
        self._readers += 1
        try:
            async with AsyncExitStack() as stack:
                await self._pump(stack, open_sink)
        except ProcessionError:
            self.signal.abort()
            raise
        finally:
            self._readers -= 1
            self._wake()
        if self._task.cancelled():
            raise Cancelled
        return self._task.result()

    async def _pump(self, stack: AsyncExitStack, open_sink: OpenSink) -> None:
        sink: Sink | None = None
        sent = 0
        while True:
            changed = self._changed
            if sent < len(self._log):
                if sink is None:
                    sink = await stack.enter_async_context(open_sink())
                fresh = self._log[sent:]
                await sink.send(fresh)
                sent += len(fresh)
                self._sent = max(self._sent, sent)
                self._wake()
            elif self._task.done():
                return
            else:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _finish(self, task: "asyncio.Future[Ended]") -> None:
        self._wake()
        if self._leaving is not None:
            self._leaving.cancel()
        self.size = len(orjson.dumps(self._log))
        # seen, also when no delivery comes to hear of it
        if not task.cancelled() and task.exception() is None:
            ended = task.result()
            self.size += len(orjson.dumps(ended.outcomes))
            with suppress(BaseException):  # tools may set what has no JSON, nor a text
                self.size += len(repr(ended.request_context))


class Executions:
    """The executions of this process by round; of finished ones those that ended last are remembered.

    These are `keep` at most, and have `keep_bytes` together, or there is only one.
    """

    def __init__(self, keep: int = _KEPT, keep_bytes: int = _KEPT_BYTES) -> None:
        self._keep, self._keep_bytes = keep, keep_bytes
        self._table: dict[Round, Execution] = {}
        self._ended: deque[Round] = deque()
        self._size = 0

    def join(self, key: Round, start: Callable[[], Execution]) -> Execution:
        """The execution of that round, started if it is not known here."""
        if key not in self._table:
            execution = self._table[key] = start()
            execution.on_end(lambda: self._remember(key, execution.size))
        return self._table[key]

    def cancel(self, tenant: str, run: str) -> None:
        """Tells the calls of a run that it was cancelled: those, too, that go on without a delivery."""
        for (*whose, _, _), execution in self._table.items():
            if whose == [tenant, run]:
                execution.cancel()

    def _remember(self, key: Round, size: int) -> None:
        """Notes that an execution has ended, and forgets the oldest for it."""
        self._ended.append(key)
        self._size += size
        while len(self._ended) > 1 and (len(self._ended) > self._keep or self._size > self._keep_bytes):
            self._size -= self._table.pop(self._ended.popleft()).size
