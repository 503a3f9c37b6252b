"""What is known of a run between its commands: the plan, which stays the same, and the state."""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Annotated, Any, Final, Literal, cast

from msgspec import UNSET, field
from pydantic import Field

from procession.processor import INPUT_HOOKS, OUTPUT_HOOKS, Hook
from procession_schemas.agent import FactoryRef, ModelEntry, ProcessorRef
from procession_schemas.base import JsonObject, WireStruct
from procession_schemas.memory import Concurrency
from procession_schemas.run import Failure, HookReport, ModelReport, RunResult
from procession_schemas.work import (
    AcceptOp,
    BaselineOp,
    EmitOp,
    FailOp,
    IfOutcomesOp,
    OpenOp,
    Operation,
    RejectOp,
    ResultOp,
    StepConfig,
    StepFacts,
    StepFinishOp,
    StreamOp,
    UnlessToolsOp,
)
from procession_services.runs.merging import deep_merge

Then = Literal[
    "planned", "modelled", "judged", "tooled", "stepped", "decide", "recovered", "suspended", "done"
]
"""What the run does when its pending operations are through."""
Status = Literal["running", "suspended", "done"]


class Placed(WireStruct):
    """A processor of the plan: its hooks, and the service that runs them.

    `beside`: its processInput runs beside the first model call, and is not among `hooks`. `data_parts`: it is in the
    output chain, and wants data chunks.
    """

    ref: ProcessorRef
    hooks: frozenset[Hook]
    host: str
    beside: bool = False
    data_parts: bool = False


class Line(WireStruct):
    """The thread on which a run takes its turn, and what it does where others are ahead of it (D-96)."""

    resource: str
    thread: str
    policy: Concurrency = "queue"


@dataclass(frozen=True, slots=True)
class Stretch:
    """The processors of an array that have a hook and stand together as far as one service runs them."""

    host: str
    places: list[int]
    refs: list[ProcessorRef]


class Plan(WireStruct, dict=True):
    """The run's configuration, frozen when the run was accepted: which hooks run where.

    Runs share it, so nothing in it is ever changed, and nothing of a single request is in it. A run for which
    `factories` have made the `output` or `error` array has a plan of its own from then on.
    """

    input: list[Placed] = field(default_factory=list)
    output: list[Placed] = field(default_factory=list)
    error: list[Placed] = field(default_factory=list)
    config: StepConfig
    models: list[ModelEntry]
    max_steps: int | None = None
    stop_when: list[ProcessorRef] = field(default_factory=list)
    budget: int | None = None
    max_retries: int = 0
    require_tool_approval: bool = False
    include_raw_chunks: bool = False
    api_base: str | None = None
    keyless: bool = False
    data_parts: bool = False
    stream: bool = True
    factories: dict[str, FactoryRef] = field(default_factory=dict)

    @cached_property
    def stored(self) -> bytes:
        """As it is stored beside the states of its runs."""
        return self.to_json()

    @cached_property
    def made(self) -> dict[str, Any]:
        """What has been made of the plan (`runs/program.py`)."""
        return {}

    @cached_property
    def chain(self) -> list[ProcessorRef]:
        """The output processors that the stream goes through."""
        return [placed.ref for _, placed in _having(self.output, Hook.OUTPUT_STREAM)]

    @cached_property
    def chain_places(self) -> list[int]:
        """Where they stand among the output processors."""
        return [index for index, _ in _having(self.output, Hook.OUTPUT_STREAM)]

    @cached_property
    def stretches(self) -> dict[str, list[Stretch]]:
        """Who runs each hook, in order; a hook that nobody has is not among the keys."""
        arrays = {Hook.API_ERROR: self.error}
        arrays |= dict.fromkeys(INPUT_HOOKS, self.input) | dict.fromkeys(OUTPUT_HOOKS, self.output)
        found = {hook.value: _stretches(array, hook) for hook, array in arrays.items()}
        return {hook: stretches for hook, stretches in found.items() if stretches}

    @cached_property
    def configs(self) -> list[StepConfig]:
        """What a step is run with, for each of the models."""
        own = self.config
        return [
            own.but(
                model=entry.model,
                model_settings=deep_merge(own.model_settings, entry.model_settings),
                provider_options=deep_merge(own.provider_options, entry.provider_options),
            )
            for entry in self.models
        ]


def _having(array: list[Placed], hook: Hook) -> list[tuple[int, Placed]]:
    return [(index, placed) for index, placed in enumerate(array) if hook in placed.hooks]


