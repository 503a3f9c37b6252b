"""Systems that the tests of a module share."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from procession_services.runtime.embedded import Endpoints
from tests.support.system import SERVICES, System, running_system


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(
    servers: Endpoints, tmp_path_factory: pytest.TempPathFactory, monkeypatch_module: pytest.MonkeyPatch
) -> AsyncIterator[System]:
    """All services in this process, one replica of each."""
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with running_system(servers, tmp_path_factory.mktemp("logs")) as system, system.inside(*SERVICES):
        yield system


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch
