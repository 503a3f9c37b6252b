"""A directory that one process may use at a time."""

import fcntl
from pathlib import Path
from typing import IO


class DirectoryLock:
    """Keeps a second process away from a directory: Chroma would not notice, and both would miss entries."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def take(self) -> None:
        """Takes the lock, which ends with this process; raises OSError where another one has it."""
        if self._file is not None:
            return
        self._path.mkdir(parents=True, exist_ok=True)
        file = (self._path / "procession.lock").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            told = f"another process uses {self._path}; several memory replicas need a Chroma server"
            raise OSError(f"{told} (PROCESSION_CHROMA_URL)") from error
        self._file = file

    def give_back(self) -> None:
        """Lets others have it."""
        if self._file is not None:
            self._file.close()
            self._file = None
