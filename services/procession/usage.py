"""What model calls have used and cost, summed for whom they were made: the run, its thread, a user, ...

The LLM gateway keeps the books; processors read them with `args.services.usage(scope, key, window_seconds)`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, get_args

from procession_schemas.memory import MEMORY_KEY, RESOURCE_KEY, THREAD_KEY

Scope = Literal["run", "resource", "thread", "user", "organization", "session", "tenant"]
"""For whom usage is summed. The calls that processors make count for the tenant only."""
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

_OF_CALLER: Final[dict[Scope, str]] = {
    "user": "userId",
    "organization": "organizationId",
    "session": "sessionId",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUsage:
    """What one model used; `cost` is in US dollars, None when no call had a known price."""

    model: str
    cost: float | None
    input_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    unpriced_calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSum:
    """What was used in a window, and by which models, the dearest first.

    `cost` is the sum of the known costs, in US dollars: 0.0 when there was no call, None when no call had a known
    price (D-24). With `unpriced_calls` it is only the least that was spent.
    """

    cost: float | None = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    unpriced_calls: int = 0
    breakdown: tuple[ModelUsage, ...] = ()

    @classmethod
    def of(cls, models: "list[ModelUsage]") -> "UsageSum":
        """The sum of what models used."""
        known = [usage.cost for usage in models if usage.cost is not None]
        return cls(
            cost=sum(known) if known or not models else None,
            input_tokens=sum(usage.input_tokens for usage in models),
            output_tokens=sum(usage.output_tokens for usage in models),
            calls=sum(usage.calls for usage in models),
            unpriced_calls=sum(usage.unpriced_calls for usage in models),
            breakdown=tuple(sorted(models, key=lambda usage: (-(usage.cost or 0), usage.model))),
        )


class UsageBooks(Protocol):
    """Where usage is read."""

    async def read(self, tenant: str, scope: Scope, key: str, window_seconds: float | None) -> UsageSum:
        """The sum over the last seconds, rounded up to whole slots; None is all that is kept."""


def scope_keys(request_context: Mapping[str, Any], run_id: str) -> dict[Scope, str]:
    """For whom the calls of a run are counted: the scopes that are known, with their keys (R-COST-2).

    The run's id stands for the reference's trace id. Thread and resource come from the reserved keys of the request
    context, else from its memory entry; user, organization and session are strings that the caller gave.
    """
    memory = request_context.get(MEMORY_KEY)
    memory = memory if isinstance(memory, Mapping) else {}
    thread = memory.get("thread")
    found: dict[Scope, Any] = {
        "run": run_id,
        "resource": request_context.get(RESOURCE_KEY) or memory.get("resourceId"),
        "thread": request_context.get(THREAD_KEY)
        or (thread.get("id") if isinstance(thread, Mapping) else None),
        **{scope: request_context.get(name) for scope, name in _OF_CALLER.items()},
    }
    return {scope: key for scope, key in found.items() if isinstance(key, str) and key}
