"""The operator's connection where there is none to be had, or none any more."""

import pytest

from procession_services.bus.operator import NoAccessError, Operator
from procession_services.runtime.access import Access


async def test_addresses_that_do_not_go_together_are_told():
    with pytest.raises(NoAccessError, match=r"cannot reach NATS at nats://a,ws://b .*mixing of websocket"):
        await Operator.connect("nats://a,ws://b", Access())


async def test_why_a_server_cannot_be_reached_is_told_once():
    with pytest.raises(NoAccessError) as raised:
        await Operator.connect("nats://127.0.0.1:9", Access())
    assert str(raised.value).count("127.0.0.1', 9") == 1


async def test_a_server_that_goes_while_it_is_asked_is_told(servers):
    operator = await Operator.connect(servers.nats_url, Access())
    await operator.close()
    with pytest.raises(NoAccessError, match="connection to NATS broke"):
        await operator.ask("test.nobody", b"", enough=bool, seconds=5)
