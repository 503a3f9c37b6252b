"""NATS and Redis go away and come back while runs are under way."""

import asyncio
import importlib
import json

import nats as nats_client
import pytest
import pytest_asyncio
from nats.js.errors import NotFoundError
from redis.exceptions import RedisError

from procession_schemas.subjects import STREAMS
from procession_services.processor_host import service as hosting
from procession_services.processor_host.driver import Driver
from procession_services.processor_host.process import _Process
from procession_services.processor_host.service import NotReachableError, hosted
from procession_services.runs.events import SignalCancel
from procession_services.runtime.settings import Settings
from procession_services.runtime.store import RunStore
from tests.chaos.proxy import Proxy
from tests.support.servers import own_servers
from tests.support.system import SERVICES, all_but, finished, numbered, running_system, text_of
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

TEXT = [f"word{number} " for number in range(60)]
SLOW = {"chunks": TEXT, "chunk_delay_ms": 15}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def servers(tmp_path_factory):
    async with own_servers(tmp_path_factory.mktemp("servers")) as servers:
        yield servers


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory, monkeypatch_module):
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with (
        running_system(servers.endpoints, tmp_path_factory.mktemp("logs")) as system,
        system.inside(*SERVICES, work_ack_wait=4.0),  # longer than a container takes to restart
    ):
        yield system


@pytest_asyncio.fixture(loop_scope="session")
async def nats(servers):
    client = await nats_client.connect(servers.endpoints.nats_url)
    yield client
    await client.close()


async def begun(handle):
    """The first chunks of a run, five of them text."""
    chunks = []
    async for chunk in numbered(handle):
        chunks.append(chunk)
        if sum(each["type"] == "text-delta" for each in chunks) == 5:
            break
    return chunks


@pytest.mark.parametrize("processors", [[], ["upper"]])
async def test_a_stream_outlives_a_restart_of_nats(servers, system, processors):
    model = system.script(SLOW)
    handle = await system.start(agent={"model": model, "outputProcessors": processors})
    chunks = await begun(handle)
    await servers.restart_nats()
    result, more = await finished(handle)
    expected = "".join(TEXT).upper() if processors else "".join(TEXT)
    assert (result.status, result.text, text_of(chunks + more)) == ("finished", expected, expected)
    assert len(system.requests(model)) == 1
    late = await system.client.attach(result.run_id)
    _, again = await finished(late)
    assert text_of(again) == expected


