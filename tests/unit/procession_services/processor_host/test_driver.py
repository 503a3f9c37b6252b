"""What one run does to others: it gives them their turn, or sends them away, whatever is wrong with one of them."""

import secrets
from typing import Any

import orjson
import pytest

from procession_services.bus import Bus
from procession_services.processor_host.driver import Driver, line_of
from procession_services.runs.events import Interrupt, PassTurn
from procession_services.runs.state import Line
from procession_services.runtime.admission import CALLED, Called, Wanted
from procession_services.runtime.redis_client import connect
from procession_services.runtime.store import RunStore, run_key
from tests.unit.procession_services.runs.driving import make_plan, make_state

pytestmark = pytest.mark.integration
FAR = 4_000_000_000_000


class Runs:
    """Runs on one thread, all of which wait for their turn but the first one."""

    def __init__(self, redis: Any, bus: Bus) -> None:
        self.redis, self.tenant = redis, f"t-{secrets.token_hex(6)}"
        self.store = RunStore(redis, ttl=60, finished_ttl=30, told_ttl=90)
        self.driver = Driver(bus, self.store, self._execute)

    async def _execute(self, _command: Any) -> None:
        """Nobody is at work."""

    def state(self, run: str) -> Any:
        own = {"run": run, "tenant": self.tenant, "deadline_ms": FAR, "queued": True}
        return make_state(make_plan()).model_copy(update={**own, "line": Line(resource="ann", thread="t")})

    async def admit(self, run: str) -> None:
        state = self.state(run)
        await self.store.admit(
            self.tenant, run, state=state.to_json(), plan=state.plan.stored, deadline_ms=FAR, out=1, numbered_in=0,
            wanted=Wanted(waiting=99, crowd=99), line=line_of(state), queued=state.to_json(),
        )  # fmt: skip

    async def spoil(self, run: str) -> None:
        """Stores what only a later version understands."""
        state = self.state(run).model_copy(update={"then": "of a later version"})
        await self.redis.hset(run_key(self.tenant, run), "state", state.to_json())

    async def stored(self, run: str) -> dict[str, Any]:
        found = await self.store.load_state(self.tenant, run)
        assert found is not None
        state: dict[str, Any] = orjson.loads(found.state)
        return state


@pytest.fixture
async def runs(servers):
    bus = await Bus.connect(servers.nats_url, "test")
    async with connect(servers.redis_url) as redis:
        runs = Runs(redis, bus)
        yield runs
        for run in ("one", "two", "three"):
            await runs.store.discard(runs.tenant, run)
    await bus.close()


async def test_a_run_that_cannot_be_read_keeps_no_other_from_its_beginning(runs):
    for run in ("one", "two"):
        await runs.admit(run)
    await runs.spoil("one")
    await runs.redis.zadd(CALLED, {f"{runs.tenant} {run}": 1 for run in ("one", "two")})
    await runs.driver.begin([Called(runs.tenant, run) for run in ("one", "two")])
    assert (await runs.stored("two"))["sent"] is not None
    left = [name.decode() for name in await runs.redis.zrange(CALLED, 0, -1)]
    assert f"{runs.tenant} one" in left, "who can read it may begin it"
    assert f"{runs.tenant} two" not in left


async def test_a_run_that_cannot_be_read_spoils_nothing_for_the_one_before_or_behind_it(runs):
    for run in ("one", "two", "three"):
        await runs.admit(run)
    await runs.spoil("two")
    three = runs.state("three")
    await runs.driver.perform(three, [Interrupt()])
    assert (await runs.stored("one"))["cancel"]
    await runs.store.discard(runs.tenant, "one")
    await runs.driver.perform(runs.state("one"), [PassTurn()])


async def test_whoever_waits_behind_a_run_that_is_discarded_gets_its_turn(runs):
    for run in ("one", "two"):
        await runs.admit(run)
    await runs.driver.discard(runs.tenant, "one", runs.state("one").line)
    assert (await runs.stored("two"))["sent"] is not None
