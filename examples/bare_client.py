"""A client without Procession's library: what it takes in any language that has a NATS client.

docs/how-to/use-another-language.md explains it; bare_client.mjs is the same for Node.
"""

import asyncio
import hashlib
import json
import math
import re
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
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Answer:
    """The chunks of a run by their numbers, whatever comes twice, late or out of order."""

    def __init__(self) -> None:
        self._said: dict[int, dict[int, dict[str, Any]]] = {}
        self._begun: dict[int, tuple[int, int]] = {}
        self._ends: dict[int, int] = {}

    def take(self, batch: dict[str, Any]) -> None:
        """Takes a message from `procession.v1.chunk.<tenant>.<run>`, or one of the backlog."""
        first, fence, chunks = batch["seq"], batch.get("fence", 0), batch["chunks"]
        start = batch.get("reset", first)
        least, earliest = self._begun.get(fence, (first, start))
        self._begun[fence] = min(first, least), min(first, start, earliest)
        self._said.setdefault(fence, {}).update(enumerate(chunks, first))
        if batch.get("end"):
            self._ends[fence] = first + len(chunks)

    def _counting(self) -> tuple[dict[int, dict[str, Any]], int]:
        """The chunks that count by their numbers, and the number of the next one that has not come yet."""
        counting: dict[int, dict[str, Any]] = {}
        left_out, limit = [], math.inf
        for fence in sorted(self._said, reverse=True):
            first, start = self._begun[fence]
            if first <= limit:  # else it is of somebody who does not know yet that others have the work
                counting |= {number: chunk for number, chunk in self._said[fence].items() if number < limit}
                left_out.append((start, first))
                limit = min(start, limit)
        following = 0
        while True:
            if following in counting:
                following += 1
            elif skipped := [first for start, first in left_out if start <= following < first]:
                following = max(skipped)
            else:
                return counting, following

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The chunks that count, as far as there is no gap; some may be taken back later."""
        counting, following = self._counting()
        return [counting[number] for number in sorted(counting) if number < following]

    @property
    def text(self) -> str:
        """Their text, without that of attempts behind which the model was asked again."""
        kept = attempt = ""
        for chunk in self.chunks:
            match chunk["type"]:
                case "step-start":
                    kept, attempt = kept + attempt, ""
                case "text-delta":
                    attempt += chunk["payload"]["text"]
                case "step-finish" if chunk["payload"]["stepResult"]["reason"] == "retry":
                    attempt = ""
        return kept + attempt

    @property
    def gap(self) -> bool:
        """Whether chunks are here that others come before."""
        counting, following = self._counting()
        return following < max(counting, default=-1)

    @property
    def complete(self) -> bool:
        """Whether the end is here and all before it."""
        return self.has(self._ends.get(max(self._said, default=-1), math.inf))

    def has(self, number: float) -> bool:
        """Whether all before that number is here."""
        return self._counting()[1] >= number


class Outcome:
    """What is told of a run beside its chunks; `ours` is the fingerprint of our request."""

    def __init__(self, ours: str) -> None:
        self._ours = ours
        self._events: dict[str, dict[str, Any]] = {}
        self._refusals: dict[int | None, str] = {}

    def take(self, event: dict[str, Any], *, stored: bool = False) -> None:
        """Takes an event from `procession.v1.event.<tenant>.<run>.*.*`; of ends that are heard the first one counts."""
        if event.get("fingerprint", self._ours) != self._ours:
            return  # about the request of somebody else, who has the same id
        if event["type"] == "request.rejected":
            self._refusals[event.get("sequence")] = event["error"]["message"]
        elif stored or event["type"] != "run.finished" or event["type"] not in self._events:
            self._events[event["type"]] = event

    def refusal(self, sequence: int) -> str | None:
        """Why the request of that number was refused; others are about somebody else's of the same id."""
        return self._refusals.get(sequence, self._refusals.get(None))

    @property
    def end(self) -> dict[str, Any] | None:
        """The event that the run has ended, or that it waits for a person and nobody has decided."""
        waits, resumed = self._events.get("run.suspended"), self._events.get("run.resumed")
        if waits is not None and resumed is not None and waits["fence"] <= resumed["fence"]:
            waits = None
        return self._events.get("run.finished", waits)

    def result(self, answer: Answer, *, whole: bool) -> dict[str, Any] | None:
        """The result, when all chunks are here that came before; `whole` says that no others will come.

        Of a run that did not end well some may never come, and chunks are forgotten after an hour: the result has the
        whole text.
        """
        if self.end is None:
            return None
        result: dict[str, Any] = self.end["result"]
        is_read = answer.complete and answer.has(self.end.get("endSeq") or 0)
        return result if whole or is_read or result["status"] not in ("finished", "suspended") else None


