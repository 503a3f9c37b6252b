"""Dead letters: what could not be handled, and how it gets another chance (design.md 3)."""

from dataclasses import dataclass

from nats.js.errors import NotFoundError

from procession_services.bus.connection import Bus


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was delivered too often."""

    sequence: int
    subject: str
    reason: str
    body: bytes


async def dead_letters(bus: Bus) -> list[DeadLetter]:
    """What lies in DEAD, oldest first."""
    state = (await bus.js.stream_info("DEAD")).state
    if not state.messages:
        return []  # where there never was one, the numbers are those of no message
    letters = [await _get(bus, sequence) for sequence in range(state.first_seq, state.last_seq + 1)]
    return [letter for letter in letters if letter is not None]


async def replay(bus: Bus, sequence: int) -> DeadLetter | None:
    """Puts a dead letter back where it came from and takes it out of DEAD; None when there is none."""
    letter = await _get(bus, sequence)
    if letter is not None:
        await bus.publish_stored(letter.subject, letter.body, message_id=f"replay:{sequence}")
        await bus.js.delete_msg("DEAD", sequence)
    return letter


async def _get(bus: Bus, sequence: int) -> DeadLetter | None:
    try:
        message = await bus.js.get_msg("DEAD", sequence)
    except NotFoundError:
        return None
    headers = message.headers or {}
    subject, reason = (str(headers.get(name, "")) for name in ("Procession-Subject", "Procession-Reason"))
    return DeadLetter(sequence, subject, reason, message.data or b"")
