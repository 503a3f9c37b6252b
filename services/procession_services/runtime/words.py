"""Words of messages that depend on a number."""

__all__ = ["number_of"]


def number_of(count: float, one: str, many: str = "") -> str:
    """A count with its noun: `1 message`, `2 messages`; `many` is the plural where that is not the noun and an s."""
    return f"{count:.10g} {one if count == 1 else many or f'{one}s'}"
