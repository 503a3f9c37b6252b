"""Three NATS servers as compose.cluster.yaml runs them; one of them dies under load, and comes back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import nats
import pytest
import pytest_asyncio

from procession.client import Procession
from procession_schemas import subjects
from procession_schemas.subjects import STREAMS
from procession_services.bus import Bus
from procession_services.demo_model import serve
from procession_services.deploy.files import OPERATOR, Deployment
from procession_services.deploy.permissions import tenant_user
from procession_services.runtime.access import Access
from procession_services.runtime.embedded import Endpoints, embedded
from procession_services.runtime.redis_client import connect
from procession_services.runtime.settings import Settings
from tests.support.deployed import Node, cluster
from tests.support.forked import Forked, Nursery, nursery
from tests.support.load import Load, Run, one_run
from tests.support.system import SERVICES, System
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

TENANT = "acme"
ACK_WAIT = 4.0
_AGAIN_SECONDS = 0.2


class Running:
    """Nodes, services that know all of them, and a client at each."""

    def __init__(self, nodes: list[Node], deployment: Deployment, system: System) -> None:
        self.nodes, self.deployment, self.system = nodes, deployment, system
        self.clients: list[Procession] = []
        self.services: Nursery

    def urls(self, first: int = 0) -> str:
        """All nodes, beginning with that one."""
        return ",".join(node.url for node in (*self.nodes[first:], *self.nodes[:first]))

    async def operator(self) -> Any:
        """A connection that may do everything."""
        password = self.deployment.password("nats", OPERATOR)
        return await nats.connect(self.urls().split(","), user=OPERATOR, password=password)

    async def leader(self, of: str) -> Node:
        """The node that leads a stream, or (`meta`) the cluster."""
        told = await self.nodes[0].monitored("jsz?streams=1&accounts=1")
        if of == "meta":
            name = told["meta_cluster"]["leader"]
        else:
            streams = [each for account in told["account_details"] for each in account["stream_detail"]]
            (name,) = [each["cluster"]["leader"] for each in streams if each["name"] == of]
        return next(node for node in self.nodes if node.name == name)

    async def service(self, service: str) -> Forked:
        """One more process of a service, which may not be ready yet."""
        described = self.system.process(
            service, nats_user=service, nats_password_file=self.deployment.directory / "nats" / service,
            create_streams=service == "orchestrator", stream_replicas=3, work_ack_wait=ACK_WAIT,
        )  # fmt: skip
        return await self.services.start(described)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One process of each service."""
    directory = tmp_path_factory.mktemp("cluster")
    deployment = Deployment(directory / "secrets")
    deployment.write([TENANT])
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(cluster(deployment, directory))
        servers = await stack.enter_async_context(embedded(directory, nats=False))
        redis = await stack.enter_async_context(connect(servers.redis_url))
        models = await stack.enter_async_context(await serve())
        everywhere = Endpoints(nats_url=",".join(node.url for node in nodes), redis_url=servers.redis_url)
        access: Any = {"user": tenant_user(TENANT), "password": deployment.password("clients", TENANT)}
        nowhere = Procession(tenant=TENANT)
        running = Running(nodes, deployment, System(everywhere, models, nowhere, redis, directory))
        services = await stack.enter_async_context(nursery())
        running.services = services
        processes = [await running.service(service) for service in SERVICES]
        await asyncio.gather(*(process.ready() for process in processes))
        for number in range(len(nodes)):
            client = Procession(running.urls(number), tenant=TENANT, dont_randomize=True, **access)
            running.clients.append(await stack.enter_async_context(client))
        yield running


async def ends(running: Running, *runs: Run) -> list[int]:
    """How many terminal events of each run are stored, when each has one.

    Clients hear of an end before a stream that has to elect its leader stores it; until then nobody answers for it.
    """
    wanted = subjects.event(TENANT, "X", "run.finished").replace("X", "*")
    told: dict[str, int] = {}
    connection = await running.operator()

    async def everybody() -> bool:
        with suppress(nats.errors.Error):
            info = await connection.jetstream().stream_info("EVENTS", subjects_filter=wanted)
            for subject, count in (info.state.subjects or {}).items():
                told[subject.split(".")[4]] = count
        return all(run.id in told for run in runs)

    try:
        await eventually(everybody)
    finally:
        await connection.close()
    return [told[run.id] for run in runs]


async def test_every_stream_is_on_three_servers(running):
    connection = await running.operator()
    for stream in STREAMS:
        info = await connection.jetstream().stream_info(stream)
        assert (info.config.num_replicas, len(info.cluster.replicas)) == (3, 2)
    for node in running.nodes:
        told = (await node.monitored("varz"))["jetstream"]["config"]
        assert told["sync_interval"] == 1_000_000_000  # the file's second, in nanoseconds
    for consumer in await connection.jetstream().consumers_info("WORK"):
        assert len(consumer.cluster.replicas) == 2
    await connection.close()


@pytest.mark.parametrize("role", ["meta", "CHUNKS", "WORK", "EVENTS"])
async def test_nothing_is_lost_or_doubled_when_a_server_dies(running, role):
    load = Load(running.system, running.clients, each=3)
    await load.more(9)
    victim = await running.leader(role)
    victim.kill()
    await load.more(27)
    await victim.start()
    await victim.healthy()
    await load.more(9)
    runs = await load.end()
    assert [run.wrong for run in runs if run.wrong] == []
    assert set(await ends(running, *runs)) == {1}


async def test_a_service_starts_while_a_server_is_away(running):
    running.nodes[0].kill()
    second = await running.service("orchestrator")  # it updates the streams, too
    await second.ready()
    run = await one_run(running.system, *running.clients[:2])
    assert run.wrong == ""
    assert await ends(running, run) == [1]
    await running.nodes[0].start()
    await running.nodes[0].healthy()
    await second.terminate()
    assert "Traceback" not in second.logged()


async def test_services_wait_for_enough_servers(tmp_path, caplog):
    deployment = Deployment(tmp_path / "secrets")
    deployment.write()
    async with cluster(deployment, tmp_path, up=1) as nodes:
        password = deployment.directory / "nats" / "orchestrator"
        access = Access.of(Settings(nats_user="orchestrator", nats_password_file=password))
        connecting = asyncio.create_task(Bus.connect(nodes[0].url, "test", access=access, replicas=3))
        async with asyncio.timeout(30):
            while "trying again" not in caplog.text:  # noqa: ASYNC110 - the log tells nobody
                await asyncio.sleep(_AGAIN_SECONDS)
        await asyncio.gather(*(node.start() for node in nodes[1:]))
        bus = await connecting
        assert {await replicas(bus, stream) for stream in STREAMS} == {3}
        await bus.close()


async def replicas(bus: Bus, stream: str) -> int:
    return int((await bus.js.stream_info(stream)).config.num_replicas)
