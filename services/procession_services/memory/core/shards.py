"""In which collections of an index messages are: in few and small ones, however much there is of others.

A filtered search of Chroma costs as much as the collection has entries, and every collection in use costs 3 MB. So
an index begins with one collection for all, level 0. Once a collection is full, what comes next goes to the
resource's collection on the next level; there are more of them on each. On the last level a resource has its own
ones, over which its threads are spread; a search of the resource needs no filter there, so they have no limit.
Nothing is ever moved, and names follow from resource and thread: whoever searches looks at one level after the other
until one is missing (ADR 13).
"""

import hashlib
from typing import Final

__all__ = ["FIRST", "FULL", "LEVELS", "OWN", "shards"]

FIRST: Final = "index"
"""The one of level 0."""
FULL: Final = 8192
"""Entries after which a collection takes no new ones, on all levels but the last."""
_COLLECTIONS: Final = (1, 16, 256)
_PARTS: Final = 8
OWN: Final = len(_COLLECTIONS)
"""The last level."""
LEVELS: Final = OWN + 1


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
        return (f"{level}-{_number(resource) % _COLLECTIONS[level]}",)
    parts = range(_PARTS) if thread is None else [_number(thread) % _PARTS]
    return tuple(f"own-{_hashed(resource)}-{part}" for part in parts)


def _number(name: str) -> int:
    return int(_hashed(name)[:8], 16)


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
