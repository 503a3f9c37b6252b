"""The memory service, put together."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

import orjson

from procession_schemas.work import HookOp
from procession_services.bus.alive import answer_within
from procession_services.memory.api import handle, too_long
from procession_services.memory.embedders import Embedders
from procession_services.memory.health import vector_problems
from procession_services.memory.indexing import Indexer
from procession_services.memory.lanes import Lanes
from procession_services.memory.observers import Observers
from procession_services.memory.recall import Recall
from procession_services.memory.scope import acting_for
from procession_services.memory.stores.chroma import ChromaVectors
from procession_services.memory.stores.redis import RedisMessageStore
from procession_services.memory.stores.redis_jobs import RedisJobs
from procession_services.memory.stores.redis_locks import RedisLocks
from procession_services.processor_host.job import Job
from procession_services.processor_host.ops import RUNNERS
from procession_services.processor_host.service import Host
from procession_services.processor_host.sinks import StreamSinks
from procession_services.runtime.settings import Settings
from procession_services.runtime.tasks import ended

SERVICE = "memory"
_THREADS: Final = "procession:memory:observe"
"""The queue of threads that have become long."""


async def start(host: Host) -> None:
    """Starts taking commands, answering requests about threads and messages, and indexing."""
    sinks = await StreamSinks.of(host)
    store = RedisMessageStore(host.redis)
    recall = await _recall(host, store)

    observers = _observers(host, store)

    async def hook(op: HookOp, job: Job) -> None:
        with acting_for(job.command.tenant, store, recall, observers):
            await RUNNERS["hook"](op, job)

    async def answer(tenant: str, operation: str, body: bytes) -> bytes:
        told = orjson.dumps(await handle(store, operation, body, tenant, recall=recall))
        return told if host.bus.fits(told) else orjson.dumps(too_long(len(told), host.bus.max_payload))

    await host.work_on_commands(sinks.sink, {"hook": hook}, sinks.lend)
    await host.bus.serve_api(SERVICE, answer)


async def _recall(host: Host, store: RedisMessageStore) -> Recall | None:
    """Semantic recall with its worker; None where no vector store is configured."""
    vectors = _vectors(host.settings)
    if vectors is None:
        return None
    settings = host.settings
    # Two that write into a collection of Chroma at once may leave entries in it that no search finds.
    jobs = RedisJobs(host.redis, settings.replica, lost_ms=0)
    locks = RedisLocks(host.redis, seconds=settings.work_ack_wait)
    embedders = Embedders(settings.embedder, partial(answer_within, host.bus), settings.onnx_path)
    host.admin.checks.append(partial(vector_problems, vectors, embedders, settings))
    recall = Recall(
        vectors,
        embedders,
        jobs,
        concurrency=settings.embed_concurrency,
        seconds=settings.recall_timeout,
    )
    host.on_stop.append(vectors.aclose)
    lanes = Lanes(jobs, Indexer(recall, store).finish, hold=partial(locks.hold, "index"))
    _work_until_stopped(host, lanes.run())
    return recall


def _observers(host: Host, store: RedisMessageStore) -> Observers:
    """Who makes notes behind the runs; what a replica that goes silent had taken, another one takes."""
    settings = host.settings
    jobs = RedisJobs(
        host.redis, settings.replica, name=_THREADS, lost_ms=round(settings.work_ack_wait * 1000)
    )
    locks = RedisLocks(host.redis, seconds=settings.work_ack_wait)
    observers = Observers(store, jobs, locks, host.environment.models.generate)
    _work_until_stopped(host, observers.run())
    return observers


def _work_until_stopped(host: Host, work: Coroutine[Any, Any, None]) -> None:
    host.on_stop.append(partial(ended, asyncio.create_task(work)))


def _vectors(settings: Settings) -> ChromaVectors | None:
    if settings.chroma_url:
        return ChromaVectors.over_http(settings.chroma_url)
    return ChromaVectors.in_directory(settings.chroma_path) if settings.chroma_path else None
