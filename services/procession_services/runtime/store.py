"""A run in Redis: its plan, its state and its context; the latter two have each a version (design.md 6).

One hash per run, `procession:<tenant>:run:<run>`, so that one command reads or writes all that belongs together, and a
sorted set of deadlines. A list per thread, the line, has the runs that are at work there or wait for their turn. Every
write is a compare-and-set in a script.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

import orjson

from procession_schemas.memory import Concurrency
from procession_services.runtime import admission, scripts
from procession_services.runtime.admission import Called, Over, Wanted, called
from procession_services.runtime.clock import seconds
from procession_services.runtime.redis_client import RedisClient, Script
from procession_services.runtime.run_records import (
    Admission,
    Beginning,
    Committed,
    Saved,
    Stand,
    StateChange,
    StoredContext,
    StoredState,
)

DEADLINES = "procession:deadlines"
_LATE_SECONDS = 60
"""How late an orchestrator may come to a deadline and still has to find the run."""
_AT_ONCE = 256
"""Runs that are asked for at once."""
_SILENT_SECONDS = 3_600
"""How long it is known since when an owner of a command is silent: much longer than a lease."""
ANSWER_SECONDS = 5.0
"""How long somebody who asks is kept waiting by a Redis that is away; work in hand waits longer."""


def line_key(tenant: str, resource: str, thread: str) -> str:
    """The key of the line on a thread: the hashes of the runs that are at work there or wait, the first one first."""
    return f"procession:{tenant}:line:{quote(resource, safe='')}:{quote(thread, safe='')}"


def run_key(tenant: str, run: str) -> str:
    """The key of a run's hash."""
    return f"procession:{tenant}:run:{run}"


def _silent_key(owner: str) -> str:
    return f"procession:admission:silent:{owner}"


def _told_key(tenant: str, run: str) -> str:
    return f"{run_key(tenant, run)}:told"


