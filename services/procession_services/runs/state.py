"""What the orchestrator knows of a run."""

from typing import Literal

from pydantic import Field

from procession.processor import Hook
from procession_schemas.agent import ModelEntry, ProcessorRef
from procession_schemas.base import JsonObject, WireModel
from procession_schemas.memory import Concurrency
from procession_schemas.run import Failure, HookReport, ModelReport, RunResult
from procession_schemas.work import Op, OpenOp, StepConfig, StepFacts, WorkCommand

Then = Literal["modelled", "judged", "tooled", "decide", "recovered", "suspended", "done"]
"""What the run does when its pending operations are through."""
Status = Literal["running", "suspended", "done"]


class Placed(WireModel):
    """A processor of the plan: its hooks, and the service that runs them.

    `beside`: its processInput runs beside the first model call, and is not among `hooks`.
    """

    ref: ProcessorRef
    hooks: frozenset[Hook]
    host: str
    beside: bool = False


class Line(WireModel):
    """The thread on which a run takes its turn, and what it does where others are ahead of it (D-96)."""

    resource: str
    thread: str
    policy: Concurrency = "queue"


class Plan(WireModel):
    """The run's configuration, frozen when the run was accepted: which hooks run where."""

    open: OpenOp
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
    data_parts: bool = False
    stream: bool = True
    line: Line | None = None


class PlannedOp(WireModel):
    """An operation and the service that must run it; None: any.

    `lent`: in a command of the gateway, the output replica that has the model's stream may run it.
    """

    op: Op
    host: str | None = None
    lent: bool = False


class RunState(WireModel):
    """A run, as stored between events."""

    run: str
    tenant: str
    agent: str
    plan: Plan
    message_id: str
    fingerprint: str
    accepted_at: str
    traceparent: str | None = Field(default=None, description="Trace context of the run's own span.")
    parent_span: str | None = Field(default=None, description="Id of the caller's span above it.")
    deadline_ms: int
    timeout_ms: int = Field(default=600_000, description="Time to run, anew after a suspension.")
    status: Status = "running"
    queued: bool = Field(default=False, description="It waits for its turn; nothing of it was done.")
    seq: int = 0
    version: int = 0
    out_seq: int = 0
    step: int = 0
    retries: int = 0
    feedback: list[str] = Field(default_factory=list)
    model_index: int = 0
    pending: list[PlannedOp] = Field(default_factory=list)
    then: Then = "modelled"
    outstanding: WorkCommand | None = None
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
