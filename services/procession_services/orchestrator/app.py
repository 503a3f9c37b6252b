"""The orchestrator service, put together."""

import asyncio
import contextlib

from procession_schemas import subjects
from procession_services.bus.backlog import Backlog
from procession_services.orchestrator.deadlines import Deadlines
from procession_services.orchestrator.handlers import Orchestrator
from procession_services.processor_host.service import Host
from procession_services.processor_host.streams import StreamClient
from procession_services.runtime.agents import load_agents

SERVICE = "orchestrator"


async def start(host: Host) -> None:
    """Starts taking run requests, answers and controls."""
    streams = StreamClient(host.bus, SERVICE, host.settings.replica)
    await streams.start()
    executor = host.executor(streams.sink)
    agents = load_agents(host.settings.agents) if host.settings.agents else {}
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
