"""When a server of NATS is taken for one that does not hear the others of its cluster."""

from typing import Final

__all__ = ["Alone"]

_ALONE_SECONDS: Final = 12.0
"""How long it may store nothing that it is asked to: longer than it takes the servers to elect who leads a stream."""
_FORGOTTEN_SECONDS: Final = 3 * _ALONE_SECONDS
"""After this a question without an answer has nothing to do with the next one."""


class Alone:
    """Adds up how long nobody was there who leads a stream.

    That a server answers a question proves nothing: who has led a stream tells what he knows of it, whether or not the
    others hear him. What is stored does.
    """

    def __init__(self) -> None:
        self._since = self._last = 0.0
        self._doubted = False

    def dispelled(self) -> None:
        """Notes that the server has stored something, or is another one."""
        self._doubted = False

    def silent(self, now: float) -> bool:
        """Notes that a question found nobody, at a time in seconds; whether that has gone on for too long."""
        if not self._doubted or now > self._last + _FORGOTTEN_SECONDS:
            self._since = now
        self._doubted, self._last = True, now
        return now > self._since + _ALONE_SECONDS
