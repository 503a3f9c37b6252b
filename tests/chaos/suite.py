"""The whole of it: mixed runs under a seeded schedule of misfortunes, then the books are checked."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import nats
from nats.js import JetStreamContext

from procession.client import Procession
from procession_schemas import subjects
from procession_services.runtime.ledger import Ledger
from procession_services.runtime.redis_client import connect
from tests.chaos.evidence import keep_evidence
from tests.chaos.faults import misfortunes
from tests.chaos.gaps import gaps, p99
from tests.chaos.kinds import KINDS, ORDINARY
from tests.chaos.leftovers import leftovers
from tests.chaos.runs import Outcome, conversation, judge_calls
from tests.chaos.world import World

__all__ = ["Figures", "chaos"]

_TENANT = "chaos"
_TERMINAL_SECONDS = 15.0
_AGAIN_SECONDS = 0.5
_EVIDENCE_SECONDS = 60.0
Progress = Callable[[int, list[Outcome]], None]
"""Gets how many runs have ended, and those of the last ones about which there is something to say."""


@dataclass(slots=True)
class Figures:
    """What the suite ends with."""

    seed: int
    outcomes: list[Outcome] = field(default_factory=list)
    no_terminal: int = 0
    two_terminals: int = 0
    hung: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)
    booked_extra: int = 0
    gaps_kill: list[float] = field(default_factory=list)
    gaps_stop: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def wrong(self) -> dict[str, int]:
        """Everything that must be 0."""
        outcomes = self.outcomes
        return {
            "lost": sum(o.status not in o.ends for o in outcomes),
            "no_terminal": self.no_terminal,
            "two_terminals": self.two_terminals,
            "wrong_text": sum(o.wrong_text > 0 for o in outcomes),
            "wrong_state": sum(o.wrong_state for o in outcomes),
            "wrong_chunks": sum(o.wrong_chunks for o in outcomes),
            "repeated_chunks": sum(o.repeated for o in outcomes),
            "model_extra": sum(o.model_extra for o in outcomes),
            "booked_extra": self.booked_extra,
            "tool_wrong": sum(o.tool_wrong for o in outcomes),
            "hung": len(self.hung),
            "crashed": len(self.crashed),
            "left": sum(self.left.values()),
        }

    def line(self) -> str:
        """All in one line."""
        told = {
            "runs": len(self.outcomes),
            **self.wrong,
            "p99_gap_kill_ms": _rounded(p99(self.gaps_kill)),
            "p99_gap_stop_ms": _rounded(p99(self.gaps_stop)),
            "seed": self.seed,
        }
        return " ".join(f"{name}={value}" for name, value in told.items())


def _rounded(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:.0f}"


async def chaos(
    world: World,
    *,
    runs: int,
    seed: int,
    concurrency: int = 12,
    kills: int = 0,
    stops: int = 0,
    seconds: float = math.inf,
    pause: tuple[float, float] = (1.0, 4.0),
    run_kinds: Sequence[str] = ORDINARY,
    on_progress: Progress = lambda _count, _ended: None,
) -> Figures:
    """Measures gaps, then has mixed runs under misfortunes, then ends all services; begins no run after `seconds`.

    `pause` are the least and the most seconds between two misfortunes; `run_kinds` are the kinds of runs, in turn.
    """
    rng = random.Random(seed)
    figures = Figures(seed)
    async with Procession(world.clients_url, tenant=_TENANT, **world.access) as client:
        figures.gaps_kill = await gaps(world, client, "kill", kills, rng, f"k{seed}")
        figures.gaps_stop = await gaps(world, client, "stop", stops, rng, f"s{seed}")
        began = world.now
        trouble = asyncio.create_task(misfortunes(world, rng, pause))
        await _mixed(world, client, figures, runs, concurrency, began + seconds, on_progress, run_kinds)
        trouble.cancel()
        await asyncio.gather(trouble, return_exceptions=True)
        figures.seconds = world.now - began
    figures.faults = Counter(map(str, world.faults))
    figures.crashed = world.crashed()
    for outcome in figures.outcomes:
        await judge_calls(world, outcome)
    await _terminals(world, figures)
    figures.booked_extra = await _booked_extra(world)
    figures.left = await leftovers(world.servers.endpoints, _buried(figures.outcomes))
    figures.hung = await world.end()
    return figures


async def _mixed(  # noqa: PLR0917 - what is asked of the suite
    world: World, client: Procession, figures: Figures, runs: int, concurrency: int, until: float,
    on_progress: Progress, kinds: Sequence[str],
) -> None:  # fmt: skip
    numbers = iter(range(runs))

    async def work() -> None:
        for number in numbers:
            if len(figures.outcomes) >= runs or world.now > until:
                return
            own = random.Random(f"{figures.seed}-{number}")
            kind = kinds[number % len(kinds)]
            ended = await conversation(world, client, kind, f"c{figures.seed}-{number}", own)
            figures.outcomes += ended
            await _keep_evidence(world, ended)
            on_progress(len(figures.outcomes), [o for o in ended if o.notes])

    await asyncio.gather(*(work() for _ in range(concurrency)))


async def _keep_evidence(world: World, ended: list[Outcome]) -> None:
    for outcome in ended:
        if outcome.status not in outcome.ends or (
            outcome.wrong_text or outcome.wrong_state or outcome.wrong_chunks
        ):
            path = world.logs / f"{outcome.run}.evidence"
            try:
                async with asyncio.timeout(_EVIDENCE_SECONDS):
                    await keep_evidence(world.servers.endpoints, outcome.run, path)
            except Exception as error:  # noqa: BLE001 - it may be of a server that is being killed
                outcome.notes.append(f"no evidence: {error!r}")


def _buried(outcomes: list[Outcome]) -> set[str]:
    """Whose work is given up: that of runs which end processes each time, or the agent's where it was the request."""
    ended = [outcome for outcome in outcomes if KINDS[outcome.kind].deaths and outcome.status == "failed"]
    return {name for outcome in ended for name in (outcome.run, f"chaos-{outcome.kind}")}


