"""Times as stores keep them (milliseconds since 1970, UTC) and as messages carry them (ISO-8601, `Z`)."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def to_millis(iso: str) -> int:
    """Milliseconds of an ISO-8601 time; without an offset it is UTC, what is finer than a millisecond is cut.

    Raises:
        ValueError: It is not an ISO-8601 time.
    """
    at = datetime.fromisoformat(iso)
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND


def to_iso(millis: int) -> str:
    """The inverse: `1735689600000` is `2025-01-01T00:00:00.000Z`."""
    at = _EPOCH + millis * _MILLISECOND
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
