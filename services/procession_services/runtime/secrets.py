"""Keys that the operator gives to processors: one file each in a directory, as container platforms mount them."""

import os
import re
from pathlib import Path
from typing import Final

from procession_services.runtime.problems import ConfigurationError, Problem

DEMO_KEY: Final = "none-needed"
"""What stands for a provider's key where the demo model is asked, which takes any."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
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


def load_keys(file: Path | None) -> None:
    """Puts the keys of providers, one `VARIABLE=value` a line, where LiteLLM looks for them.

    Raises:
        ConfigurationError: The file cannot be read, or a line has another form; its content is not told.
    """
    if file is None:
        return
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError([Problem(str(file), "", f"cannot be read: {error.strerror}")]) from error
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, separator, value = line.strip().partition("=")
        if not name or name.startswith("#"):
            continue
        if not separator or not _VARIABLE.fullmatch(name):
            raise ConfigurationError([Problem(f"{file}:{number}", "", "is not VARIABLE=value")])
        keys[name] = value
    os.environ.update({name: value for name, value in keys.items() if name not in os.environ})
