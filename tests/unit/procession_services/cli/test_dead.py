"""`procession dead`, where it cannot do its work."""

import asyncio

import pytest

from procession_services.bus.operator import Operator
from procession_services.cli import main

pytestmark = pytest.mark.integration


async def test_a_server_without_jetstream_is_told_without_its_password(servers, monkeypatch, capsys):
    async def has_none(_operator):
        return False

    monkeypatch.setattr(Operator, "has_jetstream", has_none)
    url = servers.nats_url.replace("//", "//me:hidden@")
    assert await asyncio.to_thread(main, ["dead", "list", "--nats-url", url]) != 0
    told = capsys.readouterr().err
    assert f"{servers.nats_url} has no JetStream" in told
    assert "hidden" not in told
