"""Accepts or refuses run requests."""

import asyncio
import logging
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from procession_schemas import subjects
from procession_schemas.agent import Agent
from procession_schemas.fingerprint import fingerprint
from procession_schemas.run import Failure, RunRequest
from procession_schemas.run_ids import answer_id
from procession_schemas.validation import RefusedError
from procession_schemas.work import Control
from procession_services.bus import Delivery, Hold, HopelessError
from procession_services.bus.inspect import longest_request
from procession_services.orchestrator.addressed import addressed, derived_run_id, run_id_of
from procession_services.orchestrator.answers import Answers
from procession_services.orchestrator.core.plan import opening, parse_request
from procession_services.orchestrator.lapses import Lapses
from procession_services.orchestrator.limits import wanted
from procession_services.orchestrator.places import PlaceKeeper
from procession_services.orchestrator.planner import Planner
from procession_services.orchestrator.turns import AT_ONCE, Turns
from procession_services.processor_host.driver import Driver, change, line_of
from procession_services.processor_host.holders import Claimed
from procession_services.processor_host.service import Host
from procession_services.runs.events import Effect, Started
from procession_services.runs.reducer import outstanding, reduce
from procession_services.runs.state import RunState
from procession_services.runs.stored import UnreadableError
from procession_services.runtime import telemetry
from procession_services.runtime.admission import Over
from procession_services.runtime.clock import iso, now, seconds
from procession_services.runtime.redis_client import AWAY, UNANSWERED
from procession_services.runtime.redis_refusals import NotAllowedError
from procession_services.runtime.reload import Watched
from procession_services.runtime.run_records import Admission, Beginning
from procession_services.runtime.store import ANSWER_SECONDS
from procession_services.runtime.tasks import ended

__all__ = ["Requests"]

log = logging.getLogger(__name__)
_STORE_AWAY: Final = Failure(
    code="STORE_UNAVAILABLE",
    message="Redis does not answer; send the same request again later",
    is_retryable=True,
)
_STORE_REFUSES: Final = Failure(
    code="STORE_UNAVAILABLE",
    message="the orchestrator's Redis user lacks a permission, which its log names; send the same request again later",
    is_retryable=True,
)
_INTAKE_SHARE: Final = 128
"""Requests of one tenant that are read in any case."""
_LONGEST_IN_HAND: Final = 32_768
"""Bytes of a request that is kept for as long as this process works on its run; a longer one leaves room for others."""


class _Admitted(msgspec.Struct, frozen=True):
    """A run that was admitted, now or before, and its first command where this process does that at once.

    Attributes:
        kept: Whether Redis has kept that.
    """

    state: RunState
    kept: "asyncio.Future[bool]"
    first: Claimed | None = None