async def test_a_cancel_is_heard_by_whoever_was_not_connected(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with (
        own_servers(tmp_path / "servers") as servers,
        running_system(servers.endpoints, tmp_path) as system,
        system.inside(*all_but("llm_gateway")),
        Proxy(int(servers.endpoints.nats_url.rpartition(":")[2])) as proxy,
        system.inside("llm_gateway", nats_url=f"nats://127.0.0.1:{proxy.port}"),
    ):
        handle = await system.start({"chunks": TEXT * 20, "chunk_delay_ms": 15})
        await begun(handle)
        proxy.freeze()
        proxy.abort()
        await handle.cancel()
        store = RunStore(system.redis, ttl=600, finished_ttl=600, told_ttl=600)
        await eventually(lambda: store.is_cancelled(system.client.tenant, handle.run_id))
        proxy.thaw()
        async with asyncio.timeout(10):  # the answer takes 18 s
            result, _ = await finished(handle)
    assert result.status == "cancelled"


async def test_a_cancel_is_heard_though_nats_has_lost_it(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    monkeypatch.setattr(hosting, "_CANCELS_SECONDS", 0.1)
    do = Driver._do

    async def unheard(self, state, effect, **options):
        if isinstance(effect, SignalCancel):
            await self._store.mark_cancelled(state.tenant, state.run)
        else:
            await do(self, state, effect, **options)

    monkeypatch.setattr(Driver, "_do", unheard)
    async with (
        own_servers(tmp_path / "servers") as servers,
        running_system(servers.endpoints, tmp_path) as system,
        system.inside(*SERVICES),
    ):
        handle = await system.start({"chunks": TEXT * 20, "chunk_delay_ms": 15})
        await begun(handle)
        await handle.cancel()
        async with asyncio.timeout(10):  # the answer takes 18 s
            result, _ = await finished(handle)
    assert result.status == "cancelled"


@pytest.mark.parametrize("services", [["tools"], ["tools", "memory"]])
async def test_a_process_whose_connection_nats_has_closed_for_good_ends(servers, services):
    """Its supervisor, or Docker, starts it again; a service that hears nothing any more would be up for nothing."""
    settings = Settings(nats_url=servers.endpoints.nats_url, redis_url=servers.endpoints.redis_url)
    starts = {name: importlib.import_module(f"procession_services.{name}.app").start for name in services}
    running = _Process(starts, settings)
    async with asyncio.timeout(30):
        task = asyncio.create_task(running.run())
        await running.live.wait()
        await running.hosts[-1].bus.client._process_err("'Maximum Payload Violation'")
        with pytest.raises(NotReachableError, match="Maximum Payload Violation"):
            await task


async def test_work_that_ends_while_nats_is_away_is_not_lost(servers, system):
    gate = system.gate()
    processors = [gate.processor("processInput")]
    handle = await system.start({"chunks": ["made ", "it"]}, agent={"inputProcessors": processors})
    await gate.reached()
    servers.kill_nats()
    await gate.open()
    await servers.restart_nats()
    result, chunks = await finished(handle)
    assert result.text == text_of(chunks) == "made it"
    assert await gate.passes() == 1


@pytest.mark.parametrize("processors", [[], ["upper"]])
async def test_a_run_outlives_a_restart_of_redis(servers, system, processors):
    model = system.script({**SLOW, "chunks": TEXT[:10]})
    handle = await system.start(agent={"model": model, "outputProcessors": processors, "memory": {}},
                                memory={"thread": "t", "resource": "r"})  # fmt: skip
    chunks = await begun(handle)
    servers.kill_redis()
    while system.models.stats.open:
        chunks.append(await anext(handle.chunks()))
    await servers.restart_redis()
    result, more = await finished(handle)
    expected = "".join(TEXT[:10]).upper() if processors else "".join(TEXT[:10])
    assert (result.status, result.text, text_of(chunks + more)) == ("finished", expected, expected)
    assert len(system.requests(model)) == 1


async def test_both_go_away_between_two_runs(servers, system):
    servers.kill_redis()
    await servers.restart_nats()
    await servers.restart_redis()
    result, chunks = await system.run({"chunks": ["well"]}, agent={"outputProcessors": ["upper"]})
    assert result.text == text_of(chunks) == "WELL"


async def test_thirty_runs_outlive_restarts_of_both(servers, system):
    handles = [
        await system.start(SLOW, agent={"outputProcessors": ["upper"] * (number % 2)}) for number in range(30)
    ]
    ends = [asyncio.create_task(finished(handle)) for handle in handles]
    await servers.restart_nats()
    await servers.restart_redis()
    for number, end in enumerate(ends):
        result, chunks = await end
        expected = "".join(TEXT).upper() if number % 2 else "".join(TEXT)
        assert (result.status, result.text, text_of(chunks)) == ("finished", expected, expected)


@pytest.mark.parametrize("gone", [*((stream,) for stream in STREAMS), tuple(STREAMS)], ids=" ".join)
async def test_streams_that_are_gone_are_made_again(system, nats, gone):
    """Somebody has deleted them, or NATS came back without its data."""
    js = nats.jetstream()
    for stream in gone:
        await js.delete_stream(stream)
    if "RUNS" in gone:  # until it is there requests are refused when they are sent
        await eventually(lambda: there_are(js, ["RUNS"]))
    agent = {"inputProcessors": ["upper"], "outputProcessors": ["upper"]}
    result, chunks = await system.run({"chunks": ["well"]}, agent=agent)
    assert result.text == text_of(chunks) == "WELL"
    await eventually(lambda: there_are(js, gone))
    later, _ = await system.run({"chunks": ["again"]}, agent=agent)
    await eventually(lambda: system.batches(later.run_id))
    late, again = await finished(await system.client.attach(later.run_id))
    assert late.text == text_of(again) == "AGAIN"


async def there_are(js, streams):
    try:
        return [await js.stream_info(stream) for stream in streams]
    except NotFoundError:
        return False


@pytest.mark.parametrize("missing", ["NATS", "Redis"])
async def test_a_service_does_not_wait_for_ever_for_its_servers(system, monkeypatch, missing):
    monkeypatch.setattr(hosting, "START_SECONDS", 2.0)
    urls = {"NATS": ("nats://127.0.0.1:1", system.servers.redis_url),
            "Redis": (system.servers.nats_url, "redis://127.0.0.1:1/0")}  # fmt: skip
    nats_url, redis_url = urls[missing]
    settings = Settings(nats_url=nats_url, redis_url=redis_url)

    async def never(_host):
        raise AssertionError("there is nothing to start with")

    with pytest.raises(NotReachableError, match=missing):
        async with hosted("memory", settings, never):
            pass


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nats", "Protocol error"),
        ("database", "DB index is out of range"),
        ("password", "without any password"),
    ],
)
async def test_a_service_says_what_is_wrong_with_the_address_of_redis(system, monkeypatch, caplog, url, why):
    monkeypatch.setattr(hosting, "START_SECONDS", 2.0)
    urls = {
        "nats": system.servers.nats_url.replace("nats:", "redis:"),
        "database": system.servers.redis_url.removesuffix("0") + "99",
        "password": system.servers.redis_url.replace("redis://", "redis://:secret@"),
    }
    settings = Settings(nats_url=system.servers.nats_url, redis_url=urls[url])

    async def never(_host):
        raise AssertionError("there is nothing to start with")

    with pytest.raises(NotReachableError, match="Redis at") as refused:
        async with hosted("memory", settings, never):
            pass
    assert why in f"{refused.value}{caplog.text}"


