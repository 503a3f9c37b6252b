"""The memory service, put together."""

import asyncio
from typing import Any

from procession_schemas.work import HookOp
from procession_services.memory.api import handle
from procession_services.memory.embedders import Embedders
from procession_services.memory.indexing import Indexer
from procession_services.memory.recall import Recall
from procession_services.memory.scope import acting_for
from procession_services.memory.stores.chroma import ChromaVectors
from procession_services.memory.stores.redis import RedisMessageStore
from procession_services.memory.stores.redis_jobs import RedisJobs
from procession_services.processor_host.job import Job
from procession_services.processor_host.ops import RUNNERS
from procession_services.processor_host.service import Host
from procession_services.processor_host.streams import StreamClient
from procession_services.runtime.settings import Settings

SERVICE = "memory"


async def start(host: Host) -> None:
    """Starts taking commands, answering requests about threads and messages, and indexing."""
    streams = StreamClient(host.bus, SERVICE, host.settings.replica)
    await streams.start()
    host.on_stop.append(streams.stop)
    store = RedisMessageStore(host.redis)
    recall = await _recall(host, store)

    async def hook(op: HookOp, job: Job) -> None:
        with acting_for(job.command.tenant, store, recall):
            await RUNNERS["hook"](op, job)

    async def answer(tenant: str, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        return await handle(store, operation, body, tenant, recall=recall)

    await host.work_on_commands(streams.sink, {"hook": hook})
    await host.bus.serve_api(SERVICE, answer)


async def _recall(host: Host, store: RedisMessageStore) -> Recall | None:
    """Semantic recall with its worker; None where no vector store is configured."""
    vectors = _vectors(host.settings)
    if vectors is None:
        return None
    settings = host.settings
    jobs = RedisJobs(host.redis, settings.replica)
    recall = Recall(
        vectors,
        Embedders(settings.embedder, host.bus.request),
        jobs,
        concurrency=settings.embed_concurrency,
        seconds=settings.recall_timeout,
    )
    worker = asyncio.create_task(Indexer(recall, store, jobs).run())

    async def stop() -> None:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await vectors.aclose()

    host.on_stop.append(stop)
    return recall


def _vectors(settings: Settings) -> ChromaVectors | None:
    if settings.chroma_url:
        return ChromaVectors.over_http(settings.chroma_url)
    return ChromaVectors.in_directory(settings.chroma_path) if settings.chroma_path else None
