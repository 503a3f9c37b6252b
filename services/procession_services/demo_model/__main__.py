"""Runs the model server: `python -m procession_services.demo_model --port 0 --pace-ms 15`."""

import argparse
import asyncio
import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from procession_services.demo_model.server import DEFAULT_PACE_MS, serve


async def run(host: str, port: int, pace_ms: float) -> None:
    """Serve until SIGINT or SIGTERM; one JSON line on stdout tells the port when it listens."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with await serve(host, port, pace_ms=pace_ms) as server:
        sys.stdout.write(json.dumps({"ready": True, "port": server.port}) + "\n")
        sys.stdout.flush()
        await stopped.wait()


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="procession_services.demo_model", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback)")
    parser.add_argument("--port", type=int, default=8399, help="0 picks a free one (default: %(default)s)")
    parser.add_argument(
        "--pace-ms",
        type=float,
        default=DEFAULT_PACE_MS,
        help="milliseconds between two chunks of an answer (default: %(default)s)",
    )
    parser.add_argument("--cpu", type=int, help="run on this CPU only")
    options = parser.parse_args()
    if options.cpu is not None:
        os.sched_setaffinity(0, {options.cpu})
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    gc.freeze()
    _runner()(run(options.host, options.port, options.pace_ms))


def _runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    """Return uvloop's `run` where it is installed, else asyncio's."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.run
    return uvloop.run


if __name__ == "__main__":
    main()