def _stretches(array: list[Placed], hook: Hook) -> list[Stretch]:
    made = []
    for host, group in groupby(_having(array, hook), key=lambda entry: entry[1].host):
        places, members = zip(*group, strict=True)
        made.append(Stretch(host, list(places), [placed.ref for placed in members]))
    return made


def told_places(places: list[int], first: int = 0) -> list[int] | None:
    """What a command says of where processors stand in their array: nothing where that is side by side from `first`."""
    return None if places == list(range(first, first + len(places))) else places


class ArraysByPlan(Operation, tag="arrays"):
    """Becomes an `ArraysOp`."""


class BeginByPlan(Operation, tag="begin"):
    """Becomes a `BeginOp`."""


class ModelByPlan(Operation, tag="model"):
    """Becomes a `ModelOp`."""


class ToolsByPlan(Operation, tag="tools"):
    """Becomes a `ToolsOp`."""


class ToolResultsByPlan(Operation, tag="toolResults"):
    """Becomes a `ToolResultsOp`."""


class StopByPlan(Operation, tag="stop"):
    """Becomes a `StopOp`."""


ByPlan = ArraysByPlan | BeginByPlan | ModelByPlan | ToolsByPlan | ToolResultsByPlan | StopByPlan
"""An operation that the plan and the state say all about."""


class HookByPlan(Operation, tag="hook"):
    """A hook, run by the stretch of processors that begins at place `offset` of their array."""

    hook: str
    offset: int = 0
    finish_reason: str | None = None


Bare = (
    ByPlan | HookByPlan | OpenOp | BaselineOp | EmitOp | StreamOp | UnlessToolsOp | IfOutcomesOp | RejectOp | AcceptOp
    | StepFinishOp | FailOp | ResultOp
)  # fmt: skip
"""An operation without what the plan says of it: processors, models, settings."""


class PlannedOp(WireStruct):
    """An operation and the service that must run it; None: any.

    `lent`: in a command of the gateway, the output replica that has the model's stream may run it.
    """

    op: Bare
    host: str | None = None
    lent: bool = False


class Sent(WireStruct):
    """The command that is out: the first `ops` of the pending operations, on that version of the context."""

    service: str
    ops: int
    version: int


_NO_PLAN: Final = cast("Plan", UNSET)


class RunState(WireStruct):
    """A run between events. The plan is stored beside it, once (`runs/stored.py`)."""

    run: str
    tenant: str
    agent: str
    plan: Plan = _NO_PLAN
    open: Annotated[OpenOp | None, Field(description="What the run begins with, until it has begun.")] = None
    line: Line | None = None
    message_id: str
    fingerprint: str
    accepted_at: str
    traceparent: Annotated[str | None, Field(description="Trace context of the run's own span.")] = None
    parent_span: Annotated[str | None, Field(description="Id of the caller's span above it.")] = None
    deadline_ms: int
    timeout_ms: Annotated[int, Field(description="Time to run, anew after a suspension.")] = 600_000
    suspended_ms: Annotated[int, Field(description="Time for a person to decide.")] = 30 * 86_400_000
    status: Status = "running"
    queued: Annotated[bool, Field(description="It waits for its turn; nothing of it was done.")] = False
    seq: int = 0
    renewed: Annotated[int, Field(description="The command before which Redis may have forgotten some.")] = 0
    leap: Annotated[bool, Field(description="The next command is the first of a new time.")] = False
    life: Annotated[int, Field(description="The life of Redis in which this was saved.")] = 0
    version: int = 0
    out_seq: int = 0
    step: int = 0
    retries: int = 0
    feedback: list[str] = field(default_factory=list)
    model_index: int = 0
    pending: list[PlannedOp] = field(default_factory=list)
    then: Then = "modelled"
    sent: Sent | None = None
    facts: StepFacts = field(default_factory=StepFacts)
    ending: bool = False
    cancel: bool = False
    error: Failure | None = None
    recover: bool = False
    waiting: list[JsonObject] = field(default_factory=list)
    decisions: dict[str, JsonObject] = field(default_factory=dict)
    replica: str | None = None
    guarded: Annotated[bool, Field(description="The guards beside the model have spoken.")] = False
    reports: dict[str, HookReport] = field(default_factory=dict)
    models: dict[str, ModelReport] = field(default_factory=dict)
    result: RunResult | None = None
    ended_ms: Annotated[int, Field(description="When it ended; 0 of one that has not.")] = 0

    def to_json(self) -> bytes:
        """As it is stored: without the plan."""
        return super(RunState, self.but(plan=_NO_PLAN)).to_json()
