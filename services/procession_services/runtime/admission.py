"""Places for runs: who may begin now, who waits, and who is next, in Redis (docs/adr/0019).

A run that has begun holds a place until it ends or waits for a person. There are so many places for each tenant, and
so many in all; where there is none, an accepted run joins its tenant's queue. A place that is given back goes to the
tenant whose turn it is: turns go round among those that wait and are below their own limit, one run each. A run that
waits for others on its thread is `behind` and takes no place before it is its turn there.

All of it happens inside the scripts that accept a run and that save its end, so it costs no request of its own, and no
crash can leave a place without a run. Whoever saves the end of a run begins those that the script has called; until
that is done they stay on the list of called runs, from where the orchestrator takes those that nobody began.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from procession_services.runtime.ledger import SPENT

__all__ = [
    "ADMIT",
    "CALLED",
    "ENTER",
    "LEAVE",
    "PLACED",
    "PLACES",
    "Called",
    "Over",
    "Places",
    "Queues",
    "Wanted",
    "called",
]

_ROOT: Final = "procession:admission:"
_CAPACITY: Final = f"{_ROOT}capacity"
CALLED: Final = f"{_ROOT}called"
"""Runs that have got a place, and have not begun yet, by when."""
PLACED: Final = f"{_ROOT}places"
"""Runs that have a place."""
_ALL: Final = "*"
_OTHERS: Final = "+"
_NONE: Final = "none"

PLACES: Final = (
    f"local ROOT, ALL, OTHERS = '{_ROOT}', '{_ALL}', '{_OTHERS}'"
    """
local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
end
local function have(what, tenant) return tonumber(redis.call('HGET', ROOT .. what, tenant) or '0') end
local function count(what, tenant, by)
  if redis.call('HINCRBY', ROOT .. what, tenant, by) == 0 then redis.call('HDEL', ROOT .. what, tenant) end
  redis.call('HINCRBY', ROOT .. what, ALL, by)
end
local function used_up(tenant)
  local limits = redis.call('HMGET', ROOT .. 'limits', tenant, OTHERS)
  local limit = tonumber(limits[1] or limits[2] or '')
  return limit and have('running', tenant) >= limit
end
local function queue_of(tenant) return ROOT .. 'queue:' .. tenant end
local function line_up(tenant)
  if not used_up(tenant) then
    redis.call('ZADD', ROOT .. 'turns', 'NX', redis.call('INCR', ROOT .. 'turn'), tenant)
  end
end
local function join(tenant, run)
  redis.call('ZADD', queue_of(tenant), clock(), run)
  count('waiting', tenant, 1)
  line_up(tenant)
end
local function hold(tenant, run)
  if redis.call('SADD', ROOT .. 'places', tenant .. ' ' .. run) == 1 then count('running', tenant, 1) end
end
-- Gives free places to whoever waits, in turns; returns the runs that may begin.
local function call_next()
  local names = {}
  while have('waiting', ALL) > 0 and not used_up(ALL) do
    local tenant = redis.call('ZPOPMIN', ROOT .. 'turns')[1]
    if not tenant then break end
    local run = not used_up(tenant) and redis.call('ZPOPMIN', queue_of(tenant))[1]
    if run then
      count('waiting', tenant, -1)
      hold(tenant, run)
      redis.call('ZADD', ROOT .. 'called', clock(), tenant .. ' ' .. run)
      table.insert(names, tenant .. ' ' .. run)
      if redis.call('EXISTS', queue_of(tenant)) == 1 then line_up(tenant) end
    end
  end
  return names
end
-- The run waits for others on its thread, without a place, and wants none before it is its turn there.
local function stay_behind(tenant, run)
  if redis.call('SADD', ROOT .. 'behind', tenant .. ' ' .. run) == 1 then count('waiting', tenant, 1) end
end
-- It is its turn there, unless it has got in, or has ended, meanwhile.
local function enter(tenant, run)
  if redis.call('SREM', ROOT .. 'behind', tenant .. ' ' .. run) == 0 then return {} end
  count('waiting', tenant, -1)
  join(tenant, run)
  return call_next()
end
-- The run has ended, or waits for a person, or is not there any more.
local function leave(tenant, run)
  if redis.call('SREM', ROOT .. 'places', tenant .. ' ' .. run) == 1 then
    count('running', tenant, -1)
    redis.call('ZREM', ROOT .. 'called', tenant .. ' ' .. run)
    if redis.call('EXISTS', queue_of(tenant)) == 1 then line_up(tenant) end
  elseif redis.call('ZREM', queue_of(tenant), run) == 1 then
    count('waiting', tenant, -1)
    if redis.call('EXISTS', queue_of(tenant)) == 0 then redis.call('ZREM', ROOT .. 'turns', tenant) end
  elseif redis.call('SREM', ROOT .. 'behind', tenant .. ' ' .. run) == 1 then
    count('waiting', tenant, -1)
  end
  return call_next()
