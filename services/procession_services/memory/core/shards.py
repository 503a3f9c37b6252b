"""Which collections of an index hold the messages of a resource: few and small ones, however much others have.

The cost of a filtered search of Chroma grows with the entries of the collection and with those that match; and every
collection in use costs 3 MB. So an index begins with one collection for all, level 0. When that is full, or a resource
has used up its share of it, further messages go to the resource's collection on the next level, of which there are more
on each level. A resource that has used up all its shares gets a collection of its own, which needs no filter, and at
last several, over which its threads are spread. Nothing is ever moved, and names follow from resource and thread:
whoever searches looks at one level after the other until one is missing (ADR 18).
"""

import hashlib
from typing import Final

__all__ = ["FIRST", "FULL", "LEVELS", "OWN", "SHARE", "shards"]

FIRST: Final = "index"
"""The collection of level 0."""
FULL: Final = 8192
"""Entries after which a collection takes no new ones, on all levels but the last."""
SHARE: Final = 1024
"""Entries of one resource after which a collection that it shares takes no more of it."""
_SHARED: Final = (1, 16, 256)
_SPREAD: Final = 8
OWN: Final = len(_SHARED)
"""The first level on which a resource shares its collections with nobody."""
LEVELS: Final = OWN + 2


def shards(level: int, resource: str, thread: str | None) -> tuple[str, ...]:
    """The names, within an index, of the collections of a level that may have messages of a thread.

    Args:
        level: From 0.
        resource: Whose thread.
        thread: None stands for all threads of the resource.
    """
    if level == 0:
        return (FIRST,)
    if level < OWN:
        return (f"{level}-{_number(resource) % _SHARED[level]}",)
    if level == OWN:
        return (f"own-{_hashed(resource)}",)
    parts = range(_SPREAD) if thread is None else [_number(thread) % _SPREAD]
    return tuple(f"own-{_hashed(resource)}-{part}" for part in parts)


def _number(name: str) -> int:
    return int(_hashed(name)[:8], 16)


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
