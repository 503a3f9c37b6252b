"""A service: it connects, subscribes, works, and drains when it is to stop."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar, cast

import orjson
from redis.exceptions import NoPermissionError, RedisError

from procession.addresses import address
from procession.awaiting import stands_at
from procession.errors import ProcessionError
from procession.registry import Registry
from procession.services import Environment
from procession_schemas import subjects
from procession_schemas.base import UnfitError
from procession_schemas.offers import ReplicaOffer
from procession_schemas.run import Failure
from procession_schemas.work import WorkCommand
from procession_services.bus import Bus, Delivery, HopelessError, Nearby, Worker
from procession_services.bus.streams import EVENTS_SECONDS
from procession_services.bus.worker import GiveUp, Handler
from procession_services.processor_host.admin import Admin
from procession_services.processor_host.driver import failed_result
from procession_services.processor_host.executor import Executor
from procession_services.processor_host.far import Far
from procession_services.processor_host.handover import Handover
from procession_services.processor_host.instances import Instances
from procession_services.processor_host.job import OpRunner, SinkFactory
from procession_services.processor_host.models import GatewayModels
from procession_services.processor_host.peers import Peers
from procession_services.processor_host.watch import counted, lag_watched
from procession_services.runtime import telemetry
from procession_services.runtime.access import Access
from procession_services.runtime.begun import Begun
from procession_services.runtime.clock import seconds
from procession_services.runtime.ledger import Ledger
from procession_services.runtime.redis_check import once, redis_at, redis_problems_at
from procession_services.runtime.redis_client import UNANSWERED, connect
from procession_services.runtime.redis_refusals import NotAllowedError
from procession_services.runtime.redis_rights import rights_problems, rights_problems_at
from procession_services.runtime.replicas import Replicas
from procession_services.runtime.secrets import Secrets
from procession_services.runtime.settings import Settings
from procession_services.runtime.store import RunStore
from procession_services.runtime.tasks import ended, repeated, spawned
from procession_services.runtime.values import RedisValues

log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Step = Callable[[], Awaitable[None]]
Answer = Callable[[str, bytes], Awaitable[bytes]]
"""Gets the subject and the body of a request; gives the body of the answer."""
_CLOSE_SECONDS = 5.0
_LOOK_SECONDS = 0.2
_ANSWER_SECONDS: Final = 2.0
_CANCELS: Final = "checking for cancelled runs"
_CANCELS_SECONDS = 5.0
"""How often: servers of a cluster may lose what one of them is told while another one dies."""
_OPEN_REQUESTS = 1_024
"""Requests on one subject that a process answers at once."""
START_SECONDS: Final = 60.0
"""How long a service that starts waits for NATS, and for Redis."""
_PREPARE_SECONDS: Final = 120.0
"""How long it may take for the rest: the gateway loads LiteLLM."""


class NotReachableError(ProcessionError):
    """NATS or Redis was not there when a service started."""


class Host:
    """What every service has: settings, bus, Redis, registry, and what it starts and stops.

    Attributes:
        handover: Where commands are handed over from and to, which services of one process share.
        silence: Seconds for which a replica says nothing to Redis until the others ask NATS whether it is gone.
    """

    def __init__(
        self, service: str, settings: Settings, bus: Bus, access: Access, handover: Handover | None = None
    ) -> None:
        self.service, self.settings, self.bus = service, settings, bus
        self.handover = handover or Handover()
        self.redis = connect(settings.redis_url, access)
        self.store = RunStore(
            self.redis, ttl=settings.context_ttl, finished_ttl=settings.finished_ttl, told_ttl=EVENTS_SECONDS
        )
        self.begun = Begun(self.redis)
        self.registry = Registry.load(settings.plugins, service)
        self.instances = Instances(self.registry)
        self.ledger = Ledger(self.redis)
        self.environment = Environment(
            models=GatewayModels(bus),
            store=partial(RedisValues, self.redis),
            now=seconds,
            log=log.warning,
            secret=Secrets(settings.secrets_dir),
            usage=self.ledger,
            watch=telemetry.observer().hook if telemetry.observer().enabled else None,
        )
        self.admin = Admin(bus, service, settings.replica)
        self.admin.redis = partial(redis_at, settings.redis_url, access)
        self.admin.checks.append(partial(redis_problems_at, settings.redis_url, access))
        self.admin.checks.append(partial(rights_problems_at, settings.redis_url, access, service))
        self.silence = 1.5
        self.workers: list[Worker] = []
        self.consumers: list[tuple[str, str]] = []
        self._cancellable: list[Executor] = []
        self._looking: set[asyncio.Task[None]] = set()
        self.on_drain: list[_Step] = []
        self._on_idle: list[_Step] = []
        self.on_stop: list[_Step] = [self._look_no_more, self.redis.settled]

    async def add_worker(
        self, *, stream: str, durable: str, handler: Handler, give_up: GiveUp, **options: Any
    ) -> Worker:
        """Starts pulling from a stream; `options` are the worker's others."""
        settings = self.settings
        handler, give_up = counted(durable, _hopeless_where_not_allowed(handler), give_up)
        worker = Worker(
            self.bus,
            stream=stream,
            durable=durable,
            handler=handler,
            give_up=give_up,
            ack_wait=settings.work_ack_wait,
            max_deliver=settings.max_deliver,
            parted=self.begun.parted,
            **{"concurrency": settings.worker_concurrency, **options},
        )
        await worker.start()
        self.workers.append(worker)
        self.consumers.append((stream, durable))
        return worker

    async def answer(
        self,
        subject: str,
        answer: Answer,
        *,
        everybody: bool = False,
        busy: bytes | None = None,
        to_the_end: bool = False,
    ) -> None:
        """Answers requests on a subject, many at a time; when the service stops, those that are answered in time.

        One replica answers each, or `everybody`. `busy` is the answer while too many are open; None: there is none,
        because who asks asks again. `to_the_end`: takes requests until all other work is done, which may wait for
        their answers.
        """
        running: set[asyncio.Task[None]] = set()

        async def reply_to(subject: str, body: bytes, reply: str) -> None:
            try:
                answered = await answer(subject, body)
                if reply:
                    await self.bus.publish(reply, answered)
            except Exception:
                log.exception("a request on %s failed and was not answered; the sender asks again", subject)

        def on_request(subject: str, body: bytes, reply: str) -> None:
            if len(running) >= _OPEN_REQUESTS:
                if busy is not None:
                    self.bus.post(reply, busy)
                return
            task = asyncio.create_task(reply_to(subject, body, reply))
            running.add(task)
            task.add_done_callback(running.discard)

        subscription = await self.bus.subscribe(subject, on_request, queue="" if everybody else self.service)

        async def drain() -> None:
            await self.bus.unsubscribe(subscription)
            try:
                if running:
                    await asyncio.wait(running, timeout=self.settings.drain_timeout)
            finally:  # whoever ends us has no time left
                await ended(*running)

        (self._on_idle if to_the_end else self.on_drain).append(drain)

    async def answer_alive(self, **operations: tuple[Answer, bytes]) -> None:
        """Answers operations of the service's API that take a while, to the end, as `answer`: by name, with `busy`.

        Whoever hears nothing from one replica asks which ones live, and then one of these; see `bus.alive`.
        """
        offer: bytes = ReplicaOffer(replica=self.settings.replica).to_json()

        async def live(_subject: str, _body: bytes) -> bytes:
            return offer

        for name, (answer, busy) in operations.items():
            for replica in ((), (self.settings.replica,)):
                subject = subjects.api(self.service, "*", name, *replica)
                await self.answer(subject, answer, busy=busy, to_the_end=True)
        await self.answer(subjects.offer(self.service), live, everybody=True, to_the_end=True)

    async def executor(
        self,
        open_sink: SinkFactory,
        runners: dict[str, OpRunner] | None = None,
        lender: OpRunner | None = None,
    ) -> Executor:
        """What runs commands in this process, and tells other replicas which ones."""
        replica = self.settings.replica
        executor = Executor(
            self.service,
            self.bus,
            self.store,
            self.instances,
            open_sink,
            max_deliver=self.settings.max_deliver,
            replica=replica,
            runners=runners,
            lender=lender,
            environment=self.environment,
        )
        asked = subjects.holder(self.service, replica)
        await self.answer(asked, executor.holders.answer, to_the_end=True)
        executor.driver.takes = self.handover.takes
        if self.handover.far is None:
            far = Far(
                self.bus,
                self.store,
                self.service,
                replica,
                driver=executor.driver,
                holders=executor.holders,
                silence=self.silence,
            )
            self.handover.far = far
            await far.start()
            self.on_stop.append(far.stop)
        return executor

    async def work_on_commands(
        self,
        open_sink: SinkFactory,
        runners: dict[str, OpRunner] | None = None,
        lender: OpRunner | None = None,
    ) -> Executor:
        """Takes the service's commands, runs them, and moves their runs on."""
        executor = await self.executor(open_sink, runners, lender)
        await self._listen_for_cancel(executor)
        handover = self.handover

        async def handle(delivery: Delivery) -> None:
            command = WorkCommand.from_json(delivery.body)
            then = await executor.execute(command, delivery, speaks=worker.may_keep(delivery))
            await handover.follow(then, delivery, worker)

        async def give_up(delivery: Delivery, reason: str) -> None:
            if (command := _readable(delivery.body)) is None:
                return  # nobody who could be told; it lies in DEAD
            message = f"{self.service} could not do its part: {reason}"
            result = failed_result(command, Failure(code="WORK_FAILED", message=message))
            subject = subjects.work("orchestrator", command.tenant, command.run)
            await self.bus.publish_stored(subject, result.to_json(), message_id=f"gave-up:{command.id}")

        worker = await self.add_worker(
            stream="WORK",
            durable=self.service,
            filter_subject=f"{subjects.ROOT}.work.{self.service}.>",
            handler=handle,
            give_up=give_up,
            still_ours=handover.still_ours,
            elsewhere=executor.holders.elsewhere,
            begun=executor.holders.begun,
        )
        handover.open(executor, worker)

        def on_handed(_subject: str, body: bytes, reply: str) -> None:
            if not handover.on_handed(self.service, body, reply):
                self.bus.post(reply, b"")

        desk = await self.bus.subscribe(subjects.desk(self.service, self.settings.replica), on_handed)
        self.on_drain.append(partial(self.bus.unsubscribe, desk))
        return executor

    async def _listen_for_cancel(self, executor: Executor) -> None:
        """Fires the abort signals of runs that are cancelled while they are worked on here."""

        def on_cancel(subject: str, _body: bytes, _reply: str) -> None:
            *_, tenant, run = subjects.parse(subject)
            executor.cancels.cancel(tenant, run)

        await self.bus.subscribe(subjects.cancelled("*", "*"), on_cancel)
        self._cancellable.append(executor)
        looks = repeated(_CANCELS, _CANCELS_SECONDS, executor.cancels.look)
        spawned(self._looking, _CANCELS, looks)

    def look_after_peers(self) -> None:
        """Begins to look after the other replicas, whose work the workers can take now."""
        replicas = Replicas(self.redis, self.service, self.settings.replica, self.silence)
        looking = asyncio.create_task(Peers(self.bus, self.store, replicas, self.workers).run())

        async def leave() -> None:
            await ended(looking)
            await replicas.leave()

        self.on_stop.append(leave)

    def reconnected(self) -> None:
        """Lets every worker ask for work again, and finds out what nobody could tell us."""
        for worker in self.workers:
            worker.reconnected()
        for executor in self._cancellable:
            spawned(self._looking, _CANCELS, executor.cancels.look())

    async def _look_no_more(self) -> None:
        await ended(*self._looking)

    async def works(self) -> bool:
        """Whether NATS and Redis answer now."""
        nats = await self.bus.answers(_ANSWER_SECONDS)
        return nats and bool(await cast("Awaitable[Any]", self.redis.ping()))

    async def stop(self) -> None:
        """Drains: finishes or hands back what is in flight, then closes; a step that fails keeps no other from it."""
        self.handover.close()
        grace = self.settings.drain_timeout
        ends = asyncio.get_running_loop().time() + grace + _CLOSE_SECONDS
        drains: list[_Step] = [*(partial(worker.stop, grace) for worker in self.workers), *self.on_drain]
        closes: list[_Step] = [*reversed(self.on_stop), self.bus.close, self.redis.aclose]
        for steps in (drains, self._on_idle, [self.bus.settled]):
            await asyncio.gather(*(_tried(step, ends - _CLOSE_SECONDS / 2) for step in steps))
        for close in closes:
            await _tried(close, ends)