class RunStore:
    """Reads and writes runs.

    Args:
        redis: The server.
        ttl: Seconds that a run is kept after its last change, and after its deadline: it must be there to be ended.
        finished_ttl: Seconds that it is kept after its end was told.
        told_ttl: Seconds that its id is not for reuse: as long as its end can be read.
    """

    def __init__(self, redis: RedisClient, *, ttl: int, finished_ttl: int, told_ttl: int) -> None:
        self.redis: Any = redis  # redis-py's annotations cover every protocol and decoding at once
        self._ttl = ttl
        self._ahead_ms = 0.0  # the clock of Redis, of ours
        self._finished_ttl, self._told_ttl = finished_ttl, told_ttl
        self._commit = partial(redis.run, Script(scripts.COMMIT))
        self._end = partial(redis.run, Script(scripts.END))
        self._take = partial(redis.run, Script(scripts.TAKE))
        self._save = partial(redis.run, Script(scripts.SAVE))
        self._refuse = partial(redis.run, Script(scripts.REFUSE))
        self._admit = partial(redis.run, Script(scripts.ADMIT))
        self._next = partial(redis.run, Script(scripts.NEXT))
        self._log_parts = partial(redis.run, Script(scripts.LOG_PARTS))
        self._cancel = partial(redis.run, Script(scripts.CANCEL))
        self._stands = partial(redis.run, Script(scripts.STANDS))
        self._unclaim = partial(redis.run, Script(scripts.UNCLAIM))
        self._silent = partial(redis.run, Script(scripts.SILENT))
        self._enter = partial(redis.run, Script(admission.ENTER))
        self._leave = partial(redis.run, Script(admission.LEAVE))

    @property
    def life(self) -> int:
        """Tells one start of Redis from the next: what it has answered in an earlier one it may have forgotten."""
        return int(self.redis.life)

    async def load_context(self, tenant: str, run: str) -> dict[str, Any] | None:
        """The context as last committed; None when there is none."""
        context = await self.redis.hget(run_key(tenant, run), "ctx")
        return orjson.loads(context) if context else None

    async def take_context(
        self,
        tenant: str,
        run: str,
        *,
        seq: int,
        owner: str,
        attempt: int = 0,
        message: int | None = None,
        instead_of: str | None = None,
    ) -> StoredContext | None:
        """Claims command `seq` and gives the run's context; what another owner of the command does no longer counts.

        Args:
            tenant: The run's tenant.
            run: The run.
            seq: The number of the command.
            owner: Who claims it.
            attempt: How often the command was delivered; 0 where it is the caller's own.
            message: Its number in WORK; None where the command goes with the message of the one before it.
            instead_of: The only owner from whom it may be taken; None: from anybody.

        Returns:
            None where the command is not given: on a first delivery, because another owner has claimed it; on a later
            one, because an owner other than `instead_of` has.
        """
        number = "" if message is None else message
        args = [seq, owner, attempt, number, *([] if instead_of is None else [instead_of])]
        got = await self._take(keys=[run_key(tenant, run)], args=args)
        return _stored(got[:11]) if isinstance(got, list) else None

    async def claimed_by(self, tenant: str, run: str, seq: int) -> str | None:
        """The owner that has claimed command `seq`; None where nobody has, or the run is at another one."""
        claim = (await self.redis.hget(run_key(tenant, run), "claim") or b"").decode()
        claimed, _, owner = claim.partition(":")
        return owner if claimed == str(seq) else None

    async def message_in_hand(self, tenant: str, run: str) -> int:
        """The number in WORK of the message for which somebody has claimed a run's command; 0 where nobody has."""
        return int(await self.redis.hget(run_key(tenant, run), "message") or 0)

    async def in_hand(self) -> list[tuple[str, int]]:
        """Who has claimed the commands that runs wait for, or those before them, and the numbers of their messages."""
        found = list[tuple[str, int]]()
        runs = await self.at_work()
        for start in range(0, len(runs), _AT_ONCE):
            async with self.redis.pipeline(transaction=False) as pipe:
                for tenant, run in runs[start : start + _AT_ONCE]:
                    pipe.hmget(run_key(tenant, run), "out", "claim", "message")
                for out, claim, message in await pipe.execute():
                    if claim and message and int(out or 0):
                        found.append((claim.decode().partition(":")[2], int(message)))
        return found

    async def stands(self, runs: Sequence[tuple[str, str]]) -> list[Stand]:
        """Where runs stand, each given by its tenant and its name."""
        stands = list[Stand]()
        for start in range(0, len(runs), _AT_ONCE):
            some = runs[start : start + _AT_ONCE]
            keys = [key(tenant, run) for tenant, run in some for key in (run_key, _told_key)]
            for version, out, claim, told in await self._stands(keys=keys):
                claimed, _, owner = (claim or b"").partition(b":")
                stands.append(Stand(bool(told) or not version, owner.decode() if claimed == out else ""))
        return stands

    async def unclaim(self, tenant: str, run: str, owner: str, *, begun: bool) -> bool:
        """Takes back the claim of an owner that does not do the command; one that was `begun` counts as an attempt.

        Says whether it was the owner's.
        """
        args = [owner, "1" if begun else ""]
        return bool(await self._unclaim(keys=[run_key(tenant, run)], args=args))

    async def silent_for(self, owner: str) -> float:
        """Seconds since an owner of a command was first asked in vain, by anybody, and not `heard` after that."""
        return int(await self._silent(keys=[_silent_key(owner)], args=[_SILENT_SECONDS])) / 1000

    def heard(self, owner: str) -> None:
        """Notes soon that an owner has answered."""
        self.redis.later(f"cannot record that {owner} has answered", "DEL", _silent_key(owner))

    async def times_begun(self, tenant: str, run: str, seq: int) -> int:
        """How often command `seq` was begun, whatever NATS says of its deliveries."""
        begun = (await self.redis.hget(run_key(tenant, run), "begun") or b"").decode()
        counted, _, times = begun.partition(":")
        return int(times) if counted == str(seq) else 0

    async def commit_context(
        self,
        tenant: str,
        run: str,
        *,
        version: int,
        seq: int,
        owner: str,
        data: bytes,
        result: bytes,
        change: StateChange,
        parts: bytes = b"",
    ) -> Committed | None:
        """Stores the context and the result of command `seq` together, if its claim is still the owner's.

        With them goes what stream hooks received, if `parts` are given, into the run's log; and the change of the run's
        state, unless somebody else has changed the state meanwhile.

        Returns:
            The result that counts: ours, or the one stored before for the same command; None when the command is
            stale (another one has moved on) and must say nothing.
        """
        args = [version, seq, data, result, owner, parts, *self._state_args(tenant, run, change)]
        done = await self._commit(keys=self._keys(tenant, run, change.line), args=args)
        if isinstance(done, bytes):
            return Committed(done, state_saved=False)
        if isinstance(done, list):
            cancelled, *names = done
            return Committed(result, state_saved=True, called=called(names), cancelled=bool(cancelled))
        return Committed(result, state_saved=False) if done else None

    async def end_run(
        self, tenant: str, run: str, *, version: int, seq: int, owner: str, change: StateChange
    ) -> tuple[Called, ...] | None:
        """Saves the end of a run that command `seq` has brought, without the context, which nobody reads any more.

        Returns:
            Who may begin now; None where it has to be committed as any other command: its claim is somebody else's,
            or somebody has changed the state meanwhile.
        """
        args = [version, seq, owner, *self._state_args(tenant, run, change)]
        done = await self._end(keys=self._keys(tenant, run, change.line), args=args)
        return called(done) if isinstance(done, list) else None

    def _keys(self, tenant: str, run: str, line: str = "") -> list[str]:
        key = run_key(tenant, run)
        return [key, DEADLINES, f"{key}:parts", *([line] if line else [])]

    def _state_args(self, tenant: str, run: str, change: StateChange) -> list[Any]:
        place = "leave" if change.finished or change.waits else "hold" if change.resumed else ""
        return [
            change.version,
            change.state,
            change.deadline_ms,
            f"{tenant} {run}",
            self._lasts(change.deadline_ms),
            "1" if change.finished else "",
            change.plan,
            change.out,
            place,
            change.numbered_in,
            change.claimed_by,
        ]

    def _lasts(self, deadline_ms: int) -> int:
        """Seconds that the keys of a run are kept whose end was not told."""
        return max(self._ttl, _LATE_SECONDS) + max(0, math.ceil(deadline_ms / 1000 - seconds()))

    async def admit(
        self,
        tenant: str,
        run: str,
        *,
        beginning: Beginning,
        deadline_ms: int,
        wanted: Wanted,
        line: str = "",
        policy: Concurrency = "queue",
        asked: str = "",
        queued: bytes = b"",
        until: float | None = None,
    ) -> Admission:
        """Saves the state of a new run, unless its id is or was taken, a request was refused, or a limit is reached.

        With a `line` the run joins it, by where it was `asked` for (`Delivery.place`). Where others are in it, or there
        is no place, it is saved as `queued` instead; without that it is not admitted, and neither is one whose `policy`
        is to be rejected there. One that interrupts cancels those that were asked for before it, and come later.

        Raises:
            TimeoutError: `until` then, on the loop's clock, Redis has not come to it; nor does it later.
        """
        head: list[Any] = [
            beginning.state,
            deadline_ms,
            f"{tenant} {run}",
            self._lasts(deadline_ms),
            queued,
            policy,
            beginning.plan,
            beginning.out,
            beginning.numbered_in,
            beginning.claimed_by,
            asked,
        ]
        keys = self._keys(tenant, run, line)
        match await self._in_time(self._admit, keys, [*head, *wanted.arguments()], until):
            case [b"known", *_] as known:
                return _known(known)
            case [b"over", limit, current, wait_ms]:
                return Admission(over=Over(limit.decode(), int(current), int(wait_ms)))
            case [b"ahead", first]:
                return Admission(ahead=_run_of(tenant, first))
            case [b"new", cancelled, waits, *names]:
                return Admission(queued=bool(waits), cancelled=bool(cancelled), called=called(names))
            case _:
                return Admission(waits=True)

    async def enter(self, tenant: str, run: str) -> tuple[Called, ...]:
        """Lets a run that waited for others on its thread wait for a place; gives those that may beginning."""
        return called(await self._enter(args=[tenant, run]))

    async def begun(self, tenant: str, run: str) -> None:
        """Notes that a run that was called has begun."""
        await self.redis.zrem(admission.CALLED, f"{tenant} {run}")

    async def next_in_line(self, tenant: str, line: str) -> str | None:
        """The first run in a line where nobody has begun to work on it; runs that Redis has forgotten are left out."""
        found = await self._next(keys=[line])
        return None if found is None else _run_of(tenant, found)

    async def ahead(self, tenant: str, run: str, line: str) -> list[str]:
        """The runs that are ahead of one in a line, the first one first."""
        runs = [_run_of(tenant, key) for key in await self.redis.lrange(line, 0, -1)]
        return runs[: runs.index(run)] if run in runs else []

    async def load_state(self, tenant: str, run: str) -> StoredState | None:
        """The state of a run and its plan; None when there is none."""
        version, state, plan = await self.redis.hmget(run_key(tenant, run), ["state_v", "state", "plan"])
        return None if state is None else StoredState(int(version or 0), state, plan)

    async def save_state(self, tenant: str, run: str, change: StateChange) -> Saved:
        """Stores the state if nobody else did since `change.version`.

        A finished run leaves only its state and its plan behind: context and stream parts go.
        """
        args = self._state_args(tenant, run, change)
        done = await self._save(keys=self._keys(tenant, run, change.line), args=args)
        return Saved(saved=True, called=called(done)) if isinstance(done, list) else Saved(saved=False)

    async def mark_cancelled(self, tenant: str, run: str) -> None:
        """Lets every service that picks up work of the run see that it was cancelled."""
        await self._cancel(keys=[run_key(tenant, run)], args=[self._ttl])

    async def is_cancelled(self, tenant: str, run: str) -> bool:
        """Whether somebody has cancelled a run."""
        return bool(await self.redis.hexists(run_key(tenant, run), "cancelled"))

    async def refuse(self, tenant: str, run: str, digest: str) -> Admission:
        """Notes that a request is refused, unless its id is or was taken; gives what was known of that."""
        return _known(await self._in_time(self._refuse, [run_key(tenant, run)], [digest, self._told_ttl]))

    async def _in_time(
        self,
        script: Callable[..., Awaitable[Any]],
        keys: list[str],
        args: list[Any],
        until: float | None = None,
    ) -> Any:
        """Runs a script that does nothing if the caller has stopped waiting when it reaches Redis.

        The limit that the script gets is a time of Redis' clock. Where that clock is not known yet, or was set, the
        script answers `late` with its own time, and is asked again with the right limit. How long that answer took
        counts against us, so that nobody is let in too late.

        Args:
            script: Answers `late` and its time in milliseconds where it comes too late.
            keys: Its keys.
            args: Its arguments, before the limit.
            until: How long the caller waits, on the clock of the event loop; default: `ANSWER_SECONDS` from now.

        Raises:
            TimeoutError: It was late.
        """
        clock = asyncio.get_running_loop().time
        last = clock() + ANSWER_SECONDS if until is None else until
        while True:
            reply = await script(keys=keys, args=[*args, round(last * 1000 + self._ahead_ms)])
            if not reply or reply[0] != b"late":
                return reply
            if clock() > last:
                raise TimeoutError
            self._ahead_ms = reply[1] - clock() * 1000

    def mark_told(self, tenant: str, run: str, digest: str) -> None:
        """Notes soon that everybody can read the end of a run, which `digest` asked for: its id is not for reuse.

        Nobody needs to tell it any more, so the run has no deadline, and its state, with the result, soon goes.
        """
        what = f"cannot record that the end of run {run} was announced"
        self.redis.later(what, "SET", _told_key(tenant, run), digest, "EX", self._told_ttl)
        what = f"cannot remove the deadline of run {run}, at which its end will therefore be announced again"
        self.redis.later(what, "ZREM", DEADLINES, f"{tenant} {run}")
        what = f"cannot shorten the time for which the state of run {run} is kept after its end"
        self.redis.later(what, "EXPIRE", run_key(tenant, run), self._finished_ttl)

    async def is_told(self, tenant: str, run: str) -> bool:
        """Whether everybody can read the end of a run."""
        return bool(await self.redis.exists(_told_key(tenant, run)))

    async def next_deadlines(self, most: int) -> list[tuple[int, str, str]]:
        """The earliest deadlines, `most` at most (milliseconds since the epoch), each with its tenant and run."""
        found = await self.redis.zrange(DEADLINES, 0, most - 1, withscores=True)
        named = ((int(score), bytes(member).decode().partition(" ")) for member, score in found)
        return [(deadline, tenant, run) for deadline, (tenant, _, run) in named]

    async def at_work(self) -> list[tuple[str, str]]:
        """Tenant and run of all that have a deadline or a place, those that wait for a person among them."""
        async with self.redis.pipeline(transaction=True) as pipe:
            listed, placed = await pipe.zrange(DEADLINES, 0, -1).smembers(admission.PLACED).execute()
        pairs = (member.decode().partition(" ") for member in dict.fromkeys([*listed, *placed]))
        return [(tenant, run) for tenant, _, run in pairs]

    async def put_off(self, tenant: str, run: str, deadline_ms: int) -> None:
        """Moves the deadline of a run, if it still has one, and not a later one."""
        await self.redis.zadd(DEADLINES, {f"{tenant} {run}": deadline_ms}, xx=True, gt=True)

    async def forget(self, tenant: str, run: str) -> tuple[Called, ...]:
        """Takes a run that is not there any more off all lists; gives those that may begin in its place."""
        return called(await self._leave(keys=[DEADLINES], args=[tenant, run]))

    async def discard(self, tenant: str, run: str) -> tuple[Called, ...]:
        """Forgets a run that is there, after its end was told: with all that is stored of it."""
        key, deadlines, *more = self._keys(tenant, run)
        return called(await self._leave(keys=[deadlines, key, *more], args=[tenant, run]))

    async def append_parts(self, tenant: str, run: str, entry: bytes) -> None:
        """Adds what the stream hooks received during one command to the run's log, unless the run has ended."""
        key = run_key(tenant, run)
        await self._log_parts(keys=[key, f"{key}:parts"], args=[entry, self._ttl])

    async def load_parts(self, tenant: str, run: str, start: int) -> list[bytes]:
        """The entries of that log from `start` on."""
        return list(await self.redis.lrange(f"{run_key(tenant, run)}:parts", start, -1))


def _run_of(tenant: str, key: bytes) -> str:
    return key.decode().removeprefix(run_key(tenant, ""))


def _known(reply: list[Any] | None) -> Admission:
    if reply is None:
        return Admission()
    _, version, state, refused, told, plan = reply
    return Admission(
        None if state is None else StoredState(int(version or 0), state, plan),
        refused=refused.decode() if refused else None,
        told=told.decode() if told else None,
    )


def _stored(fields: list[Any]) -> StoredContext:
    version, seq, context, result, cancelled, state_version, state, plan, out, claims, numbered_in = fields
    return StoredContext(
        int(version or 0),
        -1 if seq is None else int(seq),
        context or None,
        result,
        bool(cancelled),
        int(state_version or 0),
        state,
        plan,
        int(out or 0),
        claims,
        int(numbered_in or 0),
    )
