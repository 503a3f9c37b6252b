"""Keys that the operator gives to processors: one file each in a directory, as container platforms mount them."""

import re
from pathlib import Path
from typing import Final

NO_KEY: Final = "none-needed"
"""What stands for a provider's key where the demo model is asked, which takes any."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Secrets:
    """The secrets of a process; each is read once, so a new one counts after a restart.

    Args:
        directory: Where the files are; None: there are no secrets.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._known: dict[str, bytes] = {}

    def __call__(self, name: str) -> bytes | None:
        """The bytes of the file of that name without line breaks at its end, or None where there is none."""
        if self._directory is None or not _NAME.fullmatch(name):
            return None
        if name not in self._known:
            try:
                self._known[name] = (self._directory / name).read_bytes().rstrip(b"\r\n")
            except FileNotFoundError:
                return None
        return self._known[name]
