"""The books of model usage in Redis: tokens and cost by tenant and scope, in slots of time that expire.

A call is booked into three series for every scope that it is made for, so that each window is read in few steps:

| series  | slots   | one hash for | windows up to |
| ------- | ------- | ------------ | ------------- |
| minutes | minutes | an hour      | 6 hours       |
| hours   | hours   | a day        | 7 days        |
| days    | days    | 30 days      | 365 days      |

A hash is `procession:<tenant>:usage:<series><number>:<scope>:<key>`; its fields are `<slot>|<measure>|<model>`. A run
has one hash without slots. Costs are whole picodollars, so that sums are exact.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from procession.usage import ModelUsage, Scope, UsageSum
from procession_services.runtime.clock import seconds
from procession_services.runtime.redis_client import ONCE, RedisClient, Script, once_key

_ADD: Final = Script(
    ONCE
    + """
if not first_time(KEYS[1]) then return end
local measures = {'n', 'u', 'c', 'i', 'o'}
for k = 2, #KEYS do
  local key, slot, ttl = KEYS[k], ARGV[3 + 2 * k], ARGV[4 + 2 * k]
  for m, measure in ipairs(measures) do
    local amount = ARGV[1 + m]
    if amount ~= '0' then redis.call('HINCRBY', key, slot .. '|' .. measure .. '|' .. ARGV[1], amount) end
  end
  redis.call('EXPIRE', key, ttl)
end
"""
)
SPENT: Final = """
-- The tokens and the picodollars in one hash of the books.
local function spent(key)
  local sums, all = {i = 0, o = 0, c = 0}, redis.call('HGETALL', key)
  for at = 1, #all, 2 do
    local measure = string.match(all[at], '^%d+|(%a)|')
    if sums[measure] then sums[measure] = sums[measure] + tonumber(all[at + 1]) end
  end
  return sums.i + sums.o, sums.c
end
"""
"""Lua, for scripts that look at a tenant's day (`day_of`)."""
PICO: Final = 10**12
"""Picodollars of a dollar."""
_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR


@dataclass(frozen=True, slots=True)
class _Series:
    """Sums for windows of up to `longest` seconds: one for each `slot` seconds, those of `span` seconds in one hash."""

    name: str
    slot: int
    span: int
    longest: int

    @property
    def ttl(self) -> int:
        return self.longest + self.span + self.slot


_SERIES: Final = (
    _Series("m", 60, _HOUR, 6 * _HOUR),
    _Series("h", _HOUR, _DAY, 7 * _DAY),
    _Series("d", _DAY, 30 * _DAY, 365 * _DAY),
)
_RUN_TTL: Final = 30 * _DAY


class Ledger:
    """Books what model calls used, and reads the sums (`UsageBooks`)."""

    def __init__(self, redis: RedisClient, now: Callable[[], float] = seconds) -> None:
        self._redis: Any = redis  # redis-py's annotations cover every protocol and decoding at once
        self._now = now

    def add(
        self,
        tenant: str,
        scopes: Mapping[Scope, str],
        model: str,
        usage: Mapping[str, int | None],
        cost: float | None,
    ) -> None:
        """Books one call for every scope and for the tenant, once, without waiting for Redis.

        It is written before whatever else this process asks of Redis next, such as to save the step that made the
        call: who works on the next step reads it. Where nothing is asked, it is written after a moment (`drain`).

        Args:
            tenant: Who pays.
            scopes: For whom the call was made, as `procession.services.book_keys` tells.
            model: `provider/name`.
            usage: `inputTokens` and `outputTokens`; what is missing counts as none.
            cost: US dollars; None when it is not known.
        """
        amounts = [
            1,
            int(cost is None),
            round((cost or 0) * PICO),
            usage.get("inputTokens") or 0,
            usage.get("outputTokens") or 0,
        ]
        booked = {**scopes, "tenant": tenant}
        hashes = list(_hashes(tenant, booked, self._now()))
        places = [value for _, *place in hashes for value in place]
        self._redis.run_later(
            "the usage of a model call was not recorded",
            _ADD,
            keys=[once_key(tenant), *(key for key, *_ in hashes)],
            args=[model, *amounts, *places],
        )

    async def drain(self) -> None:
        """Waits until all that was booked is written."""
        await self._redis.settled()

    async def read(self, tenant: str, scope: Scope, key: str, window_seconds: float | None) -> UsageSum:
        """The sum over the last seconds, rounded up to whole slots; None, or a longer window, is all that is kept.

        A run is always read as a whole. What this process has booked before is in the sum.
        """
        await self.drain()
        if scope == "run":
            return _sum([await self._redis.hgetall(_run_key(tenant, key))], first_slot=0)
        window = _SERIES[-1].longest if window_seconds is None else window_seconds
        series = next((s for s in _SERIES if window <= s.longest), _SERIES[-1])
        now = self._now()
        since = now - min(window, series.longest)
        numbers = range(int(since // series.span), int(now // series.span) + 1)
        reading = [self._redis.hgetall(_key(tenant, series, number, scope, key)) for number in numbers]
        return _sum(await asyncio.gather(*reading), first_slot=int(since // series.slot))


def day_of(tenant: str, now: float) -> tuple[str, float]:
    """The key of what a tenant uses this day of UTC, and the seconds until the next one."""
    hours = _SERIES[1]
    number = int(now // hours.span)
    return _key(tenant, hours, number, "tenant", tenant), (number + 1) * hours.span - now


def _hashes(tenant: str, scopes: Mapping[Scope, str], now: float) -> Iterator[tuple[str, int, int]]:
    """The hashes that a call is booked into: key, slot, and seconds to live."""
    for scope, key in scopes.items():
        if scope == "run":
            yield _run_key(tenant, key), 0, _RUN_TTL
            continue
        for series in _SERIES:
            number = int(now // series.span)
            yield _key(tenant, series, number, scope, key), int(now // series.slot), series.ttl


def _run_key(tenant: str, run: str) -> str:
    return f"procession:{tenant}:usage:run:{run}"


def _key(tenant: str, series: _Series, number: int, scope: Scope, key: str) -> str:
    return f"procession:{tenant}:usage:{series.name}{number}:{scope}:{key}"


def _sum(hashes: list[dict[bytes, bytes]], first_slot: int) -> UsageSum:
    totals: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for fields in hashes:
        for field, amount in fields.items():
            slot, measure, model = field.decode().split("|", 2)
            if int(slot) >= first_slot:
                totals[model][measure] += int(amount)
    return UsageSum.of([_usage(model, measures) for model, measures in totals.items()])


def _usage(model: str, measures: Mapping[str, int]) -> ModelUsage:
    return ModelUsage(
        model=model,
        cost=measures["c"] / PICO if measures["n"] > measures["u"] else None,
        input_tokens=measures["i"],
        output_tokens=measures["o"],
        calls=measures["n"],
        unpriced_calls=measures["u"],
    )
