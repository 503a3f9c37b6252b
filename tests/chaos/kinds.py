"""The kinds of runs: what each asks for, and what must come of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from procession_schemas.agent import Agent
from tests.chaos.plugin import expected

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of runs.

    Attributes:
        agent: Its agent, without the tool.
        tool: What its tool has beside the path of its trace; None for none.
        more: What its question asks of the model beside words.
        calls: Of the tool, in one run.
        thread: Its runs are two of one thread: one after the other, or `at once`.
        ends: How its runs may end.
        refusals: Calls of the model that are for nothing in each step, whatever happens.
        told: What the output processors make of an answer that came in these pieces.
    """

    agent: Mapping[str, Any] = field(default_factory=dict)
    tool: Mapping[str, Any] | None = None
    more: str = ""
    calls: int = 0
    thread: str = ""
    ends: tuple[str, ...] = ("finished",)
    refusals: int = 0
    told: Callable[[list[str]], str] = expected

    def agent_of(self, name: str, trace: Path) -> Agent:
        """The agent of one run, whose tool leaves its trace there."""
        tools = (
            [] if self.tool is None else [{"id": "chaos-trace", **self.tool, "options": {"path": str(trace)}}]
        )
        return Agent.model_validate(
            {"name": f"chaos-{name}", "model": "openai/chaos", **self.agent, "tools": tools}
        )


BLOCKED_AT: Final = 15
_CHAIN: Final = ["chaos-upper", "chaos-tally", "chaos-split"]
_STREAMED: Final = {"outputProcessors": _CHAIN}

KINDS: Final = {
    "plain": Kind(_STREAMED),
    "straight": Kind(told="".join),
    "tools": Kind(_STREAMED, {}, " tool", 1),
    "steps": Kind(_STREAMED, {}, " steps", 3),
    "asked": Kind(_STREAMED, {"requireApproval": True}, " tool", 1),
    "history": Kind({**_STREAMED, "memory": {"lastMessages": 10}}, thread="in turn"),
    "queued": Kind({**_STREAMED, "memory": {"lastMessages": 10}}, thread="at once"),
}
