"""The orchestrator service, put together."""

import asyncio
import logging
from functools import partial

from procession_schemas import subjects
from procession_schemas.agent import Agent
from procession_services.bus import Delivery
from procession_services.bus.backlog import Backlog
from procession_services.bus.inspect import longest_request
from procession_services.orchestrator.deadlines import Deadlines
from procession_services.orchestrator.handlers import Orchestrator
from procession_services.orchestrator.known import Known
from procession_services.orchestrator.lapses import RUNS_CONSUMER, Lapses
from procession_services.orchestrator.lost_runs import LostRuns
from procession_services.orchestrator.places import PlaceKeeper
from procession_services.orchestrator.requests import Requests
from procession_services.orchestrator.turns import INTAKE
from procession_services.processor_host.service import Host
from procession_services.processor_host.sinks import StreamSinks
from procession_services.runtime.admission import Places
from procession_services.runtime.check import checked_agents, models_of
from procession_services.runtime.reload import Watched
from procession_services.runtime.tasks import ended
from procession_services.runtime.tenants import Tenants, load_tenants

SERVICE = "orchestrator"

log = logging.getLogger(__name__)


async def start(host: Host) -> None:
    """Starts taking run requests, answers and controls."""
    longest, remedy = longest_request(host.settings, host.bus.max_payload)
    if not longest:
        log.error("every request will be refused: %s", remedy)
    sinks = await StreamSinks.of(host)
    executor = await host.executor(sinks.sink)
    load = partial(checked_agents, registry=host.registry, warn=log.warning)
    agents: Watched[dict[str, Agent]] = host.admin.watch("agents", host.settings.agents, load, {})
    host.admin.models = lambda: models_of(agents.value.values(), host.settings.api_base)
    tenants: Watched[Tenants] = host.admin.watch("tenants", host.settings.tenants, load_tenants, Tenants())
    keeper = PlaceKeeper(Places(host.redis), executor.driver, tenants, host.settings.worker_concurrency)
    redelivered = host.settings.work_ack_wait
    lost = LostRuns(host.store, host.bus, executor.driver)
    lapses = Lapses(host.store, host.bus, executor.driver, lost, executor.holders, redelivered=redelivered)
    await asyncio.gather(keeper.look(), lapses.look())
    orchestrator = Orchestrator(host, executor.driver, lapses)
    requests = Requests(host, executor.driver, agents, keeper, lapses)
    watching = [
        asyncio.create_task(Deadlines(host.store, orchestrator, lost, executor.driver).run()),
        asyncio.create_task(keeper.run()),
        asyncio.create_task(lapses.run()),
    ]
    if host.settings.create_streams:
        watching.append(asyncio.create_task(host.bus.keep_streams()))
    host.on_stop.append(partial(ended, *watching))
    host.on_drain.append(lapses.close)

    async def begun(delivery: Delivery) -> int:
        """How often what somebody says was begun; if done, it is only in hand until Redis has surely written that."""
        return 1 + await host.begun.times(delivery.place)

    root, handover = subjects.ROOT, host.handover
    await host.add_worker(
        stream="WORK",
        durable="orchestrator",
        filter_subject=f"{root}.work.{SERVICE}.>",
        handler=orchestrator.on_work,
        give_up=orchestrator.give_up,
    )
    await host.add_worker(
        stream="WORK",
        durable="orchestrator-control",
        filter_subject=f"{root}.control.>",
        handler=orchestrator.on_control,
        give_up=orchestrator.give_up,
        concurrency=INTAKE,
        begun=begun,
    )
    await host.add_worker(
        stream="RUNS",
        durable=RUNS_CONSUMER,
        filter_subject=f"{root}.run.>",
        handler=requests.on_request,
        give_up=requests.give_up,
        concurrency=INTAKE,
        begun=requests.times_begun,
        still_ours=handover.still_ours,
    )
    backlog = Backlog(host.bus, Known(host.store, host.bus, executor.driver.again).knows)
    await host.answer(subjects.api(SERVICE, "*", "backlog"), backlog.answer)
