"""Every service is restarted, one replica after the other, under load: nobody notices."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import nats
import pytest
import pytest_asyncio

from procession_schemas import subjects
from procession_services.runtime.embedded import Endpoints
from tests.support.forked import Forked, Nursery, nursery
from tests.support.load import Load, Run
from tests.support.system import SERVICES, System, running_system

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

DRAIN = 2.0
"""Seconds that a replica may take in the test of answers that are longer."""


class Doubled:
    """Two replicas of each service as processes."""

    def __init__(self, system: System, services: Nursery) -> None:
        self.system, self._services = system, services
        self.replicas: dict[str, list[Forked]] = {service: [] for service in SERVICES}
        self.gone: list[Forked] = []

    async def add(self, service: str, **settings: Any) -> None:
        """One more replica, which is ready."""
        replica = await self._services.start(self.system.process(service, log_level="INFO", **settings))
        await replica.ready()
        self.replicas[service].append(replica)

    async def restart(self, service: str, **settings: Any) -> None:
        """Stops the oldest replica in an orderly way, and starts another one."""
        oldest = self.replicas[service].pop(0)
        await oldest.terminate()
        self.gone.append(oldest)
        await self.add(service, **settings)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def doubled(servers: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Doubled]:
    async with AsyncExitStack() as stack:
        logs = tmp_path_factory.mktemp("logs")
        system = await stack.enter_async_context(running_system(servers, logs))
        doubled = Doubled(system, await stack.enter_async_context(nursery()))
        await asyncio.gather(*(doubled.add(service) for service in [*SERVICES] * 2))
        yield doubled


async def ends(system: System, runs: list[Run]) -> dict[str, int]:
    """How many terminal events each run has."""
    connection = await nats.connect(system.servers.nats_url)
    wanted = subjects.event(system.client.tenant, "X", "run.finished").replace("X", "*")
    info = await connection.jetstream().stream_info("EVENTS", subjects_filter=wanted)
    await connection.close()
    found = {subject.split(".")[4]: count for subject, count in (info.state.subjects or {}).items()}
    return {run.id: found.get(run.id, 0) for run in runs}


async def test_a_rolling_restart_of_everything_fails_and_doubles_nothing(doubled):
    short = Load(doubled.system, [doubled.system.client], each=4)
    long = Load(doubled.system, [doubled.system.client], each=2, words=300, pace=10)
    await short.more(4)
    for service in SERVICES:
        await doubled.restart(service)
        await short.more(4)
    runs = [*await short.end(), *await long.end()]
    assert [run.wrong for run in runs if run.wrong] == []
    assert [run for run in runs if run.resets or run.extra] == []
    assert await ends(doubled.system, runs) == {run.id: 1 for run in runs}
    assert len(doubled.gone) == len(SERVICES)
    for replica in doubled.gone:
        assert "stopping" in replica.logged()
        assert "Traceback" not in replica.logged(), replica.services


async def test_answers_longer_than_the_time_to_stop_go_on_elsewhere(doubled):
    for service in ("llm_gateway", "output_processors"):
        for _ in range(2):
            await doubled.restart(service, drain_timeout=DRAIN)
    load = Load(doubled.system, [doubled.system.client], each=6, words=300, pace=20)
    for service in ("output_processors", "llm_gateway"):
        await asyncio.wait_for(streaming(doubled.system), 30)
        await doubled.restart(service)
    await load.more(12)
    runs = await load.end()
    assert [run.wrong for run in runs if run.wrong] == []
    assert await ends(doubled.system, runs) == {run.id: 1 for run in runs}
    assert [run for run in runs if run.resets > 1 or run.extra > 1] == []  # once, by the gateway


async def streaming(system: System) -> None:
    """Returns when six answers are under way."""
    connection = await nats.connect(system.servers.nats_url)
    heard = await connection.subscribe(subjects.chunk(system.client.tenant, "X").replace("X", "*"))
    runs: set[str] = set()
    while len(runs) < 6:
        runs.add(json.loads((await heard.next_msg(timeout=20)).data)["run"])
    await connection.close()
