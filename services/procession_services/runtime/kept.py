"""What was made of something that is long, and may be wanted again: kept within limits."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

__all__ = ["Kept"]

_MOST: Final = 1024
_BYTES: Final = 8 * 1024 * 1024
"""Of keys: requests bring options of their own, and long ones are kept several times over."""
_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")


class Kept(Generic[_K, _T]):
    """What was made of a key; the least recently used go when there are too many, or their keys too long together."""

    def __init__(self) -> None:
        self._made: OrderedDict[_K, tuple[_T, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: _K) -> _T | None:
        """What was made of this key, if it is still here."""
        if key not in self._made:
            return None
        self._made.move_to_end(key)
        return self._made[key][0]

    def keep(self, key: _K, made: _T, size: int) -> _T:
        """Keeps what was made of this key, which has so many bytes; of two that were made meanwhile the first."""
        if key in self._made:
            return self._made[key][0]
        self._made[key] = made, size
        self._bytes += size
        while len(self._made) > _MOST or (self._bytes > _BYTES and len(self._made) > 1):
            _, (_, oldest) = self._made.popitem(last=False)
            self._bytes -= oldest
        return made
