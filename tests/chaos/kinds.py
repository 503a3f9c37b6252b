"""The kinds of runs: what each asks for, and what must come of it."""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from procession_schemas.agent import Agent
from tests.chaos.ending import MADE_AT, PLACES, TOOL, deaths_of
from tests.chaos.made import MADE
from tests.chaos.plugin import expected

__all__ = ["ENDING", "FEWEST", "KINDS", "ORDINARY", "Kind", "bare"]

_TEXT: Final = ("text-start", "text-delta", "text-end")
_CALL: Final = ("tool-call", "tool-result")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of runs.

    Attributes:
        agent: Its agent, without the tool.
        more: What its question asks of the model beside words.
        tool: What its tool has beside the path of its trace; None for none.
        streams: It sends chunks.
        calls: Calls of the tool in one run.
        turns: Runs of one conversation.
        at_once: They begin together, and not one after the other.
        same: They ask the same, and get the same answer.
        hears: Whether the model hears what was said in the thread before: `all`, `perhaps`, or not.
        ends: How its runs may end.
        error: The code of the error with which they may.
        forgotten: Another one, where Redis has forgotten how often they were tried.
        deaths: How often a hook or the tool ends the process that has the run, one of these; and in one of these
            `places`.
        refused: How often a step's model is asked for nothing.
        words: How many of the model's words pass, where that is not all.
        made: The output processors are `made.MADE`.
        told: What the output processors make of an answer that came in these pieces.
        steps: What a client gets in each step between its start and its end; nothing of one whose model failed, and
            that one it need not get either.
    """

    agent: Mapping[str, Any] = field(default_factory=dict)
    more: str = ""
    tool: Mapping[str, Any] | None = None
    streams: bool = True
    calls: int = 0
    turns: int = 1
    at_once: bool = False
    same: bool = False
    hears: str = ""
    ends: tuple[str, ...] = ("finished",)
    error: str = ""
    forgotten: str = ""
    deaths: tuple[int, ...] = ()
    places: tuple[str, ...] = PLACES
    refused: int = 0
    words: int | None = None
    made: bool = False
    told: Callable[[list[str]], str] = expected
    steps: tuple[tuple[str, ...], ...] = (_TEXT,)

    def agent_of(self, name: str, trace: Path) -> Agent:
        """The agent of one run, whose tool leaves its trace there."""
        tool = {"id": "chaos-trace", "options": {"path": str(trace)}}
        tools = [] if self.tool is None else [{**tool, **self.tool}]
        fields = {"name": f"chaos-{name}", "model": "openai/chaos", **self.agent, "tools": tools}
        return Agent.model_validate({**fields, **(self._ending(trace) if self.deaths else {})})

    def _ending(self, trace: Path) -> dict[str, Any]:
        """What of an agent ends its process; where and how often follows from the run's name."""
        rng = random.Random(trace.name)
        times, at = rng.choice(self.deaths), rng.choice(self.places)
        if at == TOOL:
            return {"tools": [{"id": "chaos-ending", "options": {"path": str(trace), "times": times}}]}
        told = {"path": str(deaths_of(trace)), "times": times, "at": at, "word": rng.randint(1, FEWEST)}
        ends = {"id": "chaos-ending", "options": told}
        return {"inputProcessors": [ends], "outputProcessors": [*self.agent["outputProcessors"], ends]}

    def shapes(self) -> list[list[str]]:
        """The types of chunks that a client may get in turn, pieces of text as one."""
        wholes = [self.steps, tuple(step for step in self.steps if step)]
        return [
            ["start", *(t for step in steps for t in ("step-start", *step, "step-finish")), "finish"]
            for steps in wholes
        ]


def upper(words: list[str]) -> str:
    """What `chaos-upper` makes of a text."""
    return "".join(words).upper()


def bare(text: str) -> str:
    """A text without what `rated` has written into it."""
    return re.sub("~[0-9]+~", "", text)


_CHAIN: Final = ["chaos-upper", "chaos-tally", "chaos-split"]
_STREAMED: Final = {"outputProcessors": _CHAIN}
_BLOCKED_AT: Final = 15
FEWEST: Final = 20
"""Words of an answer, at least."""
_ALWAYS: Final = 10_000
_DEADLY_SECONDS: Final = 360.0
"""When a run ends whose processes die each time, where Redis forgets each time how often that was."""
_SCHEMA: Final = {"type": "object", "properties": {"made": {"type": "integer"}}, "required": ["made"]}

