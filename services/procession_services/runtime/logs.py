"""What services log: nothing that was said, and no secret (design.md 9)."""

import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, TextIO, TypeAlias

__all__ = ["OnceHandler", "SafeFormatter", "configure"]

_ExcInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)
_OPEN: Final = frozenset({"builtins", "nats", "redis", "asyncio", "ssl", "socket"})
_MAX_CAUSES: Final = 10
_OURS: Final = ("procession.", "procession_services.")
_SAME_SECONDS: Final = 1.0
"""Within so long all services of a process find out what they have in common, as that NATS is away."""
_NEXT_LINE: Final = re.compile(r"\n(?! )")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


class SafeFormatter(logging.Formatter):
    """Tells of an exception where it was raised and its class, but not its message, which may quote a conversation.

    What the operating system, NATS and Redis say about connections is told whole: it is about addresses.

    Names that come with a request, of models and processors, may hold anything: a further line of a message is
    indented, so that none passes for an entry of ours.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The entry without its exception."""
        shown = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], record.message)
        record.message = _NEXT_LINE.sub("\n  ", shown)
        return super().formatMessage(record)

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 - logging's name
        """The exception and what it came from, the first cause first."""
        return "\n".join(line for error in reversed(list(_causes(ei[1]))) for line in _lines(error))


class OnceHandler(logging.StreamHandler[TextIO]):
    """Writes once what we log several times in the same second, as each service of a process does.

    What others log, such as processors, is written as often as they do.

    Args:
        stream: Where to.
        clock: Seconds that never go back.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._written: dict[int, float] = {}
        """When, by digests of entries, the oldest one first."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes an entry, unless it has just been written."""
        if not record.name.startswith(_OURS):
            super().emit(record)
            return
        now = self._clock()
        while self._written and now - next(iter(self._written.values())) > _SAME_SECONDS:
            del self._written[next(iter(self._written))]
        error = record.exc_info and record.exc_info[1]
        entry = hash(repr((record.name, record.msg, record.args, error)))
        if entry not in self._written:
            self._written[entry] = now
            super().emit(record)


def configure(service: str, level: str) -> None:
    """Sends the logs of a service to stderr."""
    handler = OnceHandler(sys.stderr)
    handler.setFormatter(SafeFormatter(f"%(asctime)s %(levelname)s {service} %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_MAX_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _lines(error: BaseException) -> Iterator[str]:
    for frame in traceback.extract_tb(error.__traceback__):
        yield f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
    kind = type(error)
    said = f": {error}" if _is_open(error) else ""
    yield f"{kind.__module__}.{kind.__qualname__}{said}"


def _is_open(error: BaseException) -> bool:
    origin = type(error).__module__.partition(".")[0]
    return origin in _OPEN and (origin != "builtins" or isinstance(error, OSError))
