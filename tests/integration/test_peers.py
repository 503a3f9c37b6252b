"""Who is taken for gone, and what becomes of the work that it had in hand."""

import asyncio
import itertools
from typing import Any

import pytest
import pytest_asyncio

from procession_schemas import subjects
from procession_services.bus import Bus
from procession_services.processor_host.peers import Peers
from procession_services.runtime.clock import new_token
from procession_services.runtime.redis_client import connect
from procession_services.runtime.replicas import Replicas
from procession_services.runtime.run_records import StateChange
from procession_services.runtime.store import RunStore
from tests.support.system import SERVICES, running_system
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

FAR = 2**42
_numbers = itertools.count(2**40)


class Hands:
    """A worker that notes what it is to have delivered again."""

    def __init__(self, stream="WORK"):
        self.stream, self.given_back = stream, []

    async def give_back(self, lost=(), kept=()):
        self.given_back.append((sorted(lost), sorted(kept)))


class Team:
    """Replicas of a service, of which one looks after the others."""

    def __init__(self, bus, store):
        self.bus, self.store = bus, store
        self.service = f"service-{new_token(6)}"
        self.key = f"procession:admission:replicas:{self.service}"
        self.tenant = f"t-{new_token(6)}"
        self._suffix = new_token(6)
        self.hands = Hands()

    def named(self, replica):
        """The name of a replica that no other team has."""
        return f"{replica}-{self._suffix}"

    def replicas(self, replica="", silence=1.5):
        return Replicas(self.store.redis, self.service, self.named(replica or new_token(10)), silence)

    def peers(self, *options, **more):
        hands: Any = self.hands
        return Peers(self.bus, self.store, self.replicas(*options, **more), [hands])

    async def silent(self, replica):
        """A replica of which Redis has not heard for long."""
        await self.store.redis.zadd(self.key, {self.named(replica): 0})

    async def has(self, replica, run, *, service=None, seq=3, out=3):
        """Has a replica work on a command of a run; gives the number of its message."""
        await self.store.save_state(self.tenant, run, StateChange(0, b"{}", FAR, finished=False, out=seq))
        owner = f"{self.named(replica)}.{new_token(12)}.{service or self.service}"
        number = next(_numbers)
        assert await self.store.take_context(
            self.tenant, run, seq=seq, owner=owner, attempt=1, message=number
        )
        if out != seq:
            await self.store.save_state(self.tenant, run, StateChange(1, b"{}", FAR, finished=False, out=out))
        return number

    def given_back(self):
        """The messages that were lost, each time that some were given back."""
        return [lost for lost, _ in self.hands.given_back]


@pytest_asyncio.fixture(loop_scope="session")
async def team(servers):
    bus = await Bus.connect(servers.nats_url, "peers")
    redis = connect(servers.redis_url)
    yield Team(bus, RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60))
    await bus.close()
    await redis.aclose()


async def test_what_one_had_that_is_gone_is_given_back_once(team, caplog):
    await team.replicas("other").silent()
    lost = [await team.has("gone", "one"), await team.has("gone", "two")]
    kept = [await team.has("other", "three")]
    lost.append(await team.has("gone", "four", service="handed-over"))
    kept.append(await team.has("other", "five", service="handed-over"))
    await team.has("somebody", "six", service="another-service")
    await team.silent("gone")
    await asyncio.gather(*(team.peers().look() for _ in range(4)))
    await team.peers().look()
    assert team.hands.given_back == [(lost, kept)]
    assert "replicas are gone, so their work goes to others: gone-" in caplog.text


async def test_so_is_what_had_come_to_it_from_one_that_is_gone_since_before(team):
    """It had not taken that over yet."""
    before, now = await team.has("before", "one"), await team.has("now", "two")
    await team.silent("now")
    await team.peers().look()
    assert team.given_back() == [[before, now]]


async def test_the_message_before_is_given_back_unless_the_run_waits_for_a_person(team):
    """Whoever is gone may have stored what comes next, and not said so."""
    moved = await team.has("gone", "moved", out=4)
    await team.has("gone", "waits", out=0)
    await team.silent("gone")
    await team.peers().look()
    assert team.given_back() == [[moved]]


async def test_a_command_without_a_message_of_its_own_is_that_of_the_message_before(team):
    number = await team.has("gone", "run")
    await team.store.save_state(team.tenant, "run", StateChange(1, b"{}", FAR, finished=False, out=4))
    owner = f"gone.x.{team.service}"
    assert await team.store.take_context(team.tenant, "run", seq=4, owner=owner, attempt=1)
    await team.silent("gone")
    await team.peers().look()
    assert team.given_back() == [[number]]


async def test_what_redis_knows_of_is_in_work_and_in_no_other_stream(team):
    """An orchestrator has requests as well, whose numbers are others'."""
    await team.has("gone", "run")
    team.hands.stream = "RUNS"
    await team.silent("gone")
    await team.peers().look()
    assert team.hands.given_back == [([], [])]


async def test_who_listens_is_there_though_it_says_nothing(team):
    """Its process is stopped, or its event loop is blocked."""
    await team.silent("busy")
    await team.bus.subscribe(subjects.holder(team.service, team.named("busy")), lambda *_: None)
    await team.bus.flush()
    await team.peers().look()
    assert team.given_back() == []


async def test_who_tells_redis_is_there_though_it_has_lost_nats(team):
    looker = team.peers()
    for _ in range(2):
        await team.peers("cut-off").look()
        await looker.look()
    assert team.given_back() == []


async def test_who_has_left_is_not_looked_for(team):
    one = team.replicas()
    await one.silent()
    assert await team.store.redis.zcard(team.key) == 1
    await one.leave()
    assert await team.store.redis.zcard(team.key) == 0


async def test_who_has_more_time_is_not_given_up_before(team):
    """A tools host, of which a tool may block the event loop just when NATS is restarted."""
    number = await team.has("late", "run")
    seconds, micros = await team.store.redis.time()
    await team.store.redis.zadd(team.key, {team.named("late"): seconds * 1000 + micros // 1000 - 60_000})
    await team.peers(silence=120).look()
    assert team.given_back() == []
    await team.peers(silence=50).look()
    assert team.given_back() == [[number]]


async def test_replicas_of_all_services_look_after_each_other(servers, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with running_system(servers, tmp_path) as system, system.inside(*SERVICES):

        async def all_do():
            keys = [f"procession:admission:replicas:{name}" for name in SERVICES]
            return all([await system.redis.zcard(key) for key in keys])

        await eventually(all_do)