async def _booked_extra(world: World) -> int:
    """Calls for which somebody would pay that the model was never asked for; there may be less, of who has died."""
    async with connect(world.servers.endpoints.redis_url) as redis:
        booked = await Ledger(redis).read(_TENANT, "tenant", _TENANT, None)
    calls = sum(each.calls for each in booked.breakdown if "embed" not in each.model)
    return max(0, calls - world.model.stats.requests)


async def _terminals(world: World, figures: Figures) -> None:
    """Counts the terminal events of every run.

    Who has led EVENTS in a cluster, and has not heard yet that he does no more, has not got all of them.
    """
    runs = [outcome.run for outcome in figures.outcomes]
    connection = await nats.connect(world.servers.endpoints.nats_url.split(","))
    try:
        counts, until = await _ends(connection.jetstream(), runs), world.now + _TERMINAL_SECONDS
        while not all(counts) and world.now < until:
            await asyncio.sleep(_AGAIN_SECONDS)
            counts = await _ends(connection.jetstream(), runs)
    finally:
        await connection.close()
    figures.no_terminal = counts.count(0)
    figures.two_terminals = sum(count > 1 for count in counts)


async def _ends(js: JetStreamContext, runs: Sequence[str]) -> list[int]:
    """How many terminal events each run has; none while nobody leads EVENTS."""
    wanted = subjects.event(_TENANT, "run", "run.finished").replace(".run.run.", ".*.run.")
    try:
        told = (await js.stream_info("EVENTS", subjects_filter=wanted)).state.subjects or {}
    except nats.errors.Error:
        return [0] * len(runs)
    return [told.get(subjects.event(_TENANT, run, "run.finished"), 0) for run in runs]