KINDS: Final[Mapping[str, Kind]] = {
    "plain": Kind(_STREAMED),
    "straight": Kind(told="".join),
    "tools": Kind(_STREAMED, " tool", {}, calls=1, steps=(_CALL, _TEXT)),
    "steps": Kind(
        _STREAMED,
        " steps",
        {},
        calls=3,
        steps=(("tool-call", "tool-call", "tool-result", "tool-result"), _CALL, _TEXT),
    ),
    "asked": Kind(
        _STREAMED,
        " tool",
        {"requireApproval": True},
        calls=1,
        steps=(("tool-call", "tool-call-approval", "tool-result"), _TEXT),
    ),
    "resumed": Kind(
        _STREAMED,
        " tool",
        {"id": "chaos-asking"},
        calls=1,
        steps=(("tool-call", "tool-call-suspended", "tool-result"), _TEXT),
    ),
    "whole": Kind(_STREAMED, " steps", {}, calls=3, streams=False),
    "history": Kind({**_STREAMED, "memory": {"lastMessages": 10}}, turns=2, hears="all"),
    "queued": Kind({**_STREAMED, "memory": {"lastMessages": 10}}, turns=2, at_once=True, hears="all"),
    "recalled": Kind(
        {**_STREAMED, "memory": {"lastMessages": False, "semanticRecall": {"topK": 2}}},
        turns=2,
        hears="perhaps",
    ),
    "cached": Kind(
        {
            "inputProcessors": [{"id": "response-cache", "options": {"scope": None}}],
            "outputProcessors": ["chaos-upper"],  # it changes nothing where an answer comes again
        },
        turns=2,
        same=True,
        told=upper,
    ),
    "timed": Kind(
        {
            "outputProcessors": [
                {"id": "batch-parts", "options": {"batchSize": 50, "maxWaitTime": 35}},
                "chaos-upper",
            ]
        },
        told=upper,
    ),
    "made": Kind({"outputProcessors": [kind.id for kind in MADE]}, made=True),
    "written": Kind(
        {
            "inputProcessors": ["chaos-writes"],
            "outputProcessors": [*(kind.id for kind in MADE), "chaos-writes"],
        },
        made=True,
    ),
    "told": Kind(
        {"outputProcessors": [kind.id for kind in MADE]},
        " tool",
        {"id": "chaos-telling"},
        calls=1,
        made=True,
        steps=(_CALL, _TEXT),
    ),
    "ticked": Kind({"outputProcessors": ["ticking", *_CHAIN]}, " tool", {}, calls=1, steps=(_CALL, _TEXT)),
    "rated": Kind({"outputProcessors": [*_CHAIN, {"id": "rated", "options": {"model": "openai/rater"}}]}),
    "object": Kind(
        {**_STREAMED, "structuredOutput": {"schema": _SCHEMA, "model": "openai/maker"}},
        steps=((*_TEXT, "object", "object-result"),),
    ),
    "fails": Kind(
        {
            **_STREAMED,
            "errorProcessors": [{"id": "stream-error-retry-processor", "options": {"maxRetries": 3}}],
            "maxProcessorRetries": 3,
        },
        " fails",
        refused=1,
        steps=((), _TEXT),
    ),
    "second": Kind({**_STREAMED, "model": [{"model": "openai/broken"}, {"model": "openai/chaos"}]}),
    "again": Kind(
        {"outputProcessors": ["chaos-upper", "chaos-again"], "maxProcessorRetries": 3},
        refused=1,
        told=upper,
        steps=(_TEXT, _TEXT),
    ),
    "guarded": Kind({**_STREAMED, "inputProcessors": ["chaos-guard"]}),
    "objected": Kind(
        {**_STREAMED, "inputProcessors": [{"id": "chaos-guard", "options": {"objects": True}}]},
        ends=("blocked",),
        words=0,
    ),
    "blocked": Kind(
        {
            "outputProcessors": [
                "chaos-upper",
                {"id": "chaos-block", "options": {"at": _BLOCKED_AT}},
                "chaos-tally",
                "chaos-split",
            ]
        },
        ends=("blocked",),
        words=_BLOCKED_AT,
    ),
    "cancelled": Kind(_STREAMED, ends=("cancelled", "finished")),
    "expires": Kind({**_STREAMED, "timeout": 1.0}, ends=("failed", "finished"), error="DEADLINE_EXCEEDED"),
    "every": Kind(
        {"inputProcessors": ["chaos-every"], "outputProcessors": [*_CHAIN, "chaos-every"]},
        " tool",
        {},
        calls=1,
        steps=(_CALL, _TEXT),
    ),
    "ending": Kind(
        _STREAMED, " tool", {}, calls=1, deaths=(1, 2), places=(*PLACES, MADE_AT), steps=(_CALL, _TEXT)
    ),
    "deadly": Kind(
        {**_STREAMED, "timeout": _DEADLY_SECONDS},
        " tool",
        {},
        calls=1,
        ends=("failed",),
        error="WORK_FAILED",
        forgotten="DEADLINE_EXCEEDED",
        deaths=(_ALWAYS,),
    ),
    "unmade": Kind(_STREAMED, ends=("failed",), error="INTERNAL", deaths=(_ALWAYS,), places=(MADE_AT,)),
}
ORDINARY: Final = tuple(name for name, kind in KINDS.items() if not kind.deaths)
_MOSTLY_ENDING: Final = ("ending", "ending", "ending", "deadly", "ending", "ending", "ending", "unmade")
_ordinary, _ending = cycle(ORDINARY), cycle(_MOSTLY_ENDING)
ENDING: Final = tuple(
    next(_ending if number % 4 == 3 else _ordinary)
    for number in range(4 * len(ORDINARY) * len(_MOSTLY_ENDING))
)
"""In turn three ordinary kinds, and one whose runs end processes."""
