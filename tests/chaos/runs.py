"""Mixed runs, each with a client that drops and comes back, and what must be true of each."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from procession.client import Procession
from procession.client.errors import NotAcceptedError, NotConnectedError, NotWaitingError, UnknownRunError
from procession.client.handle import RunHandle
from procession_schemas.agent import Agent
from procession_schemas.run import RunResult
from tests.chaos.model import words_of
from tests.chaos.plugin import expected
from tests.chaos.world import World

__all__ = ["KINDS", "Outcome", "Reader", "conversation", "judge_calls"]

_T = TypeVar("_T")
KINDS: Final = (
    "plain", "straight", "tools", "asked", "history", "timed", "fails", "cancelled", "queued", "every",
    "blocked", "expires",
)  # fmt: skip
_WITH_TOOL: Final = ("tools", "asked", "every")
_IN_THREAD: Final = ("history", "queued")
_MORE: Final = {**dict.fromkeys(_WITH_TOOL, " tool"), "fails": " fails"}
_ENDS: Final = {
    "cancelled": ("cancelled", "finished"), "blocked": ("blocked",), "expires": ("failed", "finished"),
}  # fmt: skip
_BLOCKED_AT: Final = 15
_EXPIRES_AFTER: Final = 1.0
CHAIN: Final = ["chaos-upper", "chaos-tally", "chaos-split"]
_SECONDS: Final = 90.0
_BESIDE: Final = 5
"""Chunks of a step that answers beside those of its text: where both begin and end, and what the model tells."""
_DROPS: Final = 0.6
_LATE: Final = 0.2
_OTHERS: Final = 0.3


@dataclass(slots=True)
class Outcome:
    """How a run went, and what was wrong with it."""

    run: str
    kind: str
    status: str = "lost"
    ends: tuple[str, ...] = ("finished",)
    text: str = ""
    readers: dict[str, "Reader"] = field(default_factory=dict)
    log: list[list[Any]] = field(default_factory=list)
    wrong_text: int = 0
    wrong_state: int = 0
    repeated: int = 0
    model_extra: int = 0
    tool_wrong: int = 0
    resets: int = 0
    hosts: int = 0
    began: float = 0.0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


class Reader:
    """What a client has of a run, over several handles: chunks by number, resets applied."""

    def __init__(self) -> None:
        self.chunks: list[tuple[int, dict[str, Any]]] = []
        self.arrivals: list[tuple[float, int | None]] = []
        self.resets = 0
        self.taken_back: list[str] = []

    async def read(self, handle: RunHandle, *, limit: int | None = None) -> bool:
        """Reads to the end, or until `limit` chunks were read; True at the end."""
        clock = asyncio.get_running_loop().time
        async for chunk in handle:
            payload = chunk.get("payload") or {}
            if chunk["type"] == "reset":
                self.resets += 1
                self.taken_back.append(self.text)
                self.chunks = [(n, c) for n, c in self.chunks if n < payload["from"]]
                continue
            if chunk["type"] == "text-delta":
                self.arrivals.append((clock(), payload.get("host")))
            self.chunks.append((handle.position - 1, chunk))
            if limit is not None and (limit := limit - 1) <= 0:
                return False
        return True

    @property
    def text(self) -> str:
        """What the reader has at the end."""
        return "".join(c["payload"]["text"] for _, c in self.chunks if c["type"] == "text-delta")

    @property
    def repeated(self) -> int:
        """How many words came more than once."""
        return sum(count - 1 for count in Counter(self.text.split()).values() if count > 1)


def agent_of(kind: str, trace: Path) -> Agent:
    """The agent of a run of that kind, whose tool leaves its trace there."""
    chain: dict[str, Any] = {"outputProcessors": CHAIN}
    tool = {"id": "chaos-trace", "options": {"path": str(trace)}}
    fields: dict[str, Any] = {
        "plain": chain,
        "straight": {},
        "tools": {**chain, "tools": [tool]},
        "asked": {**chain, "tools": [{**tool, "requireApproval": True}]},
        "history": {**chain, "memory": {"lastMessages": 10}},
        "queued": {**chain, "memory": {"lastMessages": 10}},
        "cancelled": chain,
        "expires": {**chain, "timeout": _EXPIRES_AFTER},
        "blocked": {
            "outputProcessors": [
                "chaos-upper",
                {"id": "chaos-block", "options": {"at": _BLOCKED_AT}},
                "chaos-tally",
                "chaos-split",
            ]
        },
        "every": {
            "inputProcessors": ["chaos-every"],
            "outputProcessors": [*CHAIN, "chaos-every"],
            "tools": [tool],
        },
        "fails": {
            **chain,
            "errorProcessors": [{"id": "stream-error-retry-processor", "options": {"maxRetries": 3}}],
            "maxProcessorRetries": 3,
        },
        "timed": {
            "outputProcessors": [
                {"id": "batch-parts", "options": {"batchSize": 50, "maxWaitTime": 35}},
                "chaos-upper",
            ]
        },
    }[kind]
    return Agent.model_validate({"name": f"chaos-{kind}", "model": "openai/chaos", **fields})


async def conversation(
    world: World, client: Procession, kind: str, name: str, rng: random.Random
) -> list[Outcome]:
    """One run, or two of one thread: one after the other (`history`) or at once (`queued`); judged."""
    turns = [_Turn(world, client, kind, f"{name}-{turn}", rng) for turn in range(1 + (kind in _IN_THREAD))]
    began = world.now
    if kind == "queued":
        await asyncio.gather(*(turn.play(name) for turn in turns))
        turns.sort(key=lambda turn: not turn.is_first)
    heard = ""
    for at, turn in enumerate(turns):
        if kind != "queued":
            await turn.play(name)
        if turn.outcome.status not in turn.outcome.ends:
            return [turn.outcome for turn in (turns if kind == "queued" else turns[: at + 1])]
        forgot = any(fault.kind == "forget" for fault in world.during(began, world.now))
        others = [each.outcome.text.strip() for each in turns if each is not turn]
        # What was saved of the first run may be forgotten; and of two at once, who was the first one.
        turn.judge([heard, ""] if forgot else [heard], had=["", *others] if kind == "queued" else [heard, ""])
        heard = turn.outcome.text.strip()
    return [turn.outcome for turn in turns]


class _Turn:
    """A run of a conversation, and what it must say."""

    def __init__(
        self, world: World, client: Procession, kind: str, run: str, rng: random.Random
    ) -> None:  # fmt: skip
        self._world, self._client, self._rng = world, client, random.Random(rng.random())
        self._count, self._pace = self._rng.randint(20, 60), self._rng.choice((0, 5, 20, 40))
        self.outcome = Outcome(run, kind, ends=_ENDS.get(kind, ("finished",)))

    async def play(self, thread: str) -> None:
        """Has it run; whatever goes wrong is noted."""
        outcome, world = self.outcome, self._world
        options = {"memory": {"thread": thread, "resource": "chaos"}} if outcome.kind in _IN_THREAD else {}
        question = f"[run {outcome.run} words {self._count} pace {self._pace}{_MORE.get(outcome.kind, '')}]"
        outcome.began = world.now
        try:
            async with asyncio.timeout(_SECONDS):
                await _one(world, self._client, outcome, question, options, self._rng)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run counts as lost and the others go on
            outcome.notes.append(f"client: {error!r}")
        outcome.seconds = world.now - outcome.began

    def _texts(self, heard: str) -> list[str]:
        """What it may say, where the assistant had said this before: the model never says the same twice."""
        outcome = self.outcome
        calls = self._world.model.calls[outcome.run, int(outcome.kind in _WITH_TOOL)]
        count = _BLOCKED_AT if outcome.kind == "blocked" else self._count
        answers = [words_of(outcome.run, count, heard, call) for call in range(1, calls + 1)]
        if outcome.kind == "straight":
            return ["".join(words) for words in answers]
        return ["".join(words).upper() if outcome.kind == "timed" else expected(words) for words in answers]

    @property
    def is_first(self) -> bool:
        """Whether it has heard nothing before."""
        return self.outcome.text in self._texts("")

    def judge(self, heard: list[str], *, had: list[str]) -> None:
        """Holds what it said against what it may say, having heard one of these before, and what it took back, too."""
        outcome = self.outcome
        texts, begun = ([text for each in some for text in self._texts(each)] for some in (heard, had))
        _judge(outcome, texts, begun)
        if outcome.kind == "every" and outcome.log != (log := self._log()):
            outcome.wrong_state += 1
            outcome.notes.append(f"the state has {outcome.log} for {log}")

    def _log(self) -> list[list[Any]]:
        """What a processor with every hook notes in its state: which ones were called in turn, and how often."""
        asking = [["inputStep", 1], ["request", 1]]
        answered = [["response", 1], ["step", 1]]
        called = [*asking, ["stream", _BESIDE - 2], *answered, ["tool", 1], ["stream", 2]]
        words = [*asking, ["stream", self._count * 2 + _BESIDE], *answered, ["stream", 1]]
        return [["input", 1], *called, *words, ["result", 1]]


async def _one(  # noqa: PLR0917 - a run is all of it
    world: World, client: Procession, outcome: Outcome, question: str, options: Any, rng: random.Random
) -> None:  # fmt: skip
    agent = agent_of(outcome.kind, world.trace(outcome.run))
    handle = await _started(client, question, agent, outcome.run, options)
    reader = Reader()
    if outcome.kind == "cancelled":
        await reader.read(handle, limit=rng.randint(1, 80))
        await _until_taken(handle.cancel, NotAcceptedError, NotConnectedError)
    while rng.random() < _DROPS and not await reader.read(handle, limit=rng.randint(1, 60)):
        await handle.close()
        handle = await _attached(client, outcome.run, handle.position)
    await reader.read(handle)
    while (result := await handle.result()).status == "suspended":
        if rng.random() < _DROPS:
            await handle.close()
            handle = await _attached(client, outcome.run, handle.position)
        await _decided(client, handle, result, rng)
        await reader.read(handle)
    await handle.close()
    outcome.log = (result.messages or [{}])[-1].get("content", {}).get("metadata", {}).get("log", [])
    outcome.status, outcome.resets, outcome.text = result.status, reader.resets, result.text
    outcome.readers["the client"] = reader
    outcome.hosts = len({host for _, host in reader.arrivals if host})
    if result.error is not None and not (
        outcome.kind == "expires" and result.error.code == "DEADLINE_EXCEEDED"
    ):
        outcome.status = "lost"
        outcome.notes.append(f"error: {result.error}")
    if rng.random() < _LATE:
        late = Reader()
        handle = await _attached(client, outcome.run, 0)
        await late.read(handle)
        await handle.close()
        outcome.readers["a late client"] = late


def _judge(outcome: Outcome, texts: list[str], begun: list[str]) -> None:
    """Holds the result against the texts that it may be, and what clients have against it.

    Of a run that was cut off, each has the beginning of one of them. What clients had to take back is the beginning of
    one of those that were `begun`.
    """
    cut = outcome.status != "finished"
    rights = texts if cut else [outcome.text]
    if not (_begins(outcome.text, texts) if cut else outcome.text in texts):
        outcome.wrong_text += 1
        outcome.notes.append(f"the result has {outcome.text!r} for {texts!r}")
    for who, reader in outcome.readers.items():
        numbers = [number for number, _ in reader.chunks]
        right = _begins(reader.text, rights) if cut else reader.text in rights
        if not right or numbers != sorted(set(numbers)):
            outcome.wrong_text += 1
            outcome.notes.append(f"{who} has {reader.text!r} for {rights!r}; resets {reader.resets}")
        if wrong := [text for text in reader.taken_back if not _begins(text, begun)]:
            outcome.wrong_text += 1
            outcome.notes.append(f"{who} had {wrong!r}, the beginning of none of {begun!r}")
        outcome.repeated += reader.repeated
    outcome.readers.clear()


def _begins(told: str, texts: list[str]) -> bool:
    return any(text.startswith(told) for text in ("", *texts))


async def judge_calls(world: World, outcome: Outcome) -> None:
    """The model once a step, and once more where it fails, and for each lost gateway; the tool once for each host.

    Either once more for each time that Redis has forgotten what came of it.
    """
    befell = world.during(outcome.began, outcome.began + outcome.seconds)
    gateways = sum("llm_gateway" in fault.services for fault in befell)
    forgot = sum(fault.kind == "forget" for fault in befell)
    # A restarted NATS delivers again what a second gateway has from a dead one, and a third one takes it over.
    allowed = (
        1
        + (outcome.kind == "fails")
        + gateways
        + (sum(fault.kind == "nats" for fault in befell) if gateways else 0)
        + forgot
    )
    for (run, step), count in world.model.calls.items():
        if run == outcome.run and count > allowed:
            outcome.model_extra += count - allowed
            outcome.notes.append(f"the model was asked {count} times for step {step}; {befell}")
    if outcome.kind not in _WITH_TOOL or outcome.status != "finished":
        return
    calls = [line.split() for line in world.trace(outcome.run).read_text().splitlines()]
    ids, hosts = {call for call, _ in calls}, [host for _, host in calls]
    lost_hosts = sum("tools" in fault.services for fault in befell)
    if len(ids) != 1 or len(hosts) - len(set(hosts)) > forgot or len(hosts) > 1 + lost_hosts + forgot:
        outcome.tool_wrong += 1
        outcome.notes.append(f"calls of the tool: {calls}; {befell}")


async def _started(client: Procession, question: str, agent: Agent, run: str, options: Any) -> RunHandle:
    return await _until_taken(
        lambda: client.start(question, agent=agent, run_id=run, **options), NotAcceptedError
    )


async def _attached(client: Procession, run: str, after: int) -> RunHandle:
    return await _until_taken(lambda: client.attach(run, after=after), UnknownRunError, NotConnectedError)


async def _decided(client: Procession, handle: RunHandle, result: RunResult, rng: random.Random) -> None:
    """Approves the call that waits, with that handle or as somebody else; whoever was quicker has done it."""
    (call,) = (result.suspend_payload or {})["calls"]
    other = await _attached(client, handle.run_id, 0) if rng.random() < _OTHERS else None
    with suppress(NotWaitingError):
        await _until_taken(
            lambda: (other or handle).approve(call["toolCallId"]), NotAcceptedError, NotConnectedError
        )
    if other is not None:
        await other.close()


async def _until_taken(ask: Callable[[], Awaitable[_T]], *refusals: type[Exception]) -> _T:
    """Asks again as long as it is refused in one of these ways."""
    while True:
        try:
            return await ask()
        except refusals:
            await asyncio.sleep(0.2)
