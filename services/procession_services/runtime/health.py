"""Readiness as a file: a service touches it while it can work, `procession health` looks at its age.

Only the standard library, since container platforms run the look every few seconds:
`python -m procession_services.runtime.health`.
"""

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

from procession_services.runtime.tasks import meanwhile

__all__ = ["FRESH_SECONDS", "is_ready", "keep_ready", "main"]

log = logging.getLogger(__name__)
FRESH_SECONDS: Final = 10.0
"""An older file means that the service has not been able to work, or stands still."""
_TOUCH_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 3.0


def is_ready(file: Path) -> bool:
    """Whether the service that touches this file can work."""
    try:
        return time.time() - file.stat().st_mtime < FRESH_SECONDS
    except FileNotFoundError:
        return False


@contextlib.asynccontextmanager
async def keep_ready(file: Path | None, works: Callable[[], Awaitable[bool]]) -> AsyncIterator[None]:
    """Touches the file for the length of the block, while `works` says yes in time; then removes it.

    Raises:
        OSError: It cannot be written; the message names the setting.
    """
    if file is None:
        yield
        return

    async def watch() -> None:
        while True:
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    works_now = await works()
                if works_now:
                    touch()
            except Exception as error:  # noqa: BLE001 - whatever it is, the file grows old, and that tells it
                log.warning("not ready: %r", error)
            await asyncio.sleep(_TOUCH_SECONDS)

    touch = file.touch  # a file in memory: it blocks for less than a thread would take
    try:
        touch()
    except OSError as error:
        raise OSError(f"PROCESSION_HEALTH_FILE: cannot write {file}: {error.strerror}") from error
    try:
        async with meanwhile(watch()):
            yield
    finally:
        file.unlink(missing_ok=True)  # noqa: ASYNC240 - as above


def main() -> int:
    """0 when the service of this container is ready, else 1, with the reason on stdout."""
    file = os.environ.get("PROCESSION_HEALTH_FILE")
    if not file:
        sys.stdout.write("PROCESSION_HEALTH_FILE is not set\n")
        return 1
    ready = is_ready(Path(file))
    sys.stdout.write("ready\n" if ready else "not ready\n")
    return 0 if ready else 1


if __name__ == "__main__":
    sys.exit(main())
