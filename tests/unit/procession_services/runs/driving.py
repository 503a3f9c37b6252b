"""Drives the reducer as the shell does: one event in, the outstanding command out."""

from collections.abc import Iterable
from typing import Any

from procession.processor import Hook
from procession_schemas.agent import ModelEntry, ProcessorRef
from procession_schemas.run import Failure, RunResult, Tripwire
from procession_schemas.work import (
    Control,
    ModelOp,
    OpenOp,
    ResultOp,
    StepConfig,
    StepFacts,
    WorkCommand,
    WorkResult,
)
from procession_services.runs import program
from procession_services.runs.events import Effect, RunEvent, Started
from procession_services.runs.reducer import reduce
from procession_services.runs.state import Line, Placed, Plan, RunState

HOSTS = {"in": "input_processors", "out": "output_processors", "err": "error_recovery", "mem": "memory"}


def placed(name: str, *hooks: Hook) -> Placed:
    """A processor; the first letters of its name say where it runs."""
    return Placed(
        ref=ProcessorRef(id=name), hooks=frozenset(hooks), host=HOSTS[name[:3].rstrip("0123456789-")]
    )


def make_plan(*models: ModelEntry | str, **fields: Any) -> Plan:
    """A plan without processors and tools, but for what is given."""
    entries = [ModelEntry(model=m) if isinstance(m, str) else m for m in models or ("m/one",)]
    config = fields.pop("config", StepConfig(model=entries[0].model))
    return Plan(config=config, models=entries, **{"max_steps": 5, **fields})


def make_state(plan: Plan, **fields: Any) -> RunState:
    """A run that was just accepted."""
    return RunState(
        run="r",
        tenant="t",
        agent="a",
        plan=plan,
        open=OpenOp(input=["hello"]),
        message_id="msg-r",
        fingerprint="f",
        accepted_at="2026-01-01T00:00:00Z",
        deadline_ms=1,
        **fields,
    )


def command_of(state: RunState) -> WorkCommand | None:
    """The outstanding command of a run."""
    return program.command(state, state.sent) if state.sent else None


def name_of(op: Any) -> str:
    """`model`, or the hook of a hook operation."""
    return str(op.hook if op.op == "hook" else op.op)


class Run:
    """A run in the hands of a test. Every command that was ever sent is in `sent`."""

    def __init__(self, plan: Plan | None = None, *, line: Line | None = None, **fields: Any) -> None:
        self.state = make_state(plan or make_plan(**fields), line=line)
        self.effects: list[Effect] = []
        self.sent: list[WorkCommand] = []
        self.tell(Started())

    def tell(self, event: RunEvent) -> "Run":
        """Gives the reducer an event."""
        self.state, self.effects = reduce(self.state, event)
        command = command_of(self.state)
        if command and (not self.sent or command.seq > self.sent[-1].seq):
            self.sent.append(command)
        return self

    @property
    def command(self) -> WorkCommand:
        """The outstanding command."""
        command = command_of(self.state)
        assert command is not None
        return command

    @property
    def ops(self) -> list[str]:
        """What the outstanding command does."""
        return [name_of(op) for op in self.command.ops]

    @property
    def result(self) -> RunResult:
        """What the run ended with, or waits with."""
        assert self.state.result is not None
        return self.state.result

    @property
    def tripwire(self) -> Tripwire:
        """What blocked the run."""
        assert self.result.tripwire is not None
        return self.result.tripwire

    @property
    def error(self) -> Failure:
        """What the run failed of."""
        assert self.result.error is not None
        return self.result.error

    def shapes(self) -> list[tuple[str, list[str]]]:
        """Service and operations of every command so far."""
        return [(command.service, [name_of(op) for op in command.ops]) for command in self.sent]

    def op(self, name: str) -> Any:
        """The first such operation of the outstanding command."""
        return next(op for op in self.command.ops if name_of(op) == name)

    def answer(self, outcome: Any = "ok", **fields: Any) -> "Run":
        """Answers the outstanding command. `at` is the name of the operation that ended it."""
        command = self.command
        at = fields.pop("at", None)
        result = WorkResult(
            run=command.run,
            tenant=command.tenant,
            seq=command.seq,
            service=command.service,
            outcome=outcome,
            at=0 if at is None else self.ops.index(at),
            version=max(command.version, self.state.version) + 1,
            out_seq=command.out_seq + 1,
            **fields,
        )
        final = next((op for op in command.ops if isinstance(op, ResultOp)), None)
        if outcome == "ok" and final and not result.stopped:
            reason = result.facts.finish_reason if result.facts else "stop"
            result.result = RunResult(
                run_id=command.run,
                agent=command.agent,
                status=final.status,
                finish_reason=final.finish_reason or reason,
                tripwire=final.tripwire,
                error=final.error,
            )
        return self.tell(result)

    def until(self, name: str) -> "Run":
        """Answers `ok` until a command does that operation."""
        while name not in self.ops:
            self.says() if "model" in self.ops else self.answer()
        return self

    def to_end(self) -> "Run":
        """Answers `ok` until the run ends or waits."""
        while self.state.status == "running":
            self.says() if "model" in self.ops else self.answer()
        return self

    def says(self, *, calls: int = 0, reason: str | None = None) -> "Run":
        """Lets the model answer, with so many tool calls."""
        self.until("model")
        finish_reason = reason or ("tool-calls" if calls else "stop")
        facts = StepFacts(finish_reason=finish_reason, tool_calls=calls, started=True)
        return self.answer(facts=facts, stopped=bool(calls) and "unlessTools" in self.ops)

    def uses_tools(self, outcomes: int = 1) -> "Run":
        """Lets the model call tools and runs them."""
        self.says(calls=max(outcomes, 1)).until("tools")
        stopped = outcomes == 0 and "ifOutcomes" in self.ops
        return self.answer(facts=StepFacts(outcomes=outcomes), stopped=stopped)

    def fails(self, *, started: bool = True, message: str = "overloaded") -> "Run":
        """Lets the model fail."""
        self.until("model")
        error = Failure(code="MODEL_FAILED", message=message)
        facts = StepFacts(started=started)
        return self.answer("modelFailed", at="model", error=error, facts=facts)

    def trips(self, at: str, *, retry: bool = False, reason: str = "too rude") -> "Run":
        """Lets a processor abort in that operation."""
        self.until(at)
        tripwire = Tripwire(reason=reason, processor_id="p", retry=True if retry else None)
        facts = StepFacts(finish_reason="stop", tool_calls=0, started=True) if at == "model" else None
        return self.answer("tripwire", at=at, tripwire=tripwire, facts=facts)

    def waits(self, *calls: str, kind: str = "approval", outcomes: int = 0) -> "Run":
        """Lets tool calls wait for a person, when others have so many outcomes."""
        if "tools" not in self.ops:
            self.says(calls=len(calls)).until("tools")
        entries = [{"toolCallId": call, "toolName": "t", "args": {}, "kind": kind} for call in calls]
        return self.answer("suspended", at="tools", suspend=entries, facts=StepFacts(outcomes=outcomes))

    def approve(self, call: str, *, approved: bool = True, **fields: Any) -> "Run":
        """A person decides about a call."""
        return self.tell(Control(type="resume", tool_call_id=call, approved=approved, **fields))

    def cancel(self) -> "Run":
        """A person cancels the run."""
        return self.tell(Control(type="cancel"))

    def models_called(self) -> int:
        """How many commands called a model."""
        return sum(isinstance(op, ModelOp) for command in self.sent for op in command.ops)


def ids(refs: Iterable[ProcessorRef]) -> list[str]:
    """The ids of processors."""
    return [ref.id for ref in refs]
