"""Files of the configuration that are reloaded while a service runs.

A file counts as a whole or not at all: while it is wrong, what was read before stays. Whoever uses its value asks for
it each time, and what has begun keeps what it began with.
"""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from procession_services.runtime.problems import ConfigurationError, Problem

__all__ = ["Watched"]

log = logging.getLogger(__name__)
T = TypeVar("T")
_SHOWN: Final = 12
_REPLACED: Final = (
    "this mounted file was replaced outside, and the new one is not visible inside the container: mount its "
    "directory, write changes into the file itself, or restart the container"
)


class Watched(Generic[T]):
    """What a file says.

    Args:
        name: What it holds, such as `agents`.
        path: The file; None: there is none, and `default` counts.
        load: Reads and checks it; raises ConfigurationError.
        default: What counts without a file.

    Attributes:
        value: What counts now.
        digest: Of the content that counts now; empty without a file.

    Raises:
        ConfigurationError: The file is wrong from the beginning.
    """

    def __init__(self, name: str, path: Path | None, load: Callable[[Path], T], default: T) -> None:
        self.name, self.path = name, path
        self._load = load
        self._refused: list[Problem] = []
        self._known = self._seen = self.digest = _digest(path)
        self.value = load(path) if path else default

    @property
    def problems(self) -> list[Problem]:
        """Why the file is not in effect as it is now; empty while it is."""
        if self.path and _is_replaced(self.path):
            return [*self._refused, Problem(str(self.path), "", _REPLACED)]
        return self._refused

    def look(self) -> bool:
        """Reloads the file if it has changed, and not since the last look; tells whether it did."""
        seen, before = _digest(self.path), self._seen
        self._seen = seen
        if seen == self._known or seen != before:
            return False
        self.reload()
        return True

    def reload(self) -> None:
        """Reads the file in any case."""
        if self.path is None:
            return
        self._known = self._seen = _digest(self.path)
        try:
            self.value = self._load(self.path)
        except ConfigurationError as error:
            self._refused = error.problems
        except Exception as error:  # noqa: BLE001 - it checks with the code of plugins, which may raise anything
            told = f"cannot be checked: {type(error).__name__}: {error}"
            self._refused = [Problem(str(self.path), "", told)]
        else:
            self._refused, self.digest = [], self._known
            log.info("%s: the %s were reloaded (%s)", self.path, self.name, self.digest)
            return
        why = "\n".join(f"  {problem}" for problem in self._refused)
        log.error("%s is rejected, the previous %s stay in effect:\n%s", self.path, self.name, why)


def _digest(path: Path | None) -> str:
    """A digest of the content; empty where there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:_SHOWN] if path else ""
    except OSError:
        return ""


def _is_replaced(path: Path) -> bool:
    """Whether the file has no name any more: a container that has a single file mounted keeps the old one."""
    try:
        return path.stat().st_nlink == 0
    except OSError:
        return False
