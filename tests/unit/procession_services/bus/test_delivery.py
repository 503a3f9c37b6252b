import asyncio

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from procession.client.heard import Heard
from procession_services.bus import AGAIN, Delivery, Hold, LostError


def now():
    return asyncio.get_running_loop().time()


async def test_what_has_no_end_is_ours():
    hold = Hold()
    assert hold.lasts()
    await hold.keep()


async def test_what_lasts_asks_nobody():
    asked = []
    hold = Hold(now() + 60, lambda: asked.append(1))
    await hold.keep()
    assert asked == []


@pytest.mark.parametrize("waiting", [1, 3])
async def test_who_needs_to_know_waits_until_it_is_ours_again(waiting):
    asked = asyncio.Event()
    hold = Hold(now(), asked.set)
    keeping = [asyncio.create_task(hold.keep()) for _ in range(waiting)]
    async with asyncio.timeout(10):
        await asked.wait()
        assert not any(each.done() for each in keeping)
        hold.extend(now() + 60)
        await asyncio.gather(*keeping)
    assert hold.lasts()


async def test_who_needs_to_know_is_told_that_it_is_lost():
    asked = asyncio.Event()
    hold = Hold(now(), asked.set)
    keeping = asyncio.create_task(hold.keep())
    async with asyncio.timeout(10):
        await asked.wait()
        hold.lose()
        with pytest.raises(LostError):
            await keeping
        with pytest.raises(LostError):
            await hold.keep()


async def test_what_is_lost_does_not_last_whatever_its_time_is():
    hold = Hold(now() + 60)
    hold.lose()
    assert not hold.lasts()


async def test_a_time_that_is_over_again_is_asked_for_again():
    asked: asyncio.Queue[None] = asyncio.Queue()
    hold = Hold(now(), lambda: asked.put_nowait(None))
    keeping = asyncio.create_task(hold.keep())
    async with asyncio.timeout(10):
        await asked.get()
        hold.extend(now())
        await asked.get()
        hold.extend(now() + 60)
        await keeping


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.RUNS.orchestrator-runs.2.17.31.1795962904558529105.4",
        "$JS.ACK._.4ztMDzfA.RUNS.orchestrator-runs.2.17.31.1795962904558529105.4",
        "$JS.ACK.hub.4ztMDzfA.RUNS.orchestrator-runs.2.17.31.1795962904558529105.4.r4nd0m",
    ],
)
def test_what_jetstream_tells_of_a_delivery_is_read_as_nats_py_reads_it(reply):
    told = Msg(_client=Client(), reply=reply).metadata
    delivery = Delivery.of(Heard("s", reply, b"body"), Hold(), 30.0)
    assert (delivery.sequence, delivery.attempt) == (told.sequence.stream, told.num_delivered) == (17, 2)
    assert delivery.stored_at == told.timestamp.isoformat()
    assert (delivery.subject, delivery.body, delivery.lease) == ("s", b"body", 30.0)
    assert (delivery.message_id, delivery.traceparent, delivery.again) == (None, None, False)


def test_a_delivery_has_what_its_headers_say():
    header = f"NATS/1.0\r\nNats-Msg-Id: m1\r\ntraceparent: 00-1\r\n{AGAIN}: 1\r\n\r\n".encode()
    delivery = Delivery.of(Heard("s", "$JS.ACK.W.c.1.1.1.0.0", b"", header), Hold(), 0.0)
    assert (delivery.message_id, delivery.traceparent, delivery.again) == ("m1", "00-1", True)


@pytest.mark.parametrize("reply", ["", "_INBOX.x", "$JS.ACK.W.c.1"])
def test_what_jetstream_has_not_delivered_is_none(reply):
    with pytest.raises(ValueError, match="unpack"):
        Delivery.of(Heard("s", reply, b""), Hold(), 0.0)
