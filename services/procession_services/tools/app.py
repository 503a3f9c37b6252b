"""The tools service, put together."""

from functools import partial

from procession_services.bus.alive import request_when_up
from procession_services.processor_host.service import Host
from procession_services.processor_host.sinks import StreamSinks
from procession_services.tools.execute import cancel_tools, run_tools
from procession_services.tools.remote import remote_tool

SERVICE = "tools"
_SILENCE = 5.0
"""More than others have: where a host is taken for gone that lives, a tool is called twice."""


async def start(host: Host) -> None:
    """Starts taking commands."""
    host.silence = _SILENCE
    sinks = await StreamSinks.of(host)
    host.registry.add_tool(remote_tool(host.bus.request))
    for kind in list(host.registry.tools.values()):
        connected = getattr(kind, "connected", None)
        if connected is not None:  # a tool of another service, which it asks over the bus
            host.registry.tools[kind.id] = connected(partial(request_when_up, host.bus))
    executor = await host.work_on_commands(sinks.sink, {"tools": run_tools}, sinks.lend)
    executor.cancels.listeners.append(cancel_tools)
