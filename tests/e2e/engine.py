"""Docker, and the images that the project names: `python -m tests.e2e.engine` says why there is none."""

import asyncio
import sys
from typing import Final

from tests.e2e.load import say
from tests.e2e.stack import ROOT, command

__all__ = ["missing"]

STANDINS: Final = ROOT.parent / "shared" / "tools" / "standin-images"
"""Installs and starts Docker, and makes images, where nothing can be pulled."""
_NAMING: Final = ("compose.yaml", "infra/Dockerfile", "tests/e2e/prometheus.Dockerfile")


async def missing() -> str | None:
    """Why containers cannot run here; None when they can."""
    try:
        if STANDINS.exists():
            await command(str(STANDINS), "--from", *_NAMING)
        await command("docker", "info")
        await command("docker", "compose", "version")
    except (RuntimeError, OSError) as error:
        return f"{error}\nDocker does not run here."
    return None


def main() -> int:
    """1 when containers cannot run."""
    if why := asyncio.run(missing()):
        say(why)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
