"""What a consumer has given out to a replica that is gone: NATS is told in its place that it does not have it."""

from collections.abc import Collection
from typing import Final

from nats.aio.msg import Msg
from nats.errors import Error

from procession.client.nats_client import AWAY
from procession_services.bus.connection import Bus

__all__ = ["give_back"]

_NEWEST: Final = 10_000
"""So many numbers of a stream, up to that of the last message that was given out, are said to be given back."""


async def give_back(
    bus: Bus, stream: str, consumer: str, *, lost: Collection[int], kept: Collection[int]
) -> None:
    """Has NATS redeliver at once what a replica that is gone had in hand; if NATS is away, that waits for its leases.

    These are the messages `lost`, and those that it was given and had not begun, whose numbers nobody knows. So all of
    the newest numbers are given back, except `kept`. NATS ignores numbers that are done or another consumer's; and if a
    message is delivered that another replica has in hand, that one is asked (docs/adr/0028).

    Args:
        bus: The connection.
        stream: Where the messages are.
        consumer: Which has given them out.
        lost: Numbers in the stream that the replica had begun.
        kept: Numbers that replicas which live have in hand.
    """
    try:
        info = await bus.js.consumer_info(stream, consumer)
    except (*AWAY, Error):
        return
    if not info.num_ack_pending:
        return
    last = info.delivered.stream_seq
    newest = range(max(info.ack_floor.stream_seq, last - _NEWEST) + 1, last + 1)
    for number in sorted({*newest, *lost}.difference(kept)):
        # As an acknowledgement's, but for what NATS does not look at: how often, when, and how many were to come.
        subject = f"$JS.ACK.{stream}.{consumer}.1.{number}.{info.delivered.consumer_seq}.0.0"
        bus.post(subject, Msg.Ack.Nak)
