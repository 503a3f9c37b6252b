"""What an answer used, as the provider tells it -> the contract's words (R-US-1..3)."""

from typing import Any, Final

_CACHED: Final = (
    "prompt_tokens_details.cached_tokens",
    "cache_read_input_tokens",
    "prompt_cache_hit_tokens",
    "cached_tokens",
)
_CACHE_CREATION: Final = (
    "prompt_tokens_details.cache_creation_tokens",
    "prompt_tokens_details.cache_write_tokens",
    "prompt_tokens_details.cache_creation_input_tokens",
    "cache_creation_input_tokens",
)
"""Where providers tell the tokens that came from their cache, and those that went there."""
_MOST_TOKENS: Final = 10**9
"""More than any answer takes, and so few that sums of them, and of what they cost, stay integers of 64 bits."""


class Usage:
    """Adds up the reports of one answer.

    Attributes:
        is_doubtful: Whether they tell a number of tokens that no answer can have; it counts as not reported.
    """

    def __init__(self) -> None:
        self.is_doubtful = False
        self._known: dict[str, int] = {}

    def add(self, report: dict[str, Any], of: str = "") -> None:
        """Add a report: later numbers win, but a zero says nothing against an earlier number.

        Providers report prompt tokens at the beginning and the rest at the end, or everything with every event.
        """
        known = self._known
        for name, value in report.items():
            if isinstance(value, dict):
                self.add(value, f"{of}{name}.")
            elif (number := possible(value)) is None:
                self.is_doubtful |= name.endswith("tokens") and _number(value) is not None
            elif number or not known.get(of + name):
                known[of + name] = number

    def told(self) -> dict[str, int | None]:
        """Return the usage; what was not reported is None."""
        usage = self._known
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        total = usage.get("total_tokens")
        if prompt is not None or completion is not None:
            total = max(total or 0, (prompt or 0) + (completion or 0))
        apart = usage.get("reasoning_tokens") or None  # some have a zero there whatever they know
        details = {
            "reasoningTokens": usage.get("completion_tokens_details.reasoning_tokens", apart),
            "cachedInputTokens": self._largest(_CACHED),
            "cacheCreationInputTokens": self._largest(_CACHE_CREATION),
        }
        return {
            "inputTokens": prompt,
            "outputTokens": completion,
            "totalTokens": total,
            **{name: value for name, value in details.items() if value is not None},
        }

    def _largest(self, names: tuple[str, ...]) -> int | None:
        return max((self._known[name] for name in names if name in self._known), default=None)


def possible(value: Any) -> int | None:
    """Return the number of tokens that a value tells; None for what is none, or no call can have used."""
    number = _number(value)
    return number if number is not None and 0 <= number <= _MOST_TOKENS else None


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None
