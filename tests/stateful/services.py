"""The services that work on a run, as far as its reducer can tell: they run commands and take the answers in.

What an operation comes to is chosen by the test. Identity and idempotence are those of the real executor: the stored
result of a command that was done before, nothing for one that the run has left behind, and tool calls that are joined
while their host lives.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from procession.processor import Hook
from procession_schemas.run import Failure, HookReport, ModelReport, RunResult, Tripwire
from procession_schemas.work import (
    ANY_VERSION,
    BeginOp,
    HookOp,
    IfOutcomesOp,
    ModelOp,
    RejectOp,
    ResultOp,
    StepFacts,
    StepFinishOp,
    StopOp,
    StreamOp,
    ToolResultsOp,
    ToolsOp,
    UnlessToolsOp,
    WorkCommand,
    WorkResult,
)

Choose = Callable[[Sequence[Any]], Any]
"""Picks one of some possibilities; the first one is what usually happens."""
Steps = Generator[None, None, Any]
"""Work that can be stopped for ever wherever it yields: between any two of its effects on the world."""
CALLS: tuple[list[str], ...] = (
    ["plain"],
    [],
    ["plain", "plain"],
    ["approval"],
    ["asks"],
    ["plain", "asks"],
    ["client"],
    ["plain", "client"],
)
"""The tool calls that a response may have, by what their tools do."""
ENOUGH_STEPS = 4
"""Where a stop condition says stop at last."""


@dataclass
class Store:
    """A run in Redis."""

    state: bytes | None = None
    state_version: int = 0
    context: dict[str, Any] = field(
        default_factory=lambda: {"calls": [], "outcomes": {}, "begun": 0, "continued": 0, "agreed": False}
    )
    version: int = 0
    seq: int = -1
    result: bytes | None = None
    out: int = 0
    life: int = 1
    numbered_in: int = 1
    """The life in which `out` got its number."""
    cancelled: bool = False
    listed: bool = False
    """Whether the run is on the list of deadlines."""

    def save_state(self, version: int, state: bytes) -> bool:
        """Compare-and-set of the run's state."""
        if version != self.state_version:
            return False
        self.state, self.state_version = state, version + 1
        told = orjson.loads(state)
        self.out = told["seq"] if told.get("sent") else 0
        self.numbered_in = 0 if told.get("leap") else told.get("life", 0)
        self.listed = True
        return True

    def commit(
        self, version: int, seq: int, context: dict[str, Any], result: bytes, change: tuple[int, bytes] | None
    ) -> tuple[bytes, bool] | None:
        """Compare-and-set of the context and, with it, of the state; the result that counts, and whether both went."""
        if self.seq == seq:
            return (self.result, False) if self.result is not None else None
        if self.state is None or seq != self.out or self.version != version or self.seq > seq:
            return None
        self.version, self.seq, self.context, self.result = version + 1, seq, context, result
        return result, change is not None and self.save_state(*change)


@dataclass
class ToolHost:
    """The process that runs tools, and what it did."""

    life: int = 0
    rounds: dict[str, tuple[dict[str, str], list[dict[str, Any]]]] = field(default_factory=dict)
    ended: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    recorded: set[str] = field(default_factory=set)

    def die(self) -> None:
        """Forgets what it has not answered."""
        self.life += 1
        self.rounds.clear()

    def excuse(self, remembered: set[str]) -> None:
        """Redis has forgotten outcomes, so calls may be made again."""
        self.recorded = remembered
        self.ended.clear()

    def call(self, call_id: str) -> None:
        """Runs a tool to its end.

        The promise: once for a call id, and again only when the host died before the outcome was recorded.
        """
        assert call_id not in self.recorded, f"{call_id} runs again after its outcome was recorded"
        assert self.life not in self.ended[call_id], f"{call_id} runs twice in one life of its host"
        self.ended[call_id].append(self.life)

    def run(self, op: ToolsOp, command: WorkCommand, context: dict[str, Any]) -> list[dict[str, Any]]:
        """The calls of one response, one after another; gives those that wait for a person."""
        key = f"{command.version} {context['calls']} {op.decisions}"
        if key not in self.rounds:
            outcomes = dict(context["outcomes"])
            waiting = self._round(op, context["calls"], outcomes)
            self.rounds[key] = (outcomes, waiting)
        context["outcomes"], waiting = copy.deepcopy(self.rounds[key])
        return waiting

    def _round(
        self, op: ToolsOp, calls: list[dict[str, str]], outcomes: dict[str, str]
    ) -> list[dict[str, Any]]:
        for call in calls:
            call_id, kind = call["id"], call["kind"]
            decision = op.decisions.get(call_id, {})
            if call_id in outcomes or kind == "client":
                continue
            if decision.get("approved") is False:
                outcomes[call_id] = "denied"
            elif kind == "approval" and "approved" not in decision:
                return [{"toolCallId": call_id, "toolName": "t", "args": {}, "kind": "approval"}]
            elif kind == "asks" and "resumeData" not in decision:
                return [{"toolCallId": call_id, "toolName": "t", "args": {}, "kind": "suspended"}]
            else:
                self.call(call_id)
                outcomes[call_id] = "result"
        return []


