"""Values in messages: one that is too long for a message lies in Redis, and the message names its key."""

from typing import Any, Final

import orjson

from procession.services import KeyValueStore
from procession_services.bus import Bus

_SHARE: Final = 4
"""A value that is longer than this share of the broker's longest message goes through Redis."""
_KEPT_SECONDS: Final = 300.0


async def carried(bus: Bus, store: KeyValueStore, name: str, value: Any, id_: str) -> dict[str, Any]:
    """The field of a message that has the value, or its key; `id_` tells it from others of that name."""
    body = orjson.dumps(value)
    if len(body) * _SHARE <= bus.max_payload:
        return {name: orjson.Fragment(body)}
    key = f"stream:{name}:{id_}"
    await store.put(key, value, ttl=_KEPT_SECONDS)
    return {f"{name}Key": key}


def is_apart(message: dict[str, Any], name: str) -> bool:
    """Whether a message only names the key of the value."""
    return f"{name}Key" in message


async def unpacked(store: KeyValueStore, message: dict[str, Any], name: str) -> Any:
    """The value that a message has or names; None where it does neither."""
    if (value := message.get(name)) is not None:
        return value
    key = message.get(f"{name}Key")
    return None if key is None else await store.get(key)
