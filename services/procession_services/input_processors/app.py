"""The input processors service, put together."""

from procession_services.input_processors.guards import BUSY, GuardAnswers
from procession_services.processor_host.service import Host
from procession_services.processor_host.sinks import StreamSinks

SERVICE = "input_processors"


async def start(host: Host) -> None:
    """Starts taking commands."""
    sinks = await StreamSinks.of(host)
    executor = await host.work_on_commands(sinks.sink, lender=sinks.lend)
    guards = GuardAnswers(executor, host.bus.publish, max_reply=host.bus.max_payload)
    await host.answer_alive(guard=(guards.answer, BUSY))
