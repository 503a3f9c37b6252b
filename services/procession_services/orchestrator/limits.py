"""What a tenant's limits mean for a request: what it is held against, and what is said where it is refused."""

from typing import Final

from procession_schemas.run import Failure
from procession_services.runtime.admission import Over, Wanted
from procession_services.runtime.ledger import PICO, day_of
from procession_services.runtime.tenants import Limits
from procession_services.runtime.words import number_of

__all__ = ["refusal", "wanted"]

_SHORTEST_SECONDS: Final = 0.1
_QUEUE_SECONDS: Final = (1.0, 60.0)
"""Least and most that somebody is told to stay away because of a queue."""


def wanted(tenant: str, limits: Limits, crowd: int, now: float) -> Wanted:
    """What a request of that tenant is held against; `crowd` is how many runs of all tenants may wait."""
    usage, day = day_of(tenant, now)
    cost = limits.cost_per_day
    return Wanted(
        waiting=limits.waiting_runs,
        crowd=crowd,
        rate=limits.requests_per_second,
        tokens=limits.tokens_per_day,
        cost=None if cost is None else round(cost * PICO),
        usage=usage,
        day=round(day * 1000),
    )


def refusal(tenant: str, limits: Limits, crowd: int, over: Over) -> Failure:
    """The answer to a request that is refused: which limit, how much of it is used, when to come back."""
    seconds = max(over.wait_ms / 1000, _SHORTEST_SECONDS)
    current: float = over.current
    match over.limit:
        case "requestsPerSecond":
            code, allowed = "RATE_LIMITED", limits.requests_per_second
            told = f"tenant {tenant} may send {number_of(allowed or 0, 'request')} a second"
        case "tokensPerDay":
            code, allowed = "BUDGET_EXCEEDED", limits.tokens_per_day
            told = f"tenant {tenant} has used {current:,} of the {allowed:,} tokens for today (UTC)"
        case "costPerDay":
            code, allowed, current = "BUDGET_EXCEEDED", limits.cost_per_day, over.current / PICO
            told = f"tenant {tenant} has used {current:.4f} of the {allowed:g} US dollars for today (UTC)"
        case "waitingRuns":
            # What the oldest has waited is how long a queue of this length takes.
            code, allowed, seconds = "TOO_MANY_RUNS", limits.waiting_runs, _queue_seconds(over)
            told = f"tenant {tenant} has {number_of(current, 'run')} waiting; at most {allowed} may wait"
            if limits.concurrent_runs is not None:
                told += f" behind the {limits.concurrent_runs} that may be active"
        case _:
            code, allowed, seconds = "OVERLOADED", crowd, _queue_seconds(over)
            told = (
                f"all tenants together have {number_of(current, 'run')} waiting; at most {allowed} may wait"
            )
    return Failure(
        code=code,
        message=f"{told}; send the request again in {seconds:.1f} seconds or later",
        is_retryable=True,
        retry_after=round(seconds, 3),
        detail={"limit": over.limit, "allowed": allowed, "current": current},
    )


def _queue_seconds(over: Over) -> float:
    least, most = _QUEUE_SECONDS
    return min(max(over.wait_ms / 1000, least), most)