class Services:
    """Runs commands, wherever they are for."""

    def __init__(self, store: Store, *, guarded: bool = False) -> None:
        self.store, self.guarded = store, guarded
        self.tools = ToolHost()
        self.model_calls = 0
        self.begun = 0

    def is_current(self, command: WorkCommand) -> bool:
        """Whether it is what the run waits for."""
        store = self.store
        fits = command.version in (store.version, ANY_VERSION)
        return store.state is not None and fits and command.seq == store.out

    def execute(
        self,
        command: WorkCommand,
        choose: Choose,
        next_state: Callable[[WorkResult], tuple[int, bytes] | None],
    ) -> Generator[None, None, tuple[bytes | None, bool]]:
        """What `Executor.execute` does up to its commit, with a pause between any two of its effects.

        Gives the result that counts, None for a command that the run has left behind, and whether the state that
        `next_state` made of it was saved as well.
        """
        store = self.store
        version, seq, stored = store.version, store.seq, store.result
        context = copy.deepcopy(store.context)
        if seq == command.seq and stored is not None:
            return stored, False
        if not self.is_current(command):
            return None, False
        assert command.seq >= self.begun, f"command {command.seq} says what {self.begun} is believed rather"
        self.begun = command.seq
        result = WorkResult(
            run=command.run,
            tenant=command.tenant,
            seq=command.seq,
            service=command.service,
            outcome="ok",
            version=version + 1,
            out_seq=command.out_seq + 1,
            reports=[HookReport(processor="p", hook="h", calls=1)],
        )
        for at, op in enumerate(command.ops):
            yield
            self._run(op, command, context, result, choose)
            if result.stopped or result.outcome != "ok":
                result.at = at
                break
        change = next_state(result)
        yield
        counts = store.commit(version, command.seq, context, result.to_json(), change)
        if counts is None:
            return None, False
        if counts[0] == result.to_json():
            self.tools.recorded |= context["outcomes"].keys()
        return counts

    def _run(  # noqa: C901, PLR0912 - a case for each operation
        self, op: Any, command: WorkCommand, context: dict[str, Any], result: WorkResult, choose: Choose
    ) -> None:
        if isinstance(op, StepFinishOp) and op.reason != "retry":
            context["continued"] += op.is_continued
        match op:
            case BeginOp() | RejectOp():
                context.update(calls=[], outcomes={}, begun=context["begun"] + isinstance(op, BeginOp))
            case UnlessToolsOp():
                result.stopped = bool(context["calls"])
            case IfOutcomesOp():
                result.stopped = len(context["outcomes"]) < len(context["calls"]) or self.store.cancelled
            case ModelOp():
                self._model(op, command, context, result, choose)
            case ToolsOp():
                waiting = self.tools.run(op, command, context)
                result.facts = StepFacts(outcomes=len(context["outcomes"]))
                if waiting and not self.store.cancelled:
                    result.outcome, result.suspend = "suspended", waiting
                else:
                    _ends(result, choose, "ok", "retry", "tripwire", "failed")
            case HookOp():
                _ends(result, choose, "ok", "retry", "tripwire", "failed")
                if op.hook == Hook.API_ERROR and result.outcome == "ok":
                    result.retry = choose([True, False])
            case StreamOp() | StepFinishOp() | ToolResultsOp() if op.processors:
                _ends(result, choose, "ok", "retry", "tripwire", "failed")
            case StopOp():
                result.stop = context["begun"] >= ENOUGH_STEPS or choose([False, True])
            case ResultOp():
                result.result = RunResult(
                    run_id=command.run,
                    agent=command.agent,
                    status=op.status,
                    finish_reason=op.finish_reason or "stop",
                    tripwire=op.tripwire,
                    error=op.error,
                )
            case _:
                pass  # only the context would change

    def _model(
        self, op: ModelOp, command: WorkCommand, context: dict[str, Any], result: WorkResult, choose: Choose
    ) -> None:
        result.facts = StepFacts()
        if self.store.cancelled:
            result.outcome = "cancelled"
            return
        self.model_calls += 1
        assert not (op.guards and context["agreed"]), "guards are asked again"
        assert op.guards or context["agreed"] or not self.guarded, "a model answers that nobody guards"
        if op.guards:
            result.verdict = choose(["passed", "blocked", "passed"])
            context["agreed"] = True
        if result.verdict == "blocked":
            result.outcome = "tripwire"
            result.tripwire = Tripwire(reason="no", processor_id="g", retry=choose([None, True]))
            return
        calls = [
            {"id": f"{command.seq}-{self.model_calls}-{at}", "kind": kind}
            for at, kind in enumerate(choose(CALLS))
        ]
        context["calls"] = calls
        result.model = ModelReport(model="m/m", calls=1, usage={"totalTokens": 3})
        reason = choose(["tool-calls" if calls else "stop", "length"])
        result.facts = StepFacts(finish_reason=reason, tool_calls=len(calls), started=choose([True, False]))
        _ends(result, choose, "ok", "retry", "modelFailed", "tripwire", "failed")


def _ends(result: WorkResult, choose: Choose, *ways: str) -> None:
    way = choose(ways)
    if way in ("tripwire", "retry"):
        retry = True if way == "retry" else None
        result.outcome = "tripwire"
        result.tripwire = Tripwire(reason=f"no {result.seq}", processor_id="p", retry=retry)
    elif way == "modelFailed":
        result.outcome, result.error = "modelFailed", Failure(code="MODEL_FAILED", message="no answer")
    elif way == "failed":
        result.outcome, result.error = "failed", Failure(code="PROCESSOR_FAILED", message="broken")
