"""What holds for every test: no settings from outside, Hypothesis profiles, real servers on demand."""

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import settings

from procession_services.runtime.embedded import Endpoints
from tests.support.servers import running_servers

for _name in [name for name in os.environ if name.startswith("PROCESSION_")]:
    del os.environ[_name]

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Endpoints]:
    """NATS and Redis for the whole session; a test that kills servers starts its own."""
    async with running_servers(tmp_path_factory.mktemp("servers")) as endpoints:
        yield endpoints
