"""Mixed runs, each with a client that drops and comes back, and what must be true of each."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any, Final, TypeVar

from procession.client import Procession
from procession.client.errors import NotAcceptedError, NotConnectedError, NotWaitingError, UnknownRunError
from procession.client.handle import RunHandle
from procession.client.memory import MemoryRequestError
from procession_schemas.agent import Agent
from procession_schemas.chunks import Chunk
from procession_schemas.run import RunResult
from tests.chaos.ending import deaths_of
from tests.chaos.kinds import FEWEST, KINDS, bare
from tests.chaos.made import made, said, text_of, told_by
from tests.chaos.model import words_of
from tests.chaos.world import World

__all__ = ["Outcome", "Reader", "conversation", "judge_calls"]

_T = TypeVar("_T")
_SECONDS: Final = 90.0
_ENDING_SECONDS: Final = 480.0
"""The same for a run that ends processes: it waits for its lease after each; restarts of NATS and Redis begin anew."""
_BESIDE: Final = 5
"""Chunks of a step that answers beside those of its text: where both begin and end, and what the model tells."""
_DROPS: Final = 0.6
_LATE: Final = 0.2
_OTHERS: Final = 0.3
_UNHEARD: Final = frozenset({"loss", "apart"})
"""What may be between somebody who lives and the others."""


@dataclass(slots=True)
class Outcome:
    """How a run went, and what was wrong with it."""

    run: str
    kind: str
    status: str = "lost"
    ends: tuple[str, ...] = ("finished",)
    text: str = ""
    readers: dict[str, "Reader"] = field(default_factory=dict)
    object: Any = None
    log: list[list[Any]] = field(default_factory=list)
    wrong_text: int = 0
    wrong_state: int = 0
    wrong_chunks: int = 0
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
    def attempts(self) -> list[str]:
        """The texts that were rejected, empty where the model failed, and the one that the reader has at the end."""
        texts = [""]
        for _, chunk in self.chunks:
            if chunk["type"] == "text-delta":
                texts[-1] += chunk["payload"]["text"]
            elif chunk["type"] == "step-finish" and chunk["payload"]["stepResult"]["reason"] == "retry":
                texts.append("")
        return texts

    @property
    def types(self) -> list[str]:
        """The types of what the reader has at the end, pieces of text as one, whatever data come between."""
        types: list[str] = []
        for _, chunk in self.chunks:
            if chunk["type"].startswith("data-"):
                continue
            if chunk["type"] != "text-delta" or types[-1:] != ["text-delta"]:
                types.append(chunk["type"])
        return types

    @property
    def ticks(self) -> list[int]:
        """What a task beside each stream of the run counted."""
        return [chunk["data"] for _, chunk in self.chunks if chunk["type"] == "data-tick"]

    @property
    def text(self) -> str:
        """What the reader has at the end."""
        return self.attempts[-1]

    @property
    def objects(self) -> list[Any]:
        """The whole objects that the reader has at the end."""
        return [chunk["object"] for _, chunk in self.chunks if chunk["type"] == "object-result"]

    @property
    def repeated(self) -> int:
        """How many words came more than once."""
        return sum(count - 1 for count in Counter(self.text.split()).values() if count > 1)


async def conversation(
    world: World, client: Procession, name_of_kind: str, name: str, rng: random.Random
) -> list[Outcome]:
    """One run, or several of one thread: one after the other, or at once; judged."""
    kind, began = KINDS[name_of_kind], world.now
    turns = [_Turn(world, client, name_of_kind, f"{name}-{turn}", rng) for turn in range(kind.turns)]
    if kind.same:
        for turn in turns[1:]:
            turn.asks = turns[0].asks
    if kind.at_once:
        await asyncio.gather(*(turn.play(name) for turn in turns))
        turns.sort(key=lambda turn: not turn.is_first)
    told = ""
    for at, turn in enumerate(turns):
        if not kind.at_once:
            await turn.play(name)
        if turn.outcome.status not in turn.outcome.ends:
            return [turn.outcome for turn in (turns if kind.at_once else turns[: at + 1])]
        forgot = any(fault.kind == "forget" for fault in world.during(began, world.now))
        heard = [told] if kind.hears and told else [""]
        if forgot or kind.hears == "perhaps":  # what was saved of the run before may be forgotten
            heard = [*heard, ""]
        others = [each.outcome.text.strip() for each in turns if each is not turn]
        turn.judge(heard, had=["", *others] if kind.at_once else [*heard, ""])
        if kind.same and told not in ("", turn.outcome.text.strip()) and not forgot:
            turn.outcome.wrong_text += 1
            turn.outcome.notes.append(f"another answer than that of before, {told!r}: {turn.outcome.text!r}")
        told = turn.outcome.text.strip()
    if kind.hears and not any(fault.kind == "forget" for fault in world.during(began, world.now)):
        await _judge_thread(client, name, [turn.outcome for turn in turns])
    return [turn.outcome for turn in turns]


async def _judge_thread(client: Procession, thread: str, outcomes: list[Outcome]) -> None:
    """Each question and each answer is in the thread, once and in turn."""
    page = await _until_taken(
        lambda: client.memory.messages(thread, "chaos"), NotAcceptedError, MemoryRequestError
    )
    said = [(message["role"], _text_in(message)) for message in page["messages"]]
    answers = [text for role, text in said if role == "assistant"]
    if [role for role, _ in said] != ["user", "assistant"] * len(outcomes) or answers != [
        outcome.text for outcome in outcomes
    ]:
        outcomes[-1].wrong_state += 1
        outcomes[-1].notes.append(f"the thread has {said}")


def _text_in(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["content"]["parts"] if part["type"] == "text")


@dataclass(frozen=True, slots=True)
class _Question:
    """What a run asks of the model: so many words for that name, with a pause of so many milliseconds."""

    name: str
    words: int
    pace: int


class _Turn:
    """A run of a conversation, and what it must say."""

    def __init__(
        self, world: World, client: Procession, kind: str, run: str, rng: random.Random
    ) -> None:  # fmt: skip
        self._world, self._client, self._rng = world, client, random.Random(rng.random())
        self._kind = KINDS[kind]
        self.asks = _Question(run, self._rng.randint(FEWEST, 60), self._rng.choice((0, 5, 20, 40)))
        self.outcome = Outcome(run, kind, ends=self._kind.ends)

    async def play(self, thread: str) -> None:
        """Has it run; whatever goes wrong is noted."""
        outcome, world, asks = self.outcome, self._world, self.asks
        options: dict[str, Any] = {} if self._kind.streams else {"stream": False}
        if self._kind.hears:
            options["memory"] = {"thread": thread, "resource": "chaos"}
        question = f"[run {asks.name} words {asks.words} pace {asks.pace}{self._kind.more}]"
        outcome.began = world.now
        try:
            async with asyncio.timeout(_ENDING_SECONDS if self._kind.deaths else _SECONDS):
                await _one(world, self._client, outcome, question, options, self._rng)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run counts as lost and the others go on
            outcome.notes.append(f"client: {error!r}")
        outcome.seconds = world.now - outcome.began

    def _texts(self, heard: str) -> list[str]:
        """What it may say, where the assistant had said this before: the model never says the same twice."""
        if self._kind.made:
            return [text_of(chunks) for chunks in self._made(heard)]
        return [self._kind.told(words) for words in self._words(heard)]

    def _made(self, heard: str) -> list[list[Chunk]]:
        """The same with the data between, where the processors are such."""
        words = self._words(heard)
        if self._kind.tool:
            return [made(each, before=[told_by(f"call-{self.asks.name}-a")]) for each in words]
        if "inputProcessors" in self._kind.agent:
            before, behind = ([[chunk] for chunk in told_by(whom)] for whom in ("before", "behind"))
            return [[*made(each, before=before, behind=behind), *told_by("at the end")] for each in words]
        return [made(each) for each in words]

    def _words(self, heard: str) -> list[list[str]]:
        kind, asks = self._kind, self.asks
        count = asks.words if kind.words is None else kind.words
        calls = self._world.model.calls[asks.name, kind.calls]
        return [words_of(asks.name, count, heard, call) for call in range(1, calls + 1)]

    @property
    def is_first(self) -> bool:
        """Whether it has heard nothing before."""
        return self.outcome.text in self._texts("")

    def judge(self, heard: list[str], *, had: list[str]) -> None:
        """Holds what it said against what it may say, having heard one of these before, and what it took back, too."""
        outcome = self.outcome
        if self._kind.made and outcome.status == "finished":
            self._judge_pieces(heard)
        texts, begun = ([text for each in some for text in self._texts(each)] for some in (heard, had))
        _judge(outcome, texts, begun)
        if self._kind.deaths and not deaths_of(self._world.trace(outcome.run)).exists():
            outcome.wrong_state += 1
            outcome.notes.append("it has ended no process")
        if outcome.kind == "every" and outcome.log != (log := self._log()):
            outcome.wrong_state += 1
            outcome.notes.append(f"the state has {outcome.log} for {log}")

    def _judge_pieces(self, heard: list[str]) -> None:
        """Each client has each piece, and the data between them."""
        right = [said(chunks) for each in heard for chunks in self._made(each)]
        for who, reader in self.outcome.readers.items():
            if (pieces := said([chunk for _, chunk in reader.chunks])) not in right:
                self.outcome.wrong_chunks += 1
                ways = [_apart(pieces, each) for each in right]
                self.outcome.notes.append(f"{who} has others from piece {max(ways)[0]} on: {max(ways)[1:]}")

    def _log(self) -> list[list[Any]]:
        """What a processor with every hook notes in its state: which ones were called in turn, and how often."""
        asking = [["inputStep", 1], ["request", 1]]
        answered = [["response", 1], ["step", 1]]
        called = [*asking, ["stream", _BESIDE - 2], *answered, ["tool", 1], ["stream", 2]]
        words = [*asking, ["stream", self.asks.words * 2 + _BESIDE], *answered, ["stream", 1]]
        return [["input", 1], *called, *words, ["result", 1]]


async def _one(  # noqa: PLR0917 - a run is all of it
    world: World, client: Procession, outcome: Outcome, question: str, options: Any, rng: random.Random
) -> None:  # fmt: skip
    agent = KINDS[outcome.kind].agent_of(outcome.kind, world.trace(outcome.run))
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
    outcome.object = result.object
    if KINDS[outcome.kind].streams:
        outcome.readers["the client"] = reader
    outcome.hosts = len({host for _, host in reader.arrivals if host})
    kind = KINDS[outcome.kind]
    codes = (kind.error, kind.forgotten) if world.has_forgotten else (kind.error,)
    if result.error is not None and result.error.code not in codes:
        outcome.status = "lost"
        outcome.notes.append(f"error: {result.error}")
    if rng.random() < _LATE and KINDS[outcome.kind].streams:
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
    rights, said = texts if cut else [outcome.text], bare(outcome.text)
    if not (_begins(said, texts) if cut else said in texts):
        outcome.wrong_text += 1
        outcome.notes.append(f"the result has {outcome.text!r} for {texts!r}")
    for who, reader in outcome.readers.items():
        numbers = [number for number, _ in reader.chunks]
        right = _begins(reader.text, rights) if cut else reader.text in rights
        if not right or numbers != sorted(set(numbers)):
            outcome.wrong_text += 1
            outcome.notes.append(f"{who} has {reader.text!r} for {rights!r}; resets {reader.resets}")
        if wrong := [text for text in reader.taken_back if not _begins(bare(text), begun)]:
            outcome.wrong_text += 1
            outcome.notes.append(f"{who} had {wrong!r}, the beginning of none of {begun!r}")
        if wrong := [text for text in reader.attempts[:-1] if bare(text) not in ("", *texts)]:
            outcome.wrong_text += 1
            outcome.notes.append(f"{who} has {wrong!r} of rejected answers for {texts!r}")
        if reader.objects != ([] if outcome.object is None else [outcome.object]):
            outcome.wrong_text += 1
            outcome.notes.append(f"{who} has the objects {reader.objects} for {outcome.object}")
        if any(tick not in (1, before + 1) for before, tick in pairwise([0, *reader.ticks])):
            outcome.wrong_chunks += 1
            outcome.notes.append(f"{who} has the ticks {reader.ticks}")
        if not cut and reader.types not in KINDS[outcome.kind].shapes():
            outcome.wrong_chunks += 1
            outcome.notes.append(f"{who} has {reader.types}")
        outcome.repeated += reader.repeated
    outcome.readers.clear()


def _apart(one: list[str], other: list[str]) -> tuple[int, list[str], list[str]]:
    """From which place on two lists are others, and what both have there."""
    same = next((at for at, (a, b) in enumerate(zip_longest(one, other)) if a != b), len(one))
    return same, one[same : same + 12], other[same : same + 12]


def _begins(told: str, texts: list[str]) -> bool:
    return any(text.startswith(told) for text in ("", *texts))


async def judge_calls(world: World, outcome: Outcome) -> None:
    """The model once a step, and once more where it fails, and for each lost gateway; the tool once for each host.

    Whoever is at a server that does not hear the others, or that stands still while leases run out, cannot be told from
    one that is lost. Either once more for each time that Redis has forgotten what came of it, which may be that it was
    refused, too.
    """
    befell = world.during(outcome.began, outcome.began + outcome.seconds)
    alone = [
        fault for fault in befell if world.is_clustered and fault.kind == "silence" and fault.outlasts_leases
    ]
    gateways = len(alone) + sum("llm_gateway" in fault.services or fault.kind in _UNHEARD for fault in befell)
    forgot = sum(fault.kind == "forget" for fault in befell)
    allowed = 1 + KINDS[outcome.kind].refused + gateways + forgot * (1 + KINDS[outcome.kind].refused)
    for (run, step), count in world.model.calls.items():
        if run == outcome.run and count > allowed:
            outcome.model_extra += count - allowed
            outcome.notes.append(f"the model was asked {count} times for step {step}; {befell}")
    wanted = KINDS[outcome.kind].calls
    if not wanted or outcome.status != "finished":
        return
    lost_hosts = len(alone) + sum("tools" in fault.services or fault.kind == "apart" for fault in befell)
    hosts = defaultdict[str, list[str]](list)
    for line in world.trace(outcome.run).read_text().splitlines():
        call, host = line.split()
        hosts[call].append(host)
    if len(hosts) != wanted or any(
        len(of) - len(set(of)) > forgot or len(of) > 1 + lost_hosts + forgot for of in hosts.values()
    ):
        outcome.tool_wrong += 1
        outcome.notes.append(f"calls of the tool: {dict(hosts)}; {befell}")


async def _started(client: Procession, question: str, agent: Agent, run: str, options: Any) -> RunHandle:
    return await _until_taken(
        lambda: client.start(question, agent=agent, run_id=run, **options), NotAcceptedError
    )


async def _attached(client: Procession, run: str, after: int) -> RunHandle:
    return await _until_taken(lambda: client.attach(run, after=after), UnknownRunError, NotConnectedError)


async def _decided(client: Procession, handle: RunHandle, result: RunResult, rng: random.Random) -> None:
    """Says what the call waits for, with that handle or as somebody else; whoever was quicker has done it."""
    (call,) = (result.suspend_payload or {})["calls"]
    other = await _attached(client, handle.run_id, 0) if rng.random() < _OTHERS else None
    who, id_ = other or handle, call["toolCallId"]
    with suppress(NotWaitingError):
        await _until_taken(
            lambda: who.resume(id_, "this") if "suspendPayload" in call else who.approve(id_),
            NotAcceptedError,
            NotConnectedError,
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