end
"""
)
"""Lua: `leave(tenant, run)` and `hold(tenant, run)` for whoever saves the states of runs."""

ADMIT: Final = (
    SPENT
    + """
local function wanted_from(at)
  local function number(k) return tonumber(ARGV[at + k]) end
  return {
    waiting = number(0), crowd = number(1), rate = number(2), tokens = number(3), cost = number(4),
    usage = ARGV[at + 5], day = number(6),
  }
end
-- Why a tenant's request is refused: limit, value now, milliseconds until it may be accepted. False: it is not.
local function over(tenant, wanted)
  if wanted.tokens or wanted.cost then
    local tokens, cost = spent(wanted.usage)
    if wanted.tokens and tokens >= wanted.tokens then return {'tokensPerDay', tokens, wanted.day} end
    if wanted.cost and cost >= wanted.cost then return {'costPerDay', cost, wanted.day} end
  end
  if wanted.rate then
    local gap, now = 1000 / wanted.rate, clock()
    local due = math.max(tonumber(redis.call('GET', ROOT .. 'rate:' .. tenant) or '0'), now)
    local early = due - now - (math.max(math.floor(wanted.rate), 1) - 1) * gap
    if early > 0 then return {'requestsPerSecond', math.ceil((due - now) / gap), math.ceil(early)} end
  end
  return false
end
local function crowded(tenant, wanted)
  for _, each in ipairs({{'waitingRuns', tenant, wanted.waiting}, {'waitingRunsInAll', ALL, wanted.crowd}}) do
    local waiting = have('waiting', each[2])
    if waiting >= each[3] then
      local oldest = redis.call('ZRANGE', queue_of(tenant), 0, 0, 'WITHSCORES')[2]
      return {each[1], waiting, oldest and math.ceil(clock() - oldest) or 0}
    end
  end
  return false
end
local function must_wait(tenant)
  return used_up(ALL) or used_up(tenant) or redis.call('EXISTS', queue_of(tenant)) == 1
end
local function spend_turn(tenant, wanted)
  if not wanted.rate then return end
  local key, gap, now = ROOT .. 'rate:' .. tenant, 1000 / wanted.rate, clock()
  local due = math.max(tonumber(redis.call('GET', key) or '0'), now) + gap
  redis.call('SET', key, string.format('%.3f', due), 'PX', math.ceil(due - now) + 1000)
end
-- Whether a request was stored before another one, by their sequence number in RUNS and the time. Both have to say so:
-- a stream that was made anew counts from 1 again, and clocks of servers differ.
local function earlier(asked, others)
  local number, at = string.match(asked, '^(%d+):(.+)$')
  local other_number, other_at = string.match(others or '', '^(%d+):(.+)$')
  return number and other_number and tonumber(number) < tonumber(other_number) and at < other_at
end
-- The run joins a line, before those that were asked for later; but not before the head, which may have begun.
local function join_line(line, head, run, asked)
  local later, other = {}, redis.call('LINDEX', line, -1)
  while other and other ~= head and earlier(asked, redis.call('HGET', other, 'asked')) do
    table.insert(later, 1, other)
    other = redis.call('LINDEX', line, -1 - #later)
  end
  redis.call('RPUSH', line, run)
  for _, each in ipairs(later) do
    redis.call('LREM', line, -1, each)
    redis.call('RPUSH', line, each)
  end
end
local tenant, run = string.match(ARGV[3], '^(%S+) (%S+)$')
local queued, asked, wanted = ARGV[5], ARGV[11], wanted_from(12)
local ahead = KEYS[4] and first(KEYS[4])
local waits = ahead or must_wait(tenant)
local why = over(tenant, wanted)
if not why and ahead and ARGV[6] == 'reject' then return {'ahead', ahead} end
why = why or waits and crowded(tenant, wanted)
if why then return {'over', unpack(why)} end
if waits and queued == '' then return {'wait'} end
spend_turn(tenant, wanted)
local state, out = ARGV[1], ARGV[8]
if waits then state, out = queued, 0 end
redis.call('HSET', KEYS[1], 'state_v', 1, 'state', state, 'plan', ARGV[7], 'out', out,
  'numbered_in', ARGV[9])
if ARGV[10] ~= '' and not waits then claim(KEYS[1], out, ARGV[10]) end
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[3])
if KEYS[4] then
  redis.call('HSET', KEYS[1], 'asked', asked)
  join_line(KEYS[4], ahead, KEYS[1], asked)
  keep(KEYS[4], ARGV[4])
  local interrupted = KEYS[4] .. ':interrupted'
  if earlier(asked, redis.call('GET', interrupted)) then
    redis.call('HSET', KEYS[1], 'cancelled', '1')
    kept[4] = '1'
  elseif ARGV[6] == 'interrupt' then redis.call('SET', interrupted, asked, 'EX', ARGV[4]) end
