"""The output processors service, put together."""

from procession_services.output_processors.local import LocalSinks
from procession_services.output_processors.parts import PartsStore
from procession_services.output_processors.sessions import SessionServer
from procession_services.processor_host.service import Host

SERVICE = "output_processors"


async def start(host: Host) -> None:
    """Starts taking commands and stream leases."""
    parts = PartsStore(host.store)
    executor = await host.work_on_commands(LocalSinks(parts).sink)
    sessions = SessionServer(host, executor, parts)
    await sessions.start()
    host.on_drain.append(sessions.drain)
