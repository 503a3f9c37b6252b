"""The memory service, put together."""

from typing import Any

from procession_schemas.work import HookOp
from procession_services.memory.api import handle
from procession_services.memory.scope import acting_for
from procession_services.memory.stores.redis import RedisMessageStore
from procession_services.processor_host.job import Job
from procession_services.processor_host.ops import RUNNERS
from procession_services.processor_host.service import Host
from procession_services.processor_host.streams import StreamClient

SERVICE = "memory"


async def start(host: Host) -> None:
    """Starts taking commands and answering requests about threads and messages."""
    streams = StreamClient(host.bus, host.settings.replica)
    await streams.start()
    host.on_stop.append(streams.stop)
    store = RedisMessageStore(host.redis)

    async def hook(op: HookOp, job: Job) -> None:
        with acting_for(job.command.tenant, store):
            await RUNNERS["hook"](op, job)

    async def answer(tenant: str, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        return await handle(store, operation, body, tenant)

    await host.work_on_commands(streams.sink, {"hook": hook})
    await host.bus.serve_api(SERVICE, answer)
