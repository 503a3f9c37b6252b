"""The streams of the bus: what each keeps, where, and for how long (design.md 3)."""

import asyncio
import logging
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError, NotFoundError

from procession.client.nats_client import AWAY
from procession_schemas.subjects import ROOT, STREAMS
from procession_services.bus.errors import explained

log = logging.getLogger(__name__)
_DAY: Final = 86_400.0
EVENTS_SECONDS: Final = 7 * 86_400
"""How long it can be read what became of a run, and so how long its id is not for reuse."""
_MAX_CONSUMERS: Final = 10_000
_REQUESTS: Final = 4_096
"""Requests of one tenant to one agent that nobody has taken up yet; further ones are refused when they are sent."""
_REQUESTS_IN_ALL: Final = 65_536
_LOOK_SECONDS: Final = 0.2
_OTHERWISE: Final = 10058
"""JetStream's code for a stream that is there with another configuration."""


def stream_configs(replicas: int = 1) -> list[StreamConfig]:
    """The configuration of every stream; changing one here changes it on the next start of any service.

    Args:
        replicas: Copies of each stream in a cluster of servers.
    """

    def config(
        name: str, *, retention: RetentionPolicy, storage: StorageType, max_age: float, **more: Any
    ) -> StreamConfig:
        return StreamConfig(
            name=name,
            subjects=list(STREAMS[name]),
            retention=retention,
            storage=storage,
            max_age=max_age,
            max_consumers=_MAX_CONSUMERS,
            duplicate_window=120.0,
            allow_direct=True,
            num_replicas=replicas,
            **more,
        )

    queue, by_age = RetentionPolicy.WORK_QUEUE, RetentionPolicy.LIMITS
    bounded = {
        "max_msgs": _REQUESTS_IN_ALL,
        "max_msgs_per_subject": _REQUESTS,
        "discard": DiscardPolicy.NEW,
        "discard_new_per_subject": True,
    }
    return [
        config("RUNS", retention=queue, storage=StorageType.FILE, max_age=0, **bounded),
        config("WORK", retention=queue, storage=StorageType.FILE, max_age=0),
        config("EVENTS", retention=by_age, storage=StorageType.FILE, max_age=EVENTS_SECONDS),
        config("CHUNKS", retention=by_age, storage=StorageType.FILE, max_age=_DAY / 24),
        config("VIOLATIONS", retention=by_age, storage=StorageType.FILE, max_age=30 * _DAY),
        config("DEAD", retention=by_age, storage=StorageType.FILE, max_age=30 * _DAY),
    ]


def is_ours(config: StreamConfig) -> bool:
    """Whether a stream that has one of our names is ours: our rules would delete messages of somebody else's."""
    subjects = config.subjects or []
    return bool(subjects) and all(subject.startswith(f"{ROOT}.") for subject in subjects)


async def ensure_streams(js: JetStreamContext, *, replicas: int = 1) -> None:
    """Creates what is missing; safe when every service does so at once.

    Raises:
        APIError: What JetStream says; or there is a stream of one of our names that is somebody else's, which stays as
            it is.
    """
    for config in stream_configs(replicas):
        try:
            await js.add_stream(config)
        except BadRequestError as error:
            if error.err_code != _OTHERWISE:
                raise
            there = (await js.stream_info(config.name or "")).config
            if not is_ours(there):
                subjects = ", ".join(there.subjects or ("none",))
                told = f"the stream {config.name} does not belong to Procession (its subjects: {subjects})"
                raise BadRequestError(code=error.code, err_code=_OTHERWISE, description=told) from error
            await js.update_stream(config)


async def await_streams(js: JetStreamContext) -> None:
    """Returns when somebody has created all streams: a service that may not do so itself."""
    for name in STREAMS:
        while True:
            try:
                await js.stream_info(name)
            except NotFoundError:
                await asyncio.sleep(_LOOK_SECONDS)
            else:
                break


class Streams:
    """Sees to it that the streams are there: creates them with `replicas` copies, or waits until somebody has."""

    def __init__(self, client: Client, js: JetStreamContext, *, create: bool, replicas: int) -> None:
        self._client, self._js = client, js
        self._create, self._replicas = create, replicas
        self._restoring: asyncio.Task[None] | None = None
        self._told = ""

    async def prepare(self) -> None:
        """Returns when all are there; raises what JetStream says."""
        if self._create:
            await ensure_streams(self._js, replicas=self._replicas)
        else:
            await await_streams(self._js)

    def restore(self) -> None:
        """Looks soon whether one is gone: NATS may come back without its data.

        No answer may be for that, too: where a client listens, NATS has somebody for what no stream takes.
        """
        if self._restoring is None or self._restoring.done():
            self._restoring = asyncio.create_task(self.look())

    async def look(self) -> None:
        """Prepares them again where one is gone; the log tells what keeps us from it."""
        try:
            gone = [name for name in STREAMS if await self._is_gone(name)]
            if gone:
                await self.prepare()
        except (*AWAY, Error) as error:  # whoever needs one asks again
            if self._client.is_connected and self._told != (why := explained(error)):
                self._told = why
                log.warning("cannot check or create the streams, trying again: %s", why)
            return
        self._told = ""
        if gone:
            log.warning("missing streams were recreated, their messages are lost: %s", ", ".join(gone))

    async def _is_gone(self, stream: str) -> bool:
        try:
            await self._js.stream_info(stream)
        except NotFoundError:
            return True
        return False

    def stop(self) -> None:
        """Stops restoring."""
        if self._restoring:
            self._restoring.cancel()
