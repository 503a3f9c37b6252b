"""What an author's code may raise that is no `Exception`, and fails nobody but that code."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

__all__ = ["RAISED", "PanicException", "panics", "raising"]


class PanicException(BaseException):
    """What a library raises that was written in Rust."""


RAISED: Final[list[Callable[[], BaseException]]] = [
    PanicException,
    GeneratorExit,
    SystemExit,
    KeyboardInterrupt,
    asyncio.CancelledError,
    lambda: BaseExceptionGroup("group", [PanicException("one of them")]),
]
"""Each makes an exception."""


def raising(made: Callable[[], BaseException]) -> Any:
    """A function that takes anything, and raises what is made."""

    def function(*_: Any) -> Any:
        raise made()

    return function


panics = raising(PanicException)
