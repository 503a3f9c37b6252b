"""What services log: nothing that was said, and no secret (design.md 9)."""

import logging
import re
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Final, TypeAlias

__all__ = ["SafeFormatter", "configure"]

_ExcInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)
_OPEN: Final = frozenset({"builtins", "nats", "redis", "asyncio", "ssl", "socket"})
_MAX_CAUSES: Final = 10
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


def configure(service: str, level: str) -> None:
    """Sends the logs of a service to stderr."""
    handler = logging.StreamHandler(sys.stderr)
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