end
local names = {}
if ahead then stay_behind(tenant, run)
elseif waits then join(tenant, run) names = call_next()
else hold(tenant, run) end
return {'new', kept[4], waits and 1 or 0, unpack(names)}
"""
)
"""Lua, behind `PLACES` and what the store has of lines and of the id: a new run begins, waits, or is refused."""

_LET_IN: Final = (
    PLACES
    + """
redis.call('DEL', ROOT .. 'limits')
for at = 2, #ARGV, 2 do redis.call('HSET', ROOT .. 'limits', ARGV[at], ARGV[at + 1]) end
for _, tenant in ipairs(redis.call('HKEYS', ROOT .. 'waiting')) do
  if tenant ~= ALL then line_up(tenant) end
end
local names = redis.call('ZRANGEBYSCORE', ROOT .. 'called', '-inf', clock() - tonumber(ARGV[1]))
for _, name in ipairs(call_next()) do table.insert(names, name) end
return names
"""
)
LEAVE: Final = (
    PLACES
    + """
redis.call('ZREM', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])
for at = 2, #KEYS do redis.call('DEL', KEYS[at]) end
return leave(ARGV[1], ARGV[2])
"""
)
ENTER: Final = PLACES + "return enter(ARGV[1], ARGV[2])"
_OFFER_SECONDS: Final = 15
_CALLED_MS: Final = 3_000
"""A run that was called longer ago than this, and has not begun, was called by somebody who died."""


class Called(msgspec.Struct, frozen=True):
    """A run that has got a place and is to begin."""

    tenant: str
    run: str


def called(names: list[bytes]) -> tuple[Called, ...]:
    """What a script says may begin."""
    return tuple(Called(*name.decode().split(" ")) for name in names)


class Wanted(msgspec.Struct, frozen=True):
    """The limits that a request is held against; None: there is none.

    Attributes:
        waiting: How many runs of the tenant may wait.
        crowd: How many of all tenants.
        rate: Requests a second.
        tokens: Tokens of this day.
        cost: Picodollars of this day.
        usage: The key of what the tenant has used this day.
        day: Milliseconds until the next one.
    """

    waiting: int
    crowd: int
    rate: float | None = None
    tokens: int | None = None
    cost: int | None = None
    usage: str = ""
    day: int = 0

    def arguments(self) -> list[Any]:
        """As a script takes them."""
        values = (self.waiting, self.crowd, self.rate, self.tokens, self.cost, self.usage, self.day)
        return ["" if value is None else value for value in values]


class Over(msgspec.Struct, frozen=True):
    """Why a request is refused: which limit, how much there is of what it limits, and for how long at least."""

    limit: str
    current: int
    wait_ms: int


class Queues(msgspec.Struct, frozen=True):
    """How many runs are at work and wait, by tenant."""

    running: Mapping[str, int]
    waiting: Mapping[str, int]


class Places:
    """What the orchestrator and the gateways do about places apart from runs."""

    def __init__(self, redis: "Redis") -> None:
        self._redis: Any = redis  # redis-py's annotations cover every protocol and decoding at once
        self._let_in = redis.register_script(_LET_IN)

    async def offer(self, replica: str, places: int) -> None:
        """Says that a replica can work on so many runs at once, for the next seconds; to be repeated."""
        await self._redis.zadd(_CAPACITY, {f"{places} {replica}": await self._now() + _OFFER_SECONDS})

    async def withdraw(self, replica: str, places: int) -> None:
        """Takes that back."""
        await self._redis.zrem(_CAPACITY, f"{places} {replica}")

    async def offered(self) -> int:
        """How many runs all replicas together can work on."""
        await self._redis.zremrangebyscore(_CAPACITY, "-inf", await self._now())
        return sum(int(name.split()[0]) for name in await self._redis.zrange(_CAPACITY, 0, -1))

    async def _now(self) -> float:
        """The time of Redis, which all replicas share."""
        whole, micros = await self._redis.time()
        return float(whole + micros / 1e6)

    async def let_in(
        self, *, in_all: int, by_default: int | None, named: Mapping[str, int | None]
    ) -> tuple[Called, ...]:
        """Sets how many runs may be at work, in all and by tenant; gives those that are to begin.

        Among them are those that somebody else has called, and died before they began.
        """
        limits = {_ALL: in_all, _OTHERS: by_default, **named}
        pairs = [part for name, n in limits.items() for part in (name, _NONE if n is None else n)]
        return called(await self._let_in(keys=[], args=[_CALLED_MS, *pairs]))

    async def queues(self) -> Queues:
        """How many runs are at work, and how many wait."""
        async with self._redis.pipeline(transaction=True) as pipe:
            running, waiting = await pipe.hgetall(f"{_ROOT}running").hgetall(f"{_ROOT}waiting").execute()
        return Queues(_by_tenant(running), _by_tenant(waiting))


def _by_tenant(counts: dict[bytes, bytes]) -> dict[str, int]:
    return {name.decode(): int(n) for name, n in counts.items() if name.decode() != _ALL}
