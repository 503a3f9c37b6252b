"""The time, and random tokens: pure code gets both as arguments."""

import secrets
import time
from datetime import UTC, datetime
from random import random


def now_iso() -> str:
    """The time now as messages carry it: ISO-8601, UTC, milliseconds, `Z`."""
    return iso(now())


def iso(at: datetime) -> str:
    """Formats a time as messages carry it."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now() -> datetime:
    """The time now, timezone-aware."""
    return datetime.now(UTC)


def seconds_since(at: str, until: datetime | None = None) -> float:
    """The seconds from a time in a message until now, or then; none where the clock of whoever wrote it is ahead."""
    return max(0.0, ((until or now()) - datetime.fromisoformat(at)).total_seconds())


seconds = time.time
monotonic_ns = time.perf_counter_ns


def apart(longest: float) -> float:
    """A random number of seconds, so many at most: what would happen at the same time is spread."""
    return longest * random()  # noqa: S311 - nobody gains anything who guesses it


def new_token(length: int = 8) -> str:
    """A random hexadecimal token of that many characters."""
    return secrets.token_hex((length + 1) // 2)[:length]