class Requests:
    """Handles requests. Any replica handles any of them.

    Agents are looked up when a run is accepted, so a changed file counts for the next one.
    """

    def __init__(
        self,
        host: Host,
        driver: Driver,
        agents: Watched[dict[str, Agent]],
        keeper: PlaceKeeper,
        lapses: Lapses,
    ) -> None:
        self._agents = agents
        self._planner = Planner(host.registry, host.settings, agents)
        self._answers = Answers(host, driver, keeper, lapses)
        self._driver, self._keeper, self._lapses = driver, keeper, lapses
        self._handover = host.handover
        self._turns = Turns(AT_ONCE)
        self._bus, self._store, self._begun, self._settings = host.bus, host.store, host.begun, host.settings

    async def on_request(self, delivery: Delivery) -> None:
        """A run request: accept it, or answer with one clear error. Tenants take turns.

        The request is acknowledged when Redis has surely written what became of it, and this process works on the run
        no more. Where Redis may not have written that, the request is handled again.

        Raises:
            HopelessError: Its subject names no tenant, so there is nobody who could hear an answer.
            LostError: Somebody else works on the run, and may die with that.
        """
        tenant, _ = addressed(delivery)
        waits = False
        while True:
            try:
                await self._request(tenant, delivery)
            except (TimeoutError, NotAllowedError, *UNANSWERED) as error:
                if await self._was_accepted(tenant, delivery):
                    if not waits:
                        log.warning("%s, which was accepted, waits for Redis: %r", run_id_of(delivery), error)
                    waits = True
                    await delivery.hold.keep()
                    continue
                if not isinstance(error, NotAllowedError):
                    raise
                await self._answers.reject(tenant, run_id_of(delivery), delivery, _STORE_REFUSES)
            return

    async def times_begun(self, delivery: Delivery) -> int:
        """How often a request was begun, and not done: one whose run was accepted is only kept after that."""
        tenant, _ = addressed(delivery)
        times = await self._begun.times(delivery.place)
        return times if await self._was_accepted(tenant, delivery) else 1 + times

    async def _was_accepted(self, tenant: str, delivery: Delivery) -> bool:
        """Whether the run of a request that was kept for it has begun: after that, nothing is told of the request."""
        if delivery.attempt == 1:
            return False
        return await self._bus.stored.last_event(tenant, run_id_of(delivery), "run.accepted") is not None

    async def _request(self, tenant: str, delivery: Delivery) -> None:
        most = max(self._keeper.tenants.of(tenant).waiting_runs, _INTAKE_SHARE)
        is_new = delivery.attempt == 1
        if is_new and self._turns.waiting(tenant) >= most:
            await self._reject_unread(tenant, delivery)
            return
        speaks = is_new and len(delivery.body) <= _LONGEST_IN_HAND
        with await self._turns.turn(tenant):
            leap = not is_new or self._may_be_forgotten(delivery)
            async with self._begun.counted(delivery.place, delivery.attempt):
                if leap and await self._is_over(tenant, delivery):
                    return
                admitted = await self._requested(delivery, leap=leap, hold=delivery.hold if speaks else None)
        if admitted is None or admitted.first is None:
            await self._kept(admitted, delivery)
            return
        keeping = asyncio.create_task(self._told_and_kept(admitted, delivery))
        try:
            await self._begin(admitted.state, admitted.first, delivery)
            await keeping
        finally:
            await ended(keeping)

    async def _told_and_kept(self, admitted: _Admitted, delivery: Delivery) -> None:
        await self._answers.accepted(admitted.state, "accepted")
        await self._kept(admitted, delivery)

    async def _kept(self, admitted: _Admitted | None, delivery: Delivery) -> None:
        """Returns when Redis has surely written what became of a request; handles it again as long as it has not."""
        while admitted is not None and not await admitted.kept:
            tenant, run, digest = admitted.state.tenant, admitted.state.run, admitted.state.fingerprint
            if await self._lapses.told(tenant, run, digest):
                self._store.mark_told(tenant, run, digest)
                return
            with await self._turns.turn(tenant):
                admitted = await self._requested(delivery, leap=True)

    async def _begin(self, state: RunState, first: Claimed, delivery: Delivery) -> None:
        """Does the first command of a run, and what follows here.

        Where that fails the request comes again, and the command is sent. What Redis does not allow there is not the
        request's failure, which was admitted: it is sent at once.
        """
        try:
            await self._handover.follow(first, replace(delivery, traceparent=state.traceparent))
        except NotAllowedError as error:
            log.warning("run %s of tenant %s continues through NATS: %s", state.run, state.tenant, error)
            await self._driver.again(state.tenant, state.run)

    def _may_be_forgotten(self, delivery: Delivery) -> bool:
        """Whether the request is older than this life of Redis, so that somebody may have had it before."""
        stored = datetime.fromisoformat(delivery.stored_at).timestamp()
        return stored < self._store.life + 1

    async def _requested(
        self, delivery: Delivery, *, leap: bool, hold: Hold | None = None
    ) -> _Admitted | None:
        """Accepts a request, or answers why not; gives the run that was admitted, now or before.

        With `leap` Redis may have forgotten that it was, and what was done then. A `hold` speaks for what the run needs
        first, too, if this process does that.
        """
        _, tenant, agent_name = subjects.parse(delivery.subject)
        run_id = derived_run_id(delivery)
        digest = fingerprint(delivery.subject, delivery.body)
        try:
            request = parse_request(delivery.body, *longest_request(self._settings, self._bus.max_payload))
            run_id = request.run_id or run_id
        except RefusedError as invalid:
            await self._answers.refuse(tenant, run_id_of(delivery), agent_name, delivery, invalid.failure)
            return None
        try:
            fresh = await self._accepted(run_id, digest, request, delivery)
        except RefusedError as invalid:
            await self._answers.refuse(tenant, run_id, agent_name, delivery, invalid.failure)
            return None
        fresh.leap = leap
        return await self._admitted(fresh, agent_name, delivery, hold)

    async def _is_over(self, tenant: str, delivery: Delivery) -> bool:
        """Whether the run of the request has ended, and Redis has forgotten it: it must not begin once more."""
        run, digest = run_id_of(delivery), fingerprint(delivery.subject, delivery.body)
        async with asyncio.timeout(ANSWER_SECONDS):
            known = await self._store.load_state(tenant, run)
        if known is not None or not await self._lapses.told(tenant, run, digest):
            return False
        self._store.mark_told(tenant, run, digest)
        return True

    async def _admitted(
        self, fresh: RunState, agent: str, delivery: Delivery, hold: Hold | None
    ) -> _Admitted | None:
        """Admits a new run, and has it begin where there is a place; or answers why not."""
        tenant, run_id = fresh.tenant, fresh.run
        begun, effects = reduce(fresh, Started())
        with self._driver.claiming(effects, hold) as first:
            owner = first.owner if first else ""
            beginning = Beginning(begun.to_json(), fresh.plan.stored, begun.seq, begun.life, owner)
            queued = fresh.but(queued=True)
            known = await self._admit(fresh, beginning, queued, delivery.place)
            if known.state is not None or known.told is not None:
                again = await self._answers.known(known, fresh, delivery)
                return _Admitted(fresh, self._lapses.kept()) if again else None
            if known.refused not in (None, fresh.fingerprint):
                await self._answers.conflict(tenant, run_id, delivery)
                return None
            if known.over is not None:
                await self._answers.over_limit(tenant, run_id, delivery, known.over)
                return None
            if known.refused is not None or known.ahead is not None:
                await self._answers.refuse(tenant, run_id, agent, delivery, _busy(known.ahead))
                return None
            state, effects = (queued, outstanding(queued)) if known.queued else (begun, effects)
            self._driver.on_deadline_added(state.deadline_ms)
            telemetry.observer().run_accepted(tenant, state.agent)
            if known.cancelled:
                state, effects = _cancelled(state if known.queued else fresh.but(seq=begun.seq))
                saved = await self._store.save_state(tenant, run_id, change(state, 1))
                if not saved.saved:  # somebody was quicker, and has said what follows
                    return _Admitted(state, self._lapses.kept())
            if first is None or state is not begun:
                telling = self._answers.accepted(state, "accepted")
                await asyncio.gather(telling, self._driver.perform(state, effects))
                await self._driver.begin(known.called)
                return _Admitted(state, self._lapses.kept())
            await self._driver.perform(state, effects, but=first.command)
            await self._driver.begin(known.called)
            return _Admitted(state, self._lapses.kept(), first.claimed(beginning.stored()))

    async def _admit(self, fresh: RunState, beginning: Beginning, queued: RunState, place: str) -> Admission:
        """Saves a new run, begun or waiting for its turn."""
        line = fresh.line
        limits = self._keeper.tenants.of(fresh.tenant)
        asked: dict[str, Any] = {
            "beginning": beginning,
            "deadline_ms": fresh.deadline_ms,
            "wanted": wanted(fresh.tenant, limits, self._settings.waiting_runs, seconds()),
            "line": line_of(fresh),
            "policy": line.policy if line else "queue",
            "asked": place,
        }
        likely = queued.to_json() if line and line.policy != "reject" else b""
        async with asyncio.timeout(ANSWER_SECONDS) as limit:
            asked["until"] = limit.when()
            known = await self._store.admit(fresh.tenant, fresh.run, **asked, queued=likely)
            if known.waits:
                known = await self._store.admit(fresh.tenant, fresh.run, **asked, queued=queued.to_json())
        return known

    async def _accepted(self, run_id: str, digest: str, request: RunRequest, delivery: Delivery) -> RunState:
        _, tenant, agent_name = subjects.parse(delivery.subject)
        agent = request.agent or self._agents.value.get(agent_name)
        if agent is None:
            known = ", ".join(sorted(self._agents.value)) or "none"
            raise RefusedError("UNKNOWN_AGENT", f"unknown agent {agent_name!r}; configured: {known}", "agent")
        first, line = opening(request, agent)
        plan = await self._planner.plan(request, agent, first)
        at = now()
        trace = telemetry.observer().run_begins(
            delivery.traceparent or request.tracing_context.get("traceparent")
        )
        timeout = request.timeout or agent.timeout or self._settings.run_timeout
        deadline = at + timedelta(seconds=timeout)
        return RunState(
            run=run_id,
            tenant=tenant,
            agent=agent.name,
            plan=plan,
            open=first,
            line=line,
            message_id=answer_id(run_id),
            fingerprint=digest,
            accepted_at=iso(at),
            traceparent=trace.traceparent,
            parent_span=trace.parent,
            deadline_ms=int(deadline.timestamp() * 1000),
            timeout_ms=int(timeout * 1000),
            suspended_ms=self._settings.suspended_timeout * 1000,
            life=self._store.life,
        )

    async def _reject_unread(self, tenant: str, delivery: Delivery) -> None:
        """So many requests of the tenant wait to be read that there will be no place for this one."""
        over = Over("waitingRuns", self._turns.waiting(tenant), 0)
        await self._answers.over_limit(tenant, run_id_of(delivery), delivery, over)

    async def give_up(self, delivery: Delivery, reason: str) -> None:
        """Answers a request that could not be handled, unless its run was accepted: that has an end of its own."""
        try:
            tenant, agent = addressed(delivery)
        except HopelessError:
            return
        if await self._was_accepted(tenant, delivery):
            return
        run_id = run_id_of(delivery)
        failure = Failure(code="INTERNAL", message=f"the request could not be handled: {reason}")
        try:
            await self._answers.refuse(tenant, run_id, agent, delivery, failure)
        except AWAY:
            await self._answers.reject(tenant, run_id, delivery, _STORE_AWAY)
        except UnreadableError:  # there is a run under this id, which has an end of its own
            await self._answers.reject(tenant, run_id, delivery, failure)


def _cancelled(state: RunState) -> tuple[RunState, list[Effect]]:
    """What a run becomes that somebody cancelled before it was accepted.

    Where it has begun its first command may be claimed: what ends it is another one, and gets the number behind that.
    """
    if state.queued:
        return reduce(state, Control(type="cancel"))
    return reduce(state.but(cancel=True), Started())


def _busy(other: str | None) -> Failure:
    told = f"run {other} is using the thread" if other else "another run was using the thread"
    more = "wait until it ends, or set memory.concurrency to queue or interrupt"
    return Failure(code="THREAD_BUSY", message=f"{told}; {more}", field="memory.concurrency")
