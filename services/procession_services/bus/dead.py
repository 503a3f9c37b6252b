"""Dead letters: what could not be handled, and how it gets another chance (design.md 3)."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from procession.errors import ProcessionError
from procession_schemas import subjects
from procession_schemas.run_ids import asked_id, derived_id

__all__ = ["DeadLetter", "NotReplayableError", "dead_letter", "dead_letters", "drop", "replay"]


class NotReplayableError(ProcessionError):
    """A dead letter that cannot be handled again; the message says why."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be handled.

    `sequence` is its number in DEAD, `at` the time when it came there. `subject` is where it was, and `name` what a
    request that asks for no `runId` calls its run. `length` is that of the body as it was; DEAD may have less of it.
    """

    sequence: int
    subject: str
    reason: str
    name: str
    at: str
    body: bytes
    length: int

    @property
    def is_request(self) -> bool:
        """Whether it is a run request."""
        return subjects.parse(self.subject)[:1] == ["run"]

    @property
    def run(self) -> tuple[str, str] | None:
        """Tenant and run id that it is about; None where it names none."""
        try:
            kind, *rest = subjects.parse(self.subject)
            tenant, last = rest[1:] if kind == "work" else rest
            run = asked_id(self.body) or self.name if self.is_request else last
            return subjects.token(tenant, "tenant"), subjects.token(run, "run id")
        except ValueError:
            return None

    def request(self) -> dict[str, Any]:
        """The body as a JSON object, with `runId` as the contract spells it; an empty one where it is none."""
        try:
            read = json.loads(self.body)
        except ValueError:
            return {}
        if not isinstance(read, dict):
            return {}
        return {"runId" if name == "run_id" else name: value for name, value in read.items()}


async def dead_letters(js: JetStreamContext) -> AsyncIterator[DeadLetter]:
    """What lies in DEAD, oldest first; one by one, since all of it may be more than fits into memory."""
    try:
        state = (await js.stream_info("DEAD")).state
    except NotFoundError:
        return
    if not state.messages:
        return  # where there never was one, the numbers are those of no message
    number = state.first_seq
    while True:
        try:
            message = await js.get_msg("DEAD", seq=number, subject=">", next=True)
        except NotFoundError:  # behind the last one
            return
        number = (message.seq or number) + 1
        yield _letter(message)


async def dead_letter(js: JetStreamContext, number: int) -> DeadLetter | None:
    """One of them; None where there is none of that number."""
    try:
        return _letter(await js.get_msg("DEAD", number))
    except NotFoundError:
        return None


def _letter(message: RawStreamMsg) -> DeadLetter:
    headers = message.headers or {}
    subject, reason, message_id = (
        str(headers.get(f"Procession-{name}", "")) for name in ("Subject", "Reason", "Message-Id")
    )
    *_, place = str(headers.get("Nats-Msg-Id", "")).split(":")
    at = message.time.isoformat(timespec="seconds") if message.time else ""
    name = derived_id(message_id, place)
    body = message.data or b""
    length = int(headers.get("Procession-Cut", len(body)))
    return DeadLetter(message.seq or 0, subject, reason, name, at, body, length)


async def replay(js: JetStreamContext, letter: DeadLetter) -> str:
    """Puts a letter back where it came from, and takes it out of DEAD; gives the id of the run that it is about.

    A run has one end. So a request whose run has ended since begins another one, `<run>-replay-<number>`.

    Raises:
        NotReplayableError: It is no request, and its run has ended; nothing in it says which run it is about; it
            was put back in the last two minutes; or it was too long to be kept as it was.
    """
    if letter.length > len(letter.body):
        raise NotReplayableError(
            f"dead letter {letter.sequence} was too long for DEAD, which kept only {len(letter.body):,} of its "
            f"{letter.length:,} bytes: send the request again, and drop the letter"
        )
    if letter.run is None:
        raise NotReplayableError(
            f"dead letter {letter.sequence} on {letter.subject} does not say which run it belongs to"
        )
    tenant, run = letter.run
    request = letter.request() if letter.is_request else {}
    if await _has_ended(js, tenant, run):
        if not request:
            told = "send its request again under another runId, and drop the letter"
            raise NotReplayableError(f"run {run} has ended since; {told}")
        run = f"{run[:100]}-replay-{letter.sequence}"
    same = not request or asked_id(letter.body) == run  # of other bytes it would be another request
    body = letter.body if same else json.dumps({**request, "runId": run}).encode()
    # A DEAD that was made anew counts from 1 again.
    message_id = f"replay:{letter.sequence}:{letter.at}:{letter.subject}"
    stored = await js.publish(letter.subject, body, headers={"Nats-Msg-Id": message_id})
    if stored.duplicate:
        raise NotReplayableError(
            f"dead letter {letter.sequence} was replayed within the last two minutes, but not removed from DEAD: "
            "drop it"
        )
    await js.delete_msg("DEAD", letter.sequence)
    return run


async def drop(js: JetStreamContext, letter: DeadLetter) -> None:
    """Takes a letter out of DEAD for good."""
    await js.delete_msg("DEAD", letter.sequence)


async def _has_ended(js: JetStreamContext, tenant: str, run: str) -> bool:
    try:
        await js.get_last_msg("EVENTS", subjects.event(tenant, run, "run.finished"))
    except NotFoundError:
        return False
    return True
