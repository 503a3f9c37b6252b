"""What lasts for the length of a block and has begun already: a generator would take three times as many steps."""

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Lasting"]

_T = TypeVar("_T")


class Lasting(Generic[_T]):
    """As a context it gives `value`; `end` is called at its end, whatever that is."""

    __slots__ = ("end", "value")

    def __init__(self, value: _T, end: Callable[[], object]) -> None:
        self.value, self.end = value, end

    def __enter__(self) -> _T:
        return self.value

    def __exit__(self, *_: object) -> None:
        self.end()
