"""Accepts or refuses run requests, and takes what people and the clock say into runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from procession.json_values import NotJsonError, given
from procession_schemas import subjects
from procession_schemas.agent import Agent
from procession_schemas.events import RequestRejected, RunAccepted
from procession_schemas.fingerprint import fingerprint
from procession_schemas.run import Failure, RunRequest
from procession_schemas.run_ids import answer_id, asked_id, derived_id
from procession_schemas.validation import RefusedError, misfit
from procession_schemas.work import Control, WorkResult
from procession_services.bus import Delivery, HopelessError
from procession_services.bus.inspect import longest_request
from procession_services.orchestrator.core.plan import opening, parse_request
from procession_services.orchestrator.lapses import Lapses
from procession_services.orchestrator.limits import refusal, wanted
from procession_services.orchestrator.places import PlaceKeeper
from procession_services.orchestrator.planner import Planner
from procession_services.orchestrator.turns import Turns
from procession_services.processor_host.driver import Driver, change, line_of
from procession_services.processor_host.outbox import Outbox
from procession_services.processor_host.service import Host
from procession_services.runs.events import DeadlinePassed, Effect, Started
from procession_services.runs.reducer import outstanding, reduce
from procession_services.runs.state import RunState
from procession_services.runs.stored import UnreadableError, read_state
from procession_services.runtime import telemetry
from procession_services.runtime.admission import Over
from procession_services.runtime.clock import iso, now, seconds
from procession_services.runtime.redis_client import AWAY, UNANSWERED
from procession_services.runtime.redis_refusals import NotAllowedError
from procession_services.runtime.reload import Watched
from procession_services.runtime.run_records import Admission
from procession_services.runtime.store import ANSWER_SECONDS

log = logging.getLogger(__name__)
_STORE_AWAY = Failure(
    code="STORE_UNAVAILABLE",
    message="Redis does not answer; send the same request again later",
    is_retryable=True,
)
_STORE_REFUSES = Failure(
    code="STORE_UNAVAILABLE",
    message="Redis does not allow the orchestrator its work, whose log has more; send the same request again later",
    is_retryable=True,
)
INTAKE = 4_096
"""Requests, or words of people, that one process has in hand, those included of which Redis may not have written yet
what was made of them; one that is behind more of them than this waits for them."""
_INTAKE_SHARE = 128
"""Requests of one tenant that are read in any case."""
_AT_ONCE = 16
"""Requests, or words of people, that are handled at the same time; a few keep a process busy."""


class Orchestrator:
    """Handles what happens to runs. Any replica handles any event.

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
        self._driver, self._keeper, self._lapses = driver, keeper, lapses
        self._turns, self._control_turns = Turns(_AT_ONCE), Turns(_AT_ONCE)
        self._bus, self._store, self._begun, self._settings = host.bus, host.store, host.begun, host.settings

    async def on_request(self, delivery: Delivery) -> None:
        """A run request: accept it, or answer with one clear error. Tenants take turns.

        It is ours until Redis has surely written what became of it; where it may not have, it is handled again.

        Raises:
            HopelessError: Its subject names no tenant, so there is nobody who could hear an answer.
        """
        tenant, _ = _addressed(delivery)
        try:
            await self._request(tenant, delivery)
        except NotAllowedError:
            run_id = asked_id(delivery.body) or _derived_id(delivery)
            await self._reject(tenant, run_id, delivery, _STORE_REFUSES)

    async def _request(self, tenant: str, delivery: Delivery) -> None:
        most = max(self._keeper.tenants.of(tenant).waiting_runs, _INTAKE_SHARE)
        may_be_known = delivery.attempt > 1
        if not may_be_known and self._turns.waiting(tenant) >= most:
            await self._reject_unread(tenant, delivery)
            return
        async with self._turns.turn(tenant):
            leap = may_be_known or self._may_be_forgotten(delivery)
            async with self._begun.counted(delivery.place, delivery.attempt):
                admitted = await self._requested(delivery, leap=leap)
        while admitted is not None and not await self._lapses.kept():
            if await self._lapses.ended(tenant, admitted) is not None:
                self._store.mark_told(tenant, admitted, fingerprint(delivery.subject, delivery.body))
                return
            async with self._turns.turn(tenant):
                admitted = await self._requested(delivery, leap=True)

    async def begun(self, delivery: Delivery) -> int:
        """How often a request was begun, or what somebody says: a processor may end the process when it is made.

        What is done, and in hand until Redis has surely written that, ends none.
        """
        return 1 + await self._begun.times(delivery.place)

    def _may_be_forgotten(self, delivery: Delivery) -> bool:
        """Whether the request is older than this life of Redis, so that somebody may have had it before."""
        stored = datetime.fromisoformat(delivery.stored_at).timestamp()
        return stored < self._store.life + 1

    async def _requested(self, delivery: Delivery, *, leap: bool) -> str | None:
        """Accepts a request, or answers why not; gives the id of a run that was admitted, now or before.

        With `leap` Redis may have forgotten that it was, and what was done then.
        """
        _, tenant, agent_name = subjects.parse(delivery.subject)
        run_id = _derived_id(delivery)
        digest = fingerprint(delivery.subject, delivery.body)
        try:
            request = parse_request(delivery.body, *longest_request(self._settings, self._bus.max_payload))
            run_id = request.run_id or run_id
        except RefusedError as invalid:
            await self._refuse(
                tenant, asked_id(delivery.body) or run_id, agent_name, delivery, invalid.failure
            )
            return None
        try:
            fresh = await self._accepted(run_id, digest, request, delivery)
        except RefusedError as invalid:
            await self._refuse(tenant, run_id, agent_name, delivery, invalid.failure)
            return None
        fresh.leap = leap
        known, state, effects = await self._admit(fresh)
        if known.state is not None or known.told is not None:
            return run_id if await self._known(known, fresh, delivery) else None
        if known.refused not in (None, digest):
            await self._conflict(tenant, run_id, delivery)
            return None
        if known.over is not None:
            await self._over_limit(tenant, run_id, delivery, known.over)
            return None
        if known.refused is not None or known.ahead is not None:
            await self._refuse(tenant, run_id, agent_name, delivery, _busy(known.ahead))
            return None
        self._driver.on_deadline_added(state.deadline_ms)
        telemetry.observer().run_accepted(tenant, state.agent)
        if known.cancelled:
            state, effects = _cancelled(state if state.queued else fresh)
            if not (await self._store.save_state(tenant, run_id, change(state, 1))).saved:
                return run_id  # somebody was quicker, and has said what follows
        await asyncio.gather(self._tell_accepted(state, "accepted"), self._driver.perform(state, effects))
        await self._driver.begin(known.called)
        return run_id

    async def _admit(self, fresh: RunState) -> tuple[Admission, RunState, list[Effect]]:
        """Saves a new run, begun or waiting for its turn; gives what was known of it, and how it was saved."""
        line = fresh.line
        begun, effects = reduce(fresh, Started())
        queued = fresh.but(queued=True)
        limits = self._keeper.tenants.of(fresh.tenant)
        asked: dict[str, Any] = {
            "state": begun.to_json(),
            "plan": fresh.plan.stored,
            "deadline_ms": fresh.deadline_ms,
            "out": begun.seq,
            "numbered_in": begun.life,
            "wanted": wanted(fresh.tenant, limits, self._settings.waiting_runs, seconds()),
            "line": line_of(fresh),
            "alone": bool(line and line.policy == "reject"),
        }
        likely = queued.to_json() if line and line.policy != "reject" else b""
        async with asyncio.timeout(ANSWER_SECONDS) as limit:
            asked["until"] = limit.when()
            known = await self._store.admit(fresh.tenant, fresh.run, **asked, queued=likely)
            if known.waits:
                known = await self._store.admit(fresh.tenant, fresh.run, **asked, queued=queued.to_json())
        return (known, queued, outstanding(queued)) if known.queued else (known, begun, effects)

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

    async def _known(self, known: Admission, asked: RunState, delivery: Delivery) -> bool:
        """A request under an id that is taken; `asked` is what it would have begun. As `_repeated`."""
        if known.state is not None:
            state = read_state(known.state.state, known.state.plan)
            return await self._repeated(state, asked.fingerprint, delivery)
        if known.told == asked.fingerprint:
            await self._tell_accepted(asked, str(delivery.sequence))
        else:
            await self._conflict(asked.tenant, asked.run, delivery)
        return False

    async def _repeated(self, state: RunState, digest: str, delivery: Delivery) -> bool:
        """The same id again: the same run for the same body, a conflict for another (design.md 3).

        Says whether it is that run, which Redis may not have written yet: who admitted it may have died.
        """
        if state.fingerprint == digest:
            await self._tell_accepted(state, str(delivery.sequence))
            await self._driver.again(state.tenant, state.run)
            return True
        await self._conflict(state.tenant, state.run, delivery)
        return False

    async def _conflict(self, tenant: str, run_id: str, delivery: Delivery) -> None:
        text = f"run {run_id} exists with another request; use a new runId for a new request"
        error = Failure(code="RUN_ID_CONFLICT", message=text, field="runId")
        await self._reject(tenant, run_id, delivery, error)

    async def _over_limit(self, tenant: str, run_id: str, delivery: Delivery, over: Over) -> None:
        """Nothing is kept of a request above a limit, so the same one may come again."""
        telemetry.observer().request_rejected(tenant, over.limit)
        limits = self._keeper.tenants.of(tenant)
        await self._reject(
            tenant, run_id, delivery, refusal(tenant, limits, self._settings.waiting_runs, over)
        )

    async def _reject_unread(self, tenant: str, delivery: Delivery) -> None:
        """So many requests of the tenant wait to be read that there will be no place for this one."""
        over = Over("waitingRuns", self._turns.waiting(tenant), 0)
        await self._over_limit(tenant, asked_id(delivery.body) or _derived_id(delivery), delivery, over)

    async def _reject(self, tenant: str, run_id: str, delivery: Delivery, error: Failure) -> None:
        event = RequestRejected(run_id=run_id, at=iso(now()), error=error, sequence=delivery.sequence)
        await self._driver.tell(tenant, event, str(delivery.sequence))

    async def _tell_accepted(self, state: RunState, key: str) -> None:
        event = RunAccepted(
            run_id=state.run,
            agent=state.agent,
            message_id=state.message_id,
            at=state.accepted_at,
            fingerprint=state.fingerprint,
            stream=state.plan.stream,
        )
        await self._driver.tell(state.tenant, event, key)

    async def _refuse(
        self, tenant: str, run_id: str, agent: str, delivery: Delivery, failure: Failure
    ) -> None:
        """Answers a request that cannot run: an error chunk and the terminal event."""
        digest = fingerprint(delivery.subject, delivery.body)
        async with asyncio.timeout(ANSWER_SECONDS):
            known = await self._store.refuse(tenant, run_id, digest)
        if known.state is not None:
            await self._repeated(read_state(known.state.state, known.state.plan), digest, delivery)
            return
        if known.told == digest:
            return  # the same request again; its end can still be read
        if known.told is not None or known.refused not in (None, digest):
            await self._conflict(tenant, run_id, delivery)
            return
        if known.refused is not None and await self._lapses.ended(tenant, run_id) is not None:
            return  # refused before, for whatever reason; it was told then
        outbox = Outbox(self._bus, tenant, run_id, 0, live=True)
        await self._driver.failed(outbox, tenant, run_id, agent, failure, fingerprint=digest)

    async def on_work(self, delivery: Delivery) -> None:
        """An answer that nobody took into the run yet: a host of another kind gave it, or one gave up."""
        result = WorkResult.from_json(delivery.body)
        await self._patiently(delivery, lambda: self._driver.event(result.tenant, result.run, result))

    async def on_control(self, delivery: Delivery) -> None:
        """A person cancels or resumes. Tenants take turns.

        Raises:
            HopelessError: Its subject names no run, or its body is none.
        """
        _, run = _addressed(delivery)
        try:
            control = Control.model_validate_json(delivery.body)
            given(control.resume_data, "resumeData")
        except ValidationError as error:
            raise HopelessError(f"the control cannot be read: {misfit(error).message}") from error
        except NotJsonError as error:
            raise HopelessError(f"the control cannot be read: {error}") from error
        await self._patiently(delivery, lambda: self._controlled(delivery, run, control))
        while not await self._lapses.kept():
            await self._patiently(delivery, lambda: self._controlled(delivery, run, control))

    async def _patiently(self, delivery: Delivery, take: Callable[[], Awaitable[object]]) -> None:
        """Takes something into a run, for as long as Redis is away, or refuses us.

        Of what would be in DEAD then nobody would hear.
        """
        while True:
            try:
                await take()
            except (*UNANSWERED, NotAllowedError) as error:
                log.warning("%s waits for Redis: %s", delivery.subject, error)
                await delivery.hold.keep()
            else:
                return

    async def _controlled(self, delivery: Delivery, run: str, control: Control) -> None:
        tenant, _ = _addressed(delivery)
        async with self._control_turns.turn(tenant), self._begun.counted(delivery.place, delivery.attempt):
            if control.type == "cancel":
                await self._store.mark_cancelled(tenant, run)
            await self._driver.event(tenant, run, control)

    async def on_deadline(self, tenant: str, run: str) -> None:
        """A run's time is up."""
        if not await self._driver.event(tenant, run, DeadlinePassed(int(seconds() * 1000))):
            await self._driver.begin(await self._store.forget(tenant, run))

    async def give_up(self, delivery: Delivery, reason: str) -> None:
        """What becomes of a message that could not be handled: a request gets its answer, the rest is in DEAD."""
        kind, *_ = subjects.parse(delivery.subject)
        if kind == "run":
            try:
                tenant, agent = _addressed(delivery)
            except HopelessError:
                return
            run_id = asked_id(delivery.body) or _derived_id(delivery)
            failure = Failure(code="INTERNAL", message=f"the request could not be handled: {reason}")
            try:
                await self._refuse(tenant, run_id, agent, delivery, failure)
            except AWAY:
                await self._reject(tenant, run_id, delivery, _STORE_AWAY)
            except UnreadableError:  # there is a run under this id, which has an end of its own
                await self._reject(tenant, run_id, delivery, failure)


