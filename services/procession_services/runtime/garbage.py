"""Python's collector of garbage: it stops the process while it looks, so it is given little to look at (ADR 23)."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NEW_OBJECTS: Final = 20_000
"""How many more objects there are before it looks at the new ones."""


@contextmanager
def loading() -> Iterator[None]:
    """Turns it off while modules are loaded, which stay; it never looks at what is there afterwards."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def seldom() -> None:
    """Has it look rarely, and never at what is there now."""
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 20, 20)
