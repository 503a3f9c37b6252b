"""Who is taken for gone, and what becomes of the work that it had in hand."""

import asyncio

import pytest
import pytest_asyncio

from procession_schemas import subjects
from procession_services.bus import Bus
from procession_services.processor_host.peers import Peers
from procession_services.runtime.clock import new_token
from procession_services.runtime.redis_client import connect
from procession_services.runtime.run_records import StateChange
from procession_services.runtime.store import RunStore
from tests.support.system import SERVICES, all_but, running_system
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

FAR = 2**42


class Team:
    """Replicas of a service, of which one looks after the others; what is given back of their work."""

    def __init__(self, bus, store):
        self.bus, self.store = bus, store
        self.service = f"service-{new_token(6)}"
        self.key = f"procession:admission:replicas:{self.service}"
        self.tenant = f"t-{new_token(6)}"
        self.given_back = []

    async def listen(self):
        def heard(subject, body, _reply):
            self.given_back.append((subject.rpartition(".")[2], body))

        await self.bus.subscribe(f"{self.tenant}.*", heard)
        await self.bus.flush()

    def peers(self):
        return Peers(self.bus, self.store, self.service, new_token(10))

    async def silent(self, replica):
        """A replica of which Redis has not heard for long."""
        await self.store.redis.zadd(self.key, {replica: 0})

    async def has(self, replica, run, *, service=None, seq=3, out=3):
        """Has a replica work on a command of a run, which is named by its delivery."""
        await self.store.save_state(self.tenant, run, StateChange(0, b"{}", FAR, finished=False, out=seq))
        owner = f"{replica}.{new_token(12)}.{service or self.service}"
        reply = f"{self.tenant}.{run}"
        assert await self.store.take_context(
            self.tenant, run, seq=seq, owner=owner, attempt=1, delivery=reply
        )
        if out != seq:
            await self.store.save_state(self.tenant, run, StateChange(1, b"{}", FAR, finished=False, out=out))

    async def told(self):
        """What was given back until now."""
        await self.bus.flush()
        return sorted(self.given_back)


@pytest_asyncio.fixture(loop_scope="session")
async def team(servers):
    bus = await Bus.connect(servers.nats_url, "peers")
    redis = connect(servers.redis_url)
    team = Team(bus, RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60))
    await team.listen()
    yield team
    await bus.close()
    await redis.aclose()


async def test_what_one_had_that_is_gone_is_given_back_once(team, caplog):
    await team.has("gone", "one")
    await team.has("gone", "two")
    await team.has("other", "three")
    await team.has("gone", "four", service="another-service")
    await team.silent("gone")
    await asyncio.gather(*(team.peers().look() for _ in range(4)))
    assert await team.told() == [("one", b"-NAK"), ("two", b"-NAK")]
    assert "replica gone is gone, others have its 2 commands" in caplog.text
    await team.peers().look()
    assert len(await team.told()) == 2


async def test_the_message_before_is_given_back_unless_the_run_waits_for_a_person(team):
    """Whoever is gone may have stored what comes next, and not said so."""
    await team.has("gone", "moved", out=4)
    await team.has("gone", "waits", out=0)
    await team.silent("gone")
    await team.peers().look()
    assert await team.told() == [("moved", b"-NAK")]


async def test_a_command_without_a_message_of_its_own_is_that_of_the_message_before(team):
    await team.has("gone", "run")
    await team.store.save_state(team.tenant, "run", StateChange(1, b"{}", FAR, finished=False, out=4))
    owner = f"gone.x.{team.service}"
    assert await team.store.take_context(team.tenant, "run", seq=4, owner=owner, attempt=1)
    await team.silent("gone")
    await team.peers().look()
    assert await team.told() == [("run", b"-NAK")]


async def test_who_listens_is_there_though_it_says_nothing(team):
    """Its process is stopped, or its event loop is blocked."""
    await team.has("busy", "run")
    await team.silent("busy")
    await team.bus.subscribe(subjects.holder(team.service, "busy"), lambda *_: None)
    await team.bus.flush()
    await team.peers().look()
    assert await team.told() == []


async def test_who_tells_redis_is_there_though_it_has_lost_nats(team):
    await team.has("cut-off", "run")
    looker = team.peers()
    for _ in range(2):
        await Peers(team.bus, team.store, team.service, "cut-off").look()
        await looker.look()
    assert await team.told() == []


async def test_who_has_left_is_not_looked_for(team):
    one = team.peers()
    await one.look()
    assert await team.store.redis.zcard(team.key) == 1
    await one.leave()
    assert await team.store.redis.zcard(team.key) == 0


async def test_who_has_more_time_is_not_given_up_before(team):
    """A tools host, of which a tool may block the event loop just when NATS is restarted."""
    await team.has("late", "run")
    seconds, micros = await team.store.redis.time()
    await team.store.redis.zadd(team.key, {"late": seconds * 1000 + micros // 1000 - 60_000})
    patient, other = (
        Peers(team.bus, team.store, team.service, name, silence) for name, silence in (("a", 120), ("b", 50))
    )
    await patient.look()
    assert await team.told() == []
    await other.look()
    assert await team.told() == [("run", b"-NAK")]


async def test_replicas_of_all_services_that_have_commands_look_after_each_other(
    servers, tmp_path, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with running_system(servers, tmp_path) as system, system.inside(*SERVICES):

        async def known():
            keys = {name: f"procession:admission:replicas:{name}" for name in SERVICES}
            return {name for name, key in keys.items() if await system.redis.zcard(key)}

        async def all_have_begun():
            return {*all_but("orchestrator")} <= await known()

        await eventually(all_have_begun)
        assert "orchestrator" not in await known()
