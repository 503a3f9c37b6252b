"""What operators ask of a process, on a real NATS."""

import asyncio

import pytest
import pytest_asyncio

from procession_schemas import subjects
from procession_schemas.admin import ServiceStatus
from procession_services.bus import Bus
from procession_services.processor_host.admin import Admin
from procession_services.runtime.problems import Problem
from tests.support.waiting import until

pytestmark = pytest.mark.integration
ASKERS = 50


class SlowCheck:
    """It says how often it was made, when it is let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.made = 0

    async def __call__(self) -> list[Problem]:
        self.made += 1
        told = Problem("check", "", str(self.made))
        await self.let.wait()
        return [told]


@pytest_asyncio.fixture
async def bus(servers):
    bus = await Bus.connect(servers.nats_url, "test-admin")
    yield bus
    await bus.close()


@pytest.fixture
def check():
    return SlowCheck()


async def test_who_asks_while_others_are_answered_is_answered_with_the_next(bus, check):
    admin = Admin(bus, "tools", "r1")
    admin.checks.append(check)
    heard: list[str] = []

    async def ask(inbox: str) -> None:
        await bus.publish(subjects.admin("status"), b"", reply=inbox)

    def on_answer(subject: str, body: bytes, _reply: str) -> None:
        (finding,) = ServiceStatus.model_validate_json(body).findings
        heard.append(f"{subject.rpartition('.')[2]} {finding.message}")

    inbox = bus.client.new_inbox()
    await bus.subscribe(f"{inbox}.*", on_answer)
    async with admin.serving():
        await bus.flush()
        await ask(f"{inbox}.first")
        await until(lambda: check.made == 1)
        for _ in range(ASKERS):
            await ask(f"{inbox}.later")
        await bus.flush()
        check.let.set()
        await until(lambda: len(heard) == 1 + ASKERS)
        assert heard == ["first 1", *["later 2"] * ASKERS]
        await ask(f"{inbox}.last")
        await until(lambda: heard[-1] == "last 3")
