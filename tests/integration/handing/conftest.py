"""Servers and a system for each test: they are killed and stopped, and processes hand commands to each other."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio

from tests.support.handing import LEASE, Heard
from tests.support.servers import Servers, own_servers
from tests.support.system import ServiceProcess, System, running_system


@pytest_asyncio.fixture(loop_scope="session")
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with own_servers(tmp_path / "servers") as servers:
        yield servers


@pytest_asyncio.fixture(loop_scope="session")
async def system(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[System]:
    """No service runs yet."""
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with running_system(servers.endpoints, tmp_path) as system:
        yield system


@pytest_asyncio.fixture(loop_scope="session")
async def start(system: System) -> AsyncIterator[Callable[..., Awaitable[ServiceProcess]]]:
    """Starts processes with one service each; gives the last one."""
    async with AsyncExitStack() as stack:

        async def started(*services: str, **settings: Any) -> ServiceProcess:
            settings = {"work_ack_wait": LEASE, "log_level": "INFO", **settings}
            processes = [system.process(each, **settings) for each in services]
            for process in processes:
                stack.push_async_callback(process.stop)
                await (await process.start()).ready()
            return processes[-1]

        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def heard(servers: Servers) -> AsyncIterator[Heard]:
    """Commands that go as messages, and what was handed over and is not done."""
    async with await nats.connect(servers.endpoints.nats_url) as connection:
        heard = Heard(connection)
        await heard.listen("work")
        await heard.listen("undone")
        yield heard
