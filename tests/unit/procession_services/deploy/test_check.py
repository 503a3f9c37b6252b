"""What the check says where a server stops answering in its course; tests/integration has it against real servers."""

from procession_services.deploy.check import _nobody, _user
from procession_services.runtime.access import Access
from procession_services.runtime.settings import Settings

AWAY = Settings(nats_url="nats://127.0.0.1:9")
WHY = "cannot reach NATS at nats://127.0.0.1:9"


async def test_a_password_that_could_not_be_tried_is_not_told_to_be_rejected():
    [problem] = await _user(AWAY, Access("tools", "secret"), "nats/tools")
    assert str(problem).startswith(f"nats/tools: this password could not be tried: {WHY}")


async def test_a_server_that_is_away_is_not_taken_for_one_that_keeps_strangers_out():
    [problem] = await _nobody(AWAY, Access("tools", "secret"))
    assert str(problem).startswith("NATS: whether it accepts connections without a password is unknown: ")
    assert WHY in str(problem)
