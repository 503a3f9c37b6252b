"""What is known of a run between its commands: the plan, which stays the same, and the state."""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from procession.processor import INPUT_HOOKS, OUTPUT_HOOKS, Hook
from procession_schemas.agent import FactoryRef, ModelEntry, ProcessorRef
from procession_schemas.base import JsonObject, WireModel
from procession_schemas.memory import Concurrency
from procession_schemas.run import Failure, HookReport, ModelReport, RunResult
from procession_schemas.work import (
    AcceptOp,
    BaselineOp,
    EmitOp,
    FailOp,
    IfOutcomesOp,
    OpenOp,
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


class Placed(WireModel):
    """A processor of the plan: its hooks, and the service that runs them.

    `beside`: its processInput runs beside the first model call, and is not among `hooks`. `data_parts`: it is in the
    output chain, and wants data chunks.
    """

    ref: ProcessorRef
    hooks: frozenset[Hook]
    host: str
    beside: bool = False
    data_parts: bool = False


class Line(WireModel):
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


class Plan(WireModel):
    """The run's configuration, frozen when the run was accepted: which hooks run where.

    Runs share it, so nothing in it is ever changed, and nothing of a single request is in it. What `factories` make for
    one run, of `output` and `error`, that has in a plan of its own from then on.
    """

    model_config = ConfigDict(frozen=True)

    input: list[Placed] = Field(default_factory=list)
    output: list[Placed] = Field(default_factory=list)
    error: list[Placed] = Field(default_factory=list)
    config: StepConfig
    models: list[ModelEntry]
    max_steps: int | None = None
    stop_when: list[ProcessorRef] = Field(default_factory=list)
    budget: int | None = None
    max_retries: int = 0
    require_tool_approval: bool = False
    include_raw_chunks: bool = False
    api_base: str | None = None
    keyless: bool = False
    data_parts: bool = False
    stream: bool = True
    factories: dict[str, FactoryRef] = Field(default_factory=dict)

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
            own.model_copy(
                update={
                    "model": entry.model,
                    "model_settings": deep_merge(own.model_settings, entry.model_settings),
                    "provider_options": deep_merge(own.provider_options, entry.provider_options),
                }
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


class ByPlan(WireModel):
    """An operation that the plan and the state say all about."""

    op: Literal["arrays", "begin", "model", "tools", "toolResults", "stop"]


class HookByPlan(WireModel):
    """A hook of the stretch of processors that begins at that place of their array."""

    op: Literal["hook"] = "hook"
    hook: str
    offset: int = 0
    finish_reason: str | None = None


Bare = Annotated[
    ByPlan | HookByPlan | OpenOp | BaselineOp | EmitOp | StreamOp | UnlessToolsOp | IfOutcomesOp | RejectOp | AcceptOp
    | StepFinishOp | FailOp | ResultOp,
    Field(discriminator="op"),
]  # fmt: skip
"""An operation without what the plan says of it: processors, models, settings."""


class PlannedOp(WireModel):
    """An operation and the service that must run it; None: any.

    `lent`: in a command of the gateway, the output replica that has the model's stream may run it.
    """

    op: Bare
    host: str | None = None
    lent: bool = False


class Sent(WireModel):
    """The command that is out: the first `ops` of the pending operations, on that version of the context."""

    service: str
    ops: int
    version: int


class RunState(WireModel):
    """A run between events. The plan is stored beside it, once (`runs/stored.py`)."""

    run: str
    tenant: str
    agent: str
    plan: Plan = Field(exclude=True)
    open: OpenOp | None = Field(default=None, description="What the run begins with, until it has begun.")
    line: Line | None = None
    message_id: str
    fingerprint: str
    accepted_at: str
    traceparent: str | None = Field(default=None, description="Trace context of the run's own span.")
    parent_span: str | None = Field(default=None, description="Id of the caller's span above it.")
    deadline_ms: int
    timeout_ms: int = Field(default=600_000, description="Time to run, anew after a suspension.")
    suspended_ms: int = Field(default=30 * 86_400_000, description="Time for a person to decide.")
    status: Status = "running"
    queued: bool = Field(default=False, description="It waits for its turn; nothing of it was done.")
    seq: int = 0
    renewed: int = Field(default=0, description="The command before which Redis may have forgotten some.")
    leap: bool = Field(default=False, description="The next command is the first of a new time.")
    life: int = Field(default=0, description="The life of Redis in which this was saved.")
    version: int = 0
    out_seq: int = 0
    step: int = 0
    retries: int = 0
    feedback: list[str] = Field(default_factory=list)
    model_index: int = 0
    pending: list[PlannedOp] = Field(default_factory=list)
    then: Then = "modelled"
    sent: Sent | None = None
    facts: StepFacts = Field(default_factory=StepFacts)
    ending: bool = False
    cancel: bool = False
    error: Failure | None = None
    recover: bool = False
    waiting: list[JsonObject] = Field(default_factory=list)
    decisions: dict[str, JsonObject] = Field(default_factory=dict)
    replica: str | None = None
    guarded: bool = Field(default=False, description="The guards beside the model have spoken.")
    reports: dict[str, HookReport] = Field(default_factory=dict)
    models: dict[str, ModelReport] = Field(default_factory=dict)
    result: RunResult | None = None
