"""The memory service, put together."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

from procession.processor import Hook
from procession_schemas import subjects
from procession_schemas.work import Control, HookOp
from procession_services.memory.api import handle
from procession_services.memory.embedders import Embedders
from procession_services.memory.indexing import Indexer
from procession_services.memory.recall import Recall
from procession_services.memory.scope import acting_for, place
from procession_services.memory.stores.chroma import ChromaVectors
from procession_services.memory.stores.redis import RedisMessageStore
from procession_services.memory.stores.redis_jobs import RedisJobs
from procession_services.memory.stores.redis_turns import RedisTurns
from procession_services.memory.turns import Turns
from procession_services.processor_host.job import Job
from procession_services.processor_host.ops import RUNNERS
from procession_services.processor_host.service import Host
from procession_services.processor_host.streams import StreamClient
from procession_services.runs.state import RunState
from procession_services.runtime import clock
from procession_services.runtime.settings import Settings

SERVICE = "memory"


async def start(host: Host) -> None:
    """Starts taking commands, answering requests about threads and messages, and indexing."""
    streams = StreamClient(host.bus, host.settings.replica)
    await streams.start()
    host.on_stop.append(streams.stop)
    store = RedisMessageStore(host.redis)
    recall = await _recall(host, store)

    turns = Turns(RedisTurns(host.redis), partial(_is_running, host), partial(_cancel, host))

    async def hook(op: HookOp, job: Job) -> None:
        if op.hook == Hook.INPUT:
            await _wait_for_turn(turns, job)
        with acting_for(job.command.tenant, store, recall):
            await RUNNERS["hook"](op, job)

    async def answer(tenant: str, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        return await handle(store, operation, body, tenant, recall=recall)

    await host.work_on_commands(streams.sink, {"hook": hook})
    await host.bus.serve_api(SERVICE, answer)


async def _wait_for_turn(turns: Turns, job: Job) -> None:
    """Keeps a run waiting whose request does not want two on its thread.

    What it brought then counts as said after what the other run has left.
    """
    here = place(job.ctx.request_context, job.ctx.messages)
    policy = here.options.concurrency
    if policy is None or here.thread is None or here.resource is None:
        return
    waited = await turns.begin(
        job.command.tenant,
        here.resource,
        here.thread,
        job.command.run,
        policy=policy,
        abort_signal=job.abort_signal,
    )
    if waited:
        at = clock.now()
        for number, message in enumerate(job.ctx.messages.get.input.db()):
            message["createdAt"] = clock.iso(at + timedelta(milliseconds=number))


async def _is_running(host: Host, tenant: str, run: str) -> bool:
    _, state = await host.store.load_state(tenant, run)
    return state is not None and RunState.model_validate_json(state).status == "running"


async def _cancel(host: Host, tenant: str, run: str) -> None:
    body = Control(type="cancel").to_json()
    await host.bus.publish_stored(subjects.control(tenant, run), body, message_id=f"interrupt:{tenant}:{run}")


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
