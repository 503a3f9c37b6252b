"""A client beside services that a test plays."""

import pytest

from procession.client import Procession
from tests.support.wire import services_at


@pytest.fixture
async def services(servers):
    async with services_at(servers.nats_url) as services:
        yield services


@pytest.fixture
async def procession(servers, services):
    async with Procession(servers.nats_url, tenant=services.tenant) as procession:
        yield procession
