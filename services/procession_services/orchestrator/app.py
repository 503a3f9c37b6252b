"""The orchestrator service, put together."""

import asyncio
import contextlib
from functools import partial

from procession_schemas import subjects
from procession_schemas.agent import Agent
from procession_services.bus.backlog import Backlog
from procession_services.orchestrator.deadlines import Deadlines
from procession_services.orchestrator.handlers import Orchestrator
from procession_services.processor_host.service import Host
from procession_services.processor_host.streams import StreamClient
from procession_services.runtime.check import checked_agents, models_of
from procession_services.runtime.reload import Watched

SERVICE = "orchestrator"


async def start(host: Host) -> None:
    """Starts taking run requests, answers and controls."""
    streams = StreamClient(host.bus, SERVICE, host.settings.replica)
    await streams.start()
    executor = host.executor(streams.sink)
    load = partial(checked_agents, registry=host.registry)
    agents: Watched[dict[str, Agent]] = host.admin.watch("agents", host.settings.agents, load, {})
    host.admin.models = lambda: models_of(agents.value.values(), host.settings.api_base)
    orchestrator = Orchestrator(host, executor.driver, agents)
    deadlines = asyncio.create_task(Deadlines(host.store, orchestrator, executor.driver).run())

    async def stop() -> None:
        await streams.stop()
        deadlines.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await deadlines

    host.on_stop.append(stop)
    root = subjects.ROOT
    for stream, durable, filter_subject, handler in (
        ("WORK", "orchestrator", f"{root}.work.{SERVICE}.>", orchestrator.on_work),
        ("WORK", "orchestrator-control", f"{root}.control.>", orchestrator.on_control),
        ("RUNS", "orchestrator-runs", f"{root}.run.>", orchestrator.on_request),
    ):
        await host.add_worker(
            stream=stream,
            durable=durable,
            filter_subject=filter_subject,
            handler=handler,
            give_up=orchestrator.give_up,
        )
    await host.answer(subjects.api(SERVICE, "*", "backlog"), Backlog(host.bus).answer)
