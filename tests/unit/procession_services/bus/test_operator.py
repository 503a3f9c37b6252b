"""The operator's connection where there is none to be had."""

import pytest

from procession_services.bus.operator import NoAccessError, Operator
from procession_services.runtime.access import Access


async def test_addresses_that_do_not_go_together_are_told():
    with pytest.raises(NoAccessError, match=r"cannot reach NATS at nats://a,ws://b .*mixing of websocket"):
        await Operator.connect("nats://a,ws://b", Access())
