"""A client without Procession's library: what it takes in any language that has a NATS client.

docs/how-to/use-another-language.md explains it; bare_client.mjs is the same for Node.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js.errors import NotFoundError

_PATIENCE_SECONDS = 2.0


class Answer:
    """The chunks of a run by their numbers, whatever comes twice, late or out of order."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, dict[str, Any]]] = {}
        self._starts: dict[int, int] = {}
        self._left_out: list[tuple[int, int]] = []
        self._next = 0
        self._end = (-1, 0)

    def take(self, batch: dict[str, Any]) -> None:
        """Takes a message from `procession.v1.chunk.<tenant>.<run>`, or one of the backlog."""
        first, fence, reset = batch["seq"], batch.get("fence", 0), batch.get("reset")
        start = first if reset is None else min(first, reset)
        if start < self._starts.get(fence, start + 1):
            self._starts[fence] = start
            self._held = {n: held for n, held in self._held.items() if self._counts(n, held[0])}
            self._next = min(self._next, start)
        if reset is not None:
            self._left_out.append((reset, first))
        for number, chunk in enumerate(batch["chunks"], first):
            if self._counts(number, fence):
                self._held[number] = fence, chunk
        if batch.get("end"):
            self._end = max(self._end, (fence, first + len(batch["chunks"])))

    def _counts(self, number: int, fence: int) -> bool:
        """Whether nobody of a greater fence has said this number, or one before it, anew."""
        return all(number < start for other, start in self._starts.items() if other > fence)

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The chunks that count, as far as there is no gap; some may be taken back later."""
        following = self._following()
        return [self._held[number][1] for number in sorted(self._held) if number < following]

    @property
    def text(self) -> str:
        """Their text."""
        return "".join(c["payload"]["text"] for c in self.chunks if c["type"] == "text-delta")

    @property
    def gap(self) -> bool:
        """Whether chunks are here that others come before."""
        return self._following() < max(self._held, default=-1)

    @property
    def complete(self) -> bool:
        """Whether the end is here and all before it."""
        fence, total = self._end
        return fence == max(self._starts, default=None) and self._following() >= total

    def _following(self) -> int:
        """The number of the next chunk that has not come yet."""
        while True:
            if self._next in self._held:
                self._next += 1
            elif over := [to for start, to in self._left_out if start <= self._next < to]:
                self._next = max(over)
            else:
                return self._next


async def ask(
    url: str,
    agent: str,
    request: dict[str, Any],
    *,
    tenant: str = "default",
    show: Callable[[Answer], None],
    **connection: Any,
) -> dict[str, Any]:
    """Sends a request, which names its `runId`, and returns the `result` of the run.

    The same request again is the same run: who has lost the connection, or died, calls this once more. `connection` are
    options of `nats.connect`; a user with permissions hears answers below `inbox_prefix="_INBOX.<user>"` only.

    Raises:
        RuntimeError: The request was refused.
    """
    run, answer, seen, news = request["runId"], Answer(), 0, asyncio.Event()
    events: dict[str, dict[str, Any]] = {}

    async def on_chunks(message: Msg) -> None:
        answer.take(json.loads(message.data))
        show(answer)
        news.set()

    async def on_event(message: Msg) -> None:
        event = json.loads(message.data)
        events[event["type"]] = event
        news.set()

    bus = await nats.connect(url, max_reconnect_attempts=-1, **connection)
    try:
        subject = f"procession.v1.event.{tenant}.{run}"
        await bus.subscribe(f"procession.v1.chunk.{tenant}.{run}", cb=on_chunks)
        await bus.subscribe(f"{subject}.*.*", cb=on_event)
        body = json.dumps(request).encode()
        stored = await bus.jetstream().publish(f"procession.v1.run.{tenant}.{agent}", body, timeout=10)
        while True:
            rejected = events.get("request.rejected", {})
            if rejected.get("sequence", -1) in {None, stored.seq}:  # not somebody else's of the same id
                raise RuntimeError(rejected["error"]["message"])
            result: dict[str, Any] = events.get("run.finished", {}).get("result", {})
            whole = answer.complete or request.get("stream") is False
            if result and (whole or result["status"] != "finished"):
                return result
            quiet = not await _heard(news)
            if quiet or answer.gap:  # something was missed, or the run is older than we
                with suppress(TimeoutError, NoRespondersError):  # the next look is soon
                    seen = await _catch_up(bus, tenant, run, seen, answer)
                    events |= await _last(bus, f"{subject}.run.finished")
                show(answer)
    finally:
        await bus.close()


async def _heard(news: asyncio.Event) -> bool:
    """Whether there is news in time."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await news.wait()
    except TimeoutError:
        return False
    news.clear()
    return True


async def _catch_up(bus: Client, tenant: str, run: str, seen: int, answer: Answer) -> int:
    """Takes the stored batches behind number `seen` of the stream; returns the number of the last one."""
    while True:
        asked = json.dumps({"run": run, "after": seen}).encode()
        told = await bus.request(f"procession.v1.api.orchestrator.{tenant}.backlog", asked, timeout=5)
        page = json.loads(told.data)
        if not page["last"]:
            return seen
        seen = page["last"]
        for batch in page["batches"]:
            answer.take(batch)


async def _last(bus: Client, subject: str) -> dict[str, dict[str, Any]]:
    """The newest event of a subject by its type, if there is one."""
    try:
        stored = await bus.jetstream().get_last_msg("EVENTS", subject, direct=True)
    except NotFoundError:
        return {}
    event = json.loads(stored.data or b"{}")
    return {event["type"]: event}


def _print(answer: Answer) -> None:
    print(answer.text)  # noqa: T201 - what it is for


if __name__ == "__main__":
    _, server, run, *words = sys.argv
    asyncio.run(ask(server, "demo", {"runId": run, "input": " ".join(words)}, show=_print))
