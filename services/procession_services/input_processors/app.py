"""The input processors service, put together."""

from procession_schemas import subjects
from procession_schemas.guard import GuardOffer
from procession_services.input_processors.guards import BUSY, GuardAnswers
from procession_services.processor_host.service import Host
from procession_services.processor_host.streams import StreamClient

SERVICE = "input_processors"


async def start(host: Host) -> None:
    """Starts taking commands."""
    streams = StreamClient(host.bus, SERVICE, host.settings.replica)
    await streams.start()
    host.on_stop.append(streams.stop)
    executor = await host.work_on_commands(streams.sink, lender=streams.lend)
    guards = GuardAnswers(executor, host.bus.publish, max_reply=host.bus.max_payload)
    replica = host.settings.replica
    offer = GuardOffer(replica=replica).to_json()

    async def live(_subject: str, _body: bytes) -> bytes:
        return offer

    await host.answer(subjects.api(SERVICE, "*", "guard"), guards.answer, busy=BUSY)
    await host.answer(subjects.api(SERVICE, "*", "guard", replica), guards.answer, busy=BUSY)
    await host.answer(subjects.offer(SERVICE), live, everybody=True)
