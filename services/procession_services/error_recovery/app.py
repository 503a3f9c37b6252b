"""The error recovery service, put together."""

from procession_services.processor_host.service import Host
from procession_services.processor_host.sinks import StreamSinks
from procession_services.processor_host.streams import StreamClient

SERVICE = "error_recovery"


async def start(host: Host) -> None:
    """Starts taking commands."""
    streams = StreamClient(host.bus, host.store, SERVICE, host.settings.replica)
    await streams.start()
    sinks = StreamSinks(streams)
    host.on_stop.append(streams.stop)
    await host.work_on_commands(sinks.sink, lender=sinks.lend)
