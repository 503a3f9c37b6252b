"""The streams of the bus: what each keeps, where, and for how long (design.md 3)."""

from typing import Final

from nats.js import JetStreamContext
from nats.js.api import RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError

from procession_schemas.subjects import STREAMS

_DAY: Final = 86_400.0
_MAX_CONSUMERS: Final = 10_000


def stream_configs() -> list[StreamConfig]:
    """The configuration of every stream; changing one here changes it on the next start of any service."""

    def config(
        name: str, *, retention: RetentionPolicy, storage: StorageType, max_age: float
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
        )

    queue, by_age = RetentionPolicy.WORK_QUEUE, RetentionPolicy.LIMITS
    return [
        config("RUNS", retention=queue, storage=StorageType.FILE, max_age=0),
        config("WORK", retention=queue, storage=StorageType.FILE, max_age=0),
        config("EVENTS", retention=by_age, storage=StorageType.FILE, max_age=7 * _DAY),
        config("CHUNKS", retention=by_age, storage=StorageType.FILE, max_age=_DAY / 24),
        config("VIOLATIONS", retention=by_age, storage=StorageType.FILE, max_age=30 * _DAY),
        config("DEAD", retention=by_age, storage=StorageType.FILE, max_age=30 * _DAY),
    ]


async def ensure_streams(js: JetStreamContext) -> None:
    """Creates what is missing; safe when every service does so at once."""
    for config in stream_configs():
        try:
            await js.add_stream(config)
        except BadRequestError:
            await js.update_stream(config)
