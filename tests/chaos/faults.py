"""The schedule of misfortunes: what happens when follows from the seed."""

import asyncio
import random
from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.chaos.world import World

__all__ = ["MIXES", "misfortunes"]


class Mix(NamedTuple):
    """What may happen in a series, with weights."""

    what: str
    weights: Mapping[str, int]


MIXES: Final[Mapping[str, Mix]] = {
    "mixed": Mix(
        "all of it, but for lost messages and clusters",
        {
            "kill": 50,
            "end": 10,
            "stop": 16,
            "half-open": 10,
            "nats": 6,
            "silence": 4,
            "redis": 5,
            "hush": 3,
            "forget": 3,
        },
    ),
    "forgetful": Mix(
        "half of what happens is that Redis forgets",
        {"kill": 30, "end": 10, "stop": 8, "half-open": 5, "nats": 4, "forget": 50},
    ),
    "cut-off": Mix(
        "half of what happens is that replicas are cut off, and NATS and Redis have their trouble meanwhile",
        {
            "half-open": 60,
            "kill": 5,
            "end": 5,
            "stop": 5,
            "nats": 20,
            "silence": 15,
            "hush": 10,
            "forget": 20,
        },
    ),
    "silent": Mix(
        "half of what happens is that NATS stands still",
        {"silence": 50, "kill": 20, "end": 5, "stop": 10, "nats": 15},
    ),
    "calm": Mix("nothing happens that no run has done itself", {}),
    "lossy": Mix("most of what happens is that messages are lost", {"loss": 95, "nats": 5}),
    "cluster": Mix(
        "three servers of NATS, and half of what happens is that one of them dies or stands still",
        {"nats": 45, "silence": 10, "kill": 25, "end": 10, "stop": 10},
    ),
    "partition": Mix(
        "three servers of NATS, of which one often does not hear the others; and Redis restarts, and forgets",
        {"apart": 20, "nats": 5, "redis": 3, "forget": 2, "kill": 40, "end": 15, "stop": 15},
    ),
}
_OF_SERVERS: Final = frozenset({"nats", "silence", "apart", "redis", "forget", "hush"})
_SERVICES: Final = {
    "output_processors": 6, "llm_gateway": 3, "orchestrator": 2, "input_processors": 2, "tools": 2, "memory": 1,
    "error_recovery": 1,
}  # fmt: skip


_DOWN: Final = 4
"""Replicas that may be down at once before we wait: a slow machine takes its time to start them."""


async def misfortunes(world: World, rng: random.Random, pause: tuple[float, float]) -> None:
    """Has something happen again and again, `pause` seconds (least, most) apart, until it is cancelled.

    What it may be is the world's mix. What takes a while (a stopped or half-open replica, one of three servers) goes
    on beside the next one. One process is always left alone: else nothing could get anywhere where they take long
    to start.
    """
    if not (kinds := MIXES[world.mix].weights):
        return
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(rng.uniform(*pause))
            (kind,) = rng.choices(list(kinds), list(kinds.values()))
            (service,) = rng.choices(list(_SERVICES), list(_SERVICES.values()))
            if kind in _OF_SERVERS:
                if not world.is_clustered:
                    await world.befall(kind, rng)
                elif not any(fault.kind in _OF_SERVERS for fault in world.current):
                    group.create_task(world.befall(kind, rng))
                continue
            replicas = [r for r in world.of(service) if kind not in ("half-open", "loss") or r.proxy]
            hit = {fault.pid for fault in world.current}
            replicas = [r for r in replicas if r.pid not in hit]
            up = [r for r in world.replicas if r.healthy.is_set()]
            if len(world.replicas) - len(up) >= _DOWN or sum(r.pid not in hit for r in up) <= 1:
                continue
            if replicas:
                group.create_task(world.befall(kind, rng, rng.choice(replicas)))
