"""Semantic recall at scale: what a search takes in Chroma as an index grows, and the memory that it occupies.

One resource has a tenth of all embeddings, in threads of 50; every other one has 100, in threads of 10. All grow
together. Vectors stand around a thousand centres, as those of texts do. A search asks for a stored vector, a little
changed; `found` is the share of those that bring it back.
"""

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import numpy as np

from benchmarks.machine import resident_mb
from benchmarks.timing import timed
from procession_services.memory.core.times import to_iso
from procession_services.memory.ports import Embedded, Index
from procession_services.memory.stores.chroma import ChromaVectors

__all__ = ["measure"]

_DIMENSION: Final = 384
_CENTRES: Final = 1000
_SPREAD: Final = 0.7
_SIZES: Final = (1000, 10_000, 100_000, 250_000, 500_000, 1_000_000)
_JOB: Final = 50
"""Messages that are put in at once."""
_OF_SMALL: Final = 100
_START: Final = 1_767_225_600_000
_TOP: Final = 4
_SEARCHES: Final = 100
_INDEX: Final = Index("t", "messages", "random", _DIMENSION)


class _Data:
    """Embeddings by their number: the same number is always the same message, near the same vector."""

    def __init__(self, total: int) -> None:
        chance = np.random.default_rng(7)
        self._centres = _unit(chance.normal(size=(_CENTRES, _DIMENSION)))
        self.small = max(1, total * 9 // 10 // _OF_SMALL)

    def jobs(self, total: int) -> Iterator[list[Embedded]]:
        """All messages, some of one resource at a time: every tenth job is of the big one."""
        numbers = itertools.count()
        for job in range(total // _JOB):
            big = job % 10 == 0
            name = "big" if big else f"r{(job - job // 10 - 1) % self.small}"
            per_thread = _JOB if big else _OF_SMALL // 10
            yield [self._message(next(numbers), name, (job * _JOB + at) // per_thread) for at in range(_JOB)]

    def vector(self, number: int, *, noise: int = 0) -> list[float]:
        """The vector of a message, or one beside it."""
        chance = np.random.default_rng((7, number))
        spread = _SPREAD / _DIMENSION**0.5
        found = self._centres[chance.integers(_CENTRES)] + chance.normal(size=_DIMENSION) * spread
        if noise:
            beside = np.random.default_rng((noise, number)).normal(size=_DIMENSION)
            found = found + beside * spread / 3
        vector: list[float] = _unit(found[None])[0].tolist()
        return vector

    def _message(self, number: int, owner: str, thread: int) -> Embedded:
        metadata = {
            "message_id": f"m{number}",
            "thread_id": f"t{thread}",
            "resource_id": owner,
            "role": "user",
            "content": f"message {number}: " + "some words of an ordinary length " * 4,
            "created_at": to_iso(_START + number * 1000),
        }
        return Embedded(f"m{number}", self.vector(number), metadata)


async def measure(total: int, *, server: bool) -> AsyncIterator[dict[str, Any]]:
    """Yields a row for each of `_SIZES` up to `total`, and at the end one about a start with all of them.

    Args:
        total: How many embeddings.
        server: Measure a Chroma server over HTTP, in a process of its own, instead of Chroma in this process.
    """
    data, chance = _Data(total), random.Random(7)  # noqa: S311 - not for secrets
    with TemporaryDirectory() as directory:
        place = Path(directory)
        put: list[tuple[str, str, int]] = []
        async with _chroma(place, server=server) as (vectors, pid):
            await vectors.ensure(_INDEX)
            empty, started = resident_mb(pid), time.perf_counter()
            jobs = data.jobs(total)
            for size in (each for each in _SIZES if each <= total):
                for job in itertools.islice(jobs, (size - len(put)) // _JOB):
                    await vectors.upsert(_INDEX, job)
                    put += [(m.metadata["resource_id"], m.metadata["thread_id"], int(m.id[1:])) for m in job]
                seconds = time.perf_counter() - started
                yield {
                    "embeddings": size,
                    **await _searches(vectors, data, put, chance),
                    "memory_mb": round(resident_mb(pid) - empty),
                    "disk_mb": _disk(place),
                    "insert_s": round(seconds),
                    "load_average": round(os.getloadavg()[0], 1),
                }
        started = time.perf_counter()
        async with _chroma(place, server=server) as (vectors, pid):
            await vectors.ensure(_INDEX)
            ready = time.perf_counter() - started
            first = await _searches(vectors, data, put, chance)
            yield {
                "started_with": len(put),
                "start_s": round(ready, 1),
                **first,
                "memory_mb": round(resident_mb(pid)),
            }


async def _searches(
    vectors: ChromaVectors, data: _Data, put: list[tuple[str, str, int]], chance: random.Random
) -> dict[str, Any]:
    """Times searches among a resource or a thread, of resources with many and with few messages."""
    big = [each for each in put if each[0] == "big"]
    small = [each for each in put if each[0] != "big"]
    rows: dict[str, Any] = {}
    for what, among in (("few", small), ("many", big)):
        for scope in ("resource", "thread"):
            wanted = iter([chance.choice(among) for _ in range(_SEARCHES)])
            found: list[bool] = []
            search = partial(_search, vectors, data, wanted, found, in_thread=scope == "thread")
            rows[f"{scope}_{what}_ms"] = await timed(search, _SEARCHES) | {"found": sum(found) / len(found)}
    return rows


async def _search(
    vectors: ChromaVectors,
    data: _Data,
    wanted: Iterator[tuple[str, str, int]],
    found: list[bool],
    *,
    in_thread: bool,
) -> None:
    owner, thread, number = next(wanted)
    vector = data.vector(number, noise=1)
    hits = await vectors.query(
        _INDEX, vector, top_k=_TOP, resource=owner, thread=thread if in_thread else None
    )
    found.append(f"m{number}" in {hit.message for hit in hits})


@asynccontextmanager
async def _chroma(place: Path, *, server: bool) -> AsyncIterator[tuple[ChromaVectors, int]]:
    """Chroma with what is in a directory, and the process in which it is."""
    if not server:
        vectors = ChromaVectors.in_directory(place)
        yield vectors, os.getpid()
        await vectors.aclose()
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = (sys.executable, shutil.which("chroma", path=Path(sys.executable).parent) or "chroma", "run")
    process = subprocess.Popen(  # noqa: ASYNC220, S603 - nothing else runs yet
        [*command, "--path", str(place), "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient() as client, asyncio.timeout(60):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"{url}/api/v2/heartbeat")).is_success:
                        break
                await asyncio.sleep(0.05)
        vectors = ChromaVectors.over_http(url)
        yield vectors, process.pid
        await vectors.aclose()
    finally:
        process.terminate()
        process.wait()


def _unit(vectors: Any) -> Any:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _disk(place: Path) -> int:
    return round(sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) / 1e6)