async def works(host):
    """What the health file is told: an error, or no answer in time, means no."""
    try:
        async with asyncio.timeout(3):
            return await host.works()
    except (RedisError, TimeoutError):
        return False


@pytest.mark.parametrize("server", ["nats", "redis"])
async def test_a_service_says_that_it_cannot_work_while_a_server_is_away(servers, system, server):
    async def nothing(_host):
        pass

    async with hosted("tools", system.settings("watched"), nothing) as host:
        assert await works(host)
        getattr(servers, f"kill_{server}")()
        assert not await works(host)
        await getattr(servers, f"restart_{server}")()
        await eventually(lambda: works(host))


@pytest.mark.parametrize("hook", ["processInput", "processOutputStep"])
async def test_who_was_late_leaves_the_command_to_whoever_nats_gave_it_to_meanwhile(system, hook):
    gate = system.gate()
    place = "inputProcessors" if hook == "processInput" else "outputProcessors"
    handle = await system.start(
        {"chunks": ["one"]}, {"chunks": ["one"]}, agent={place: [gate.processor(hook)]}
    )
    await gate.reached()
    store = RunStore(system.redis, ttl=600, finished_ttl=600, told_ttl=600)
    stored = await store.load_state(system.client.tenant, handle.run_id)
    assert stored is not None
    seq = json.loads(stored.state)["seq"]
    assert await store.take_context(system.client.tenant, handle.run_id, seq=seq, owner="dead.x.tools")
    await gate.open()
    result, _ = await finished(handle)
    assert (result.status, result.text) == ("finished", "one")
    assert await gate.passes() == 2
