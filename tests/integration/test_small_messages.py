"""A NATS whose messages are too short for any request says so, where it is started and to who asks."""

import pytest

from procession_services.runtime.embedded import EmbeddedServers
from procession_services.runtime.server_programs import Nats
from tests.support.system import SERVICES, running_system

pytestmark = [pytest.mark.integration]


async def test_it_is_told_what_is_too_small_and_how_to_mend_it(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    config = Nats.config
    monkeypatch.setattr(Nats, "config", lambda *of: config(*of).replace("8MB", "64KB"))
    told = "NATS takes messages of 65,536 bytes, and Procession needs 131,072 besides the request"
    remedy = f"{told}; set `max_payload: 8MB` in nats.conf"
    async with (
        EmbeddedServers(tmp_path) as servers,
        running_system(servers.endpoints, tmp_path) as system,
        system.inside(*SERVICES),
    ):
        result, _ = await system.run({"chunks": ["x"]})
    assert result.error.code == "REQUEST_TOO_LARGE"
    assert f"at most 0 are accepted: {remedy}" in result.error.message
    assert f"every request will be refused: {remedy}" in caplog.text