def _hopeless_where_not_allowed(handler: Handler) -> Handler:
    """What Redis does not allow us, it will not the next time: all that was done would be done in vain again."""

    async def handle(delivery: Delivery) -> None:
        try:
            await handler(delivery)
        except NotAllowedError as error:
            raise HopelessError(str(error)) from error

    return handle


def _readable(body: bytes) -> WorkCommand | None:
    """A command, without its operations where another version may have made them; None if it is not a command."""
    with contextlib.suppress(UnfitError):
        return WorkCommand.from_json(body)
    with contextlib.suppress(ValueError, TypeError):
        return WorkCommand.of({**orjson.loads(body), "ops": []})
    return None


Start = Callable[[Host], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def hosted(
    service: str,
    settings: Settings,
    start: Start,
    nearby: Nearby | None = None,
    handover: Handover | None = None,
) -> Any:
    """Runs a service inside this process; ready when entered, drained when left.

    Args:
        service: Its name.
        settings: Its settings.
        start: Starts it on its host.
        nearby: Services of this process with the same one talk to each other without NATS.
        handover: Services of this process with the same one do each other's commands.

    Raises:
        NotReachableError: NATS or Redis was not there for `START_SECONDS`.
        SettingsError: Telemetry is asked for and cannot be had.
    """
    with telemetry.configured(service, settings):
        access = Access.of(settings, service)
        connecting = Bus.connect(
            settings.nats_url,
            f"procession-{service}-{settings.replica}",
            access=access,
            create_streams=settings.create_streams,
            replicas=settings.stream_replicas,
            nearby=nearby,
        )
        bus = await _reached(
            f"NATS at {address(settings.nats_url)} did not answer", connecting, START_SECONDS
        )
        host = Host(service, settings, bus, access, handover)
        bus.on_reconnect.append(host.reconnected)
        try:
            answers = _answers(settings.redis_url, access, service)
            await _reached(f"Redis at {address(settings.redis_url)} did not answer", answers, START_SECONDS)
            try:
                await _reached(f"{service} did not start", start(host), _PREPARE_SECONDS)
            except NotAllowedError as error:
                raise NotReachableError(f"{service} cannot start: {error}") from error
            host.look_after_peers()
            await bus.flush()
            async with host.admin.serving(), lag_watched(bus, host.consumers):
                yield host
        finally:
            await host.stop()


async def _tried(step: _Step, ends: float) -> None:
    """Does a step of an end, until the time is up; the log tells what keeps it from being a clean one."""
    try:
        async with asyncio.timeout_at(ends):
            await step()
    except TimeoutError:
        log.warning(
            "could not stop cleanly in time (NATS or Redis may not answer); what was in flight is delivered again"
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the rest is to be ended, too
        log.warning("could not stop cleanly; what was in flight is delivered again: %r", error)


async def _reached(what: str, reaching: Coroutine[Any, Any, _T], seconds: float) -> _T:
    """What comes of `reaching`, or NotReachableError, which says where it waits; `what` is what did not happen."""
    task = asyncio.create_task(reaching)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if done:
            return task.result()
        raise NotReachableError(
            f"{what} within {seconds:g} seconds (waiting at {stands_at(task.get_coro())})"
        )
    finally:
        task.cancel()


async def _answers(url: str, access: Access, service: str) -> None:
    """Waits until Redis answers; tells what the service may not do there.

    Raises:
        NotReachableError: What answers is not Redis, or does not have that database.
    """
    told = ""
    async with once(url, access) as redis:
        while True:
            try:
                await cast("Awaitable[Any]", redis.ping())
            except UNANSWERED as error:
                if str(error) != told:
                    told = str(error)
                    log.warning("Redis at %s does not answer, trying again: %s", address(url), told)
                await asyncio.sleep(_LOOK_SECONDS)
            except NoPermissionError:  # to ping
                break
            except RedisError as error:
                told = f"Redis at {address(url)} refuses ({error}): is PROCESSION_REDIS_URL right?"
                raise NotReachableError(told) from error
            else:
                break
        for problem in await rights_problems(redis, service):
            log.error("Redis at %s: %s", address(url), problem.message)
