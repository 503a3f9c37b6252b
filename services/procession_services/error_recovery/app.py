"""The error recovery service, put together."""

from procession_services.processor_host.service import Host
from procession_services.processor_host.sinks import StreamSinks

SERVICE = "error_recovery"


async def start(host: Host) -> None:
    """Starts taking commands."""
    sinks = await StreamSinks.of(host)
    await host.work_on_commands(sinks.sink, lender=sinks.lend)