def _place(end: dict[str, Any] | None) -> tuple[str, int] | None:
    return None if end is None else (end["type"], end.get("fence", -1))


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

    The same request again is the same run: who has lost the connection, or died, calls this once more; so does who has
    decided for what a run waits whose `status` is `suspended`. `connection` are options of `nats.connect`; a user with
    permissions hears answers below `inbox_prefix="_INBOX.<user>"` only.

    Raises:
        RuntimeError: The request was refused.
        ValueError: The `runId` is none, so nobody would hear of its end.
    """
    run, answer, seen, news = request.get("runId", ""), Answer(), 0, asyncio.Event()
    if not _RUN_ID.fullmatch(run):
        raise ValueError("runId must be 1 to 128 letters, digits, '_' or '-'")
    address, body = f"procession.v1.run.{tenant}.{agent}", json.dumps(request).encode()
    outcome = Outcome(hashlib.sha256(address.encode() + body).hexdigest()[:32])

    async def on_chunks(message: Msg) -> None:
        answer.take(json.loads(message.data))
        show(answer)
        news.set()

    async def on_event(message: Msg) -> None:
        outcome.take(json.loads(message.data))
        news.set()

    bus = await nats.connect(url, max_reconnect_attempts=-1, **connection)
    try:
        subject = f"procession.v1.event.{tenant}.{run}"
        await bus.subscribe(f"procession.v1.chunk.{tenant}.{run}", cb=on_chunks)
        await bus.subscribe(f"{subject}.*.*", cb=on_event)
        stored = await bus.jetstream().publish(address, body, timeout=10)
        behind = bool(stored.duplicate)  # the run is older than we, and what comes may be of anybody
        everything = None  # the end for which all is here that is stored: it was looked up behind it
        while True:
            if behind or answer.gap:
                with suppress(TimeoutError, NoRespondersError):  # the next look is soon
                    ended = _place(outcome.end)
                    seen = await _catch_up(bus, tenant, run, seen, answer)
                    await _look_up(bus, subject, outcome)
                    behind, everything = False, ended
                show(answer)
            if refusal := outcome.refusal(stored.seq):
                raise RuntimeError(refusal)
            whole = request.get("stream") is False or everything == _place(outcome.end)
            if not behind and (result := outcome.result(answer, whole=whole)):
                return result
            behind = not await _heard(news) or behind
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


async def _look_up(bus: Client, subject: str, outcome: Outcome) -> None:
    """Takes the newest stored events."""
    for type_ in ("run.suspended", "run.resumed", "run.finished", "request.rejected"):
        with suppress(NotFoundError):
            stored = await bus.jetstream().get_last_msg("EVENTS", f"{subject}.{type_}", direct=True)
            outcome.take(json.loads(stored.data or b"{}"), stored=True)


def _print(answer: Answer) -> None:
    print(answer.text)  # noqa: T201 - what it is for


if __name__ == "__main__":
    if len(sys.argv) < 4:  # noqa: PLR2004 - itself, and its three arguments
        sys.exit("usage: bare_client.py NATS_URL RUN_ID WORD...")
    _, server, run, *words = sys.argv
    result = asyncio.run(ask(server, "demo", {"runId": run, "input": " ".join(words)}, show=_print))
    if result["status"] != "finished":
        why = result.get("error") or result.get("tripwire") or result.get("suspendPayload")
        sys.exit(f"{result['status']}: {why}")
