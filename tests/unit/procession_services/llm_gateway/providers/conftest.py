"""Both ways to a provider."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
from tests.unit.procession_services.llm_gateway.providers.replay import REGION


@pytest.fixture(autouse=True)
def _amazon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ACCESS_KEY_ID": "AKID", "SECRET_ACCESS_KEY": "secret", "REGION": REGION}.items():
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest_asyncio.fixture
async def direct() -> AsyncIterator[LiteLLMProvider]:
    source = LiteLLMProvider()
    yield source
    await source.aclose()


@pytest_asyncio.fixture
async def wrapped() -> AsyncIterator[LiteLLMProvider]:
    source = LiteLLMProvider(direct=False)
    yield source
    await source.aclose()