def _addressed(delivery: Delivery) -> tuple[str, str]:
    """The tenant and, of a request, the agent, of a control the run; streams of before took other subjects, too.

    Raises:
        HopelessError: The subject has not these tokens, or has characters in them that no subject of ours has.
    """
    kind, *tokens = subjects.parse(delivery.subject)
    last = "run" if kind == "control" else "agent"
    try:
        tenant, name = tokens
        subjects.token(tenant, "tenant")
        if kind == "control":
            subjects.token(name, "run id")
    except ValueError as error:
        told = f"the subject must be {subjects.ROOT}.{kind}.<tenant>.<{last}>"
        raise HopelessError(f"{told}: {error}") from error
    return tenant, name


def _cancelled(state: RunState) -> tuple[RunState, list[Effect]]:
    """What a run becomes that somebody cancelled before it was accepted."""
    if state.queued:
        return reduce(state, Control(type="cancel"))
    return reduce(state.but(cancel=True), Started())


def _busy(other: str | None) -> Failure:
    told = f"run {other} is at work on the thread" if other else "another run was at work on the thread"
    more = "wait for its end, or ask with memory.concurrency: queue or interrupt"
    return Failure(code="THREAD_BUSY", message=f"{told}; {more}", field="memory.concurrency")


def _derived_id(delivery: Delivery) -> str:
    return derived_id(delivery.message_id, delivery.sequence)
