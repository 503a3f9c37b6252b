"""Work between the orchestrator and the services: a command is a short program of operations for one service.

The orchestrator compiles each phase of a run into operations and sends every longest stretch that falls to one
service as one command. A service runs the operations in order on the run's context (in Redis) and answers with one
result. An operation without processors can run anywhere and joins its neighbour, so a phase that no configured
processor implements costs no message.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field

from procession_schemas.agent import (
    FactoryRef,
    ModelEntry,
    ProcessorRef,
    StructuredOutput,
    ToolRef,
    plain_choice,
)
from procession_schemas.base import JsonObject, WireModel
from procession_schemas.model_settings import ModelSettings
from procession_schemas.run import Failure, HookReport, ModelReport, RunResult, Tripwire

ANY_VERSION: Final = -1
"""The version of a command that starts from whatever the context has become (a failure, a deadline)."""


class StepConfig(WireModel):
    """What a step is run with; the step hooks may override it for that step (R-IS-8)."""

    model: str
    model_by: str | None = Field(default=None, description="The processor whose processInputStep chose it.")
    tools: dict[str, ToolRef] = Field(default_factory=dict)
    tool_choice: Annotated[Any, AfterValidator(plain_choice)] = "auto"
    active_tools: list[str] | None = None
    model_settings: ModelSettings = Field(default_factory=dict)
    provider_options: JsonObject = Field(default_factory=dict)
    structured_output: StructuredOutput | None = None


class OpenOp(WireModel):
    """Creates the context of a run from its request: instructions, messages, request context."""

    op: Literal["open"] = "open"
    instructions: list[str] = Field(default_factory=list)
    system: list[str] = Field(default_factory=list)
    context: list[Any] = Field(default_factory=list)
    input: list[Any] = Field(default_factory=list)
    request_context: JsonObject = Field(default_factory=dict)
    tracing_context: JsonObject = Field(default_factory=dict)
    memory: JsonObject | None = Field(
        default=None, description="What memory processors read from the request context."
    )
    waited: bool = Field(
        default=False,
        description="The run has waited for others on its thread: its input counts as said now.",
    )


class ArraysOp(WireModel):
    """Calls the functions that make the output and error arrays of this run, once processInput is through (R-CF-3)."""

    op: Literal["arrays"] = "arrays"
    factories: dict[str, FactoryRef] = Field(description="By kind: `output`, `error`.")


class HookOp(WireModel):
    """Runs one hook of these processors, in order."""

    op: Literal["hook"] = "hook"
    hook: str
    processors: list[ProcessorRef]
    offset: int = Field(default=0, description="`processorIndex` of the first.")
    places: list[int] | None = Field(
        default=None, description="`processorIndex` of each; absent: they stand side by side."
    )
    finish_reason: str | None = Field(default=None, description="For processOutputResult.")
    stream_processors: list[ProcessorRef] = Field(
        default_factory=list,
        description="The output chain, where some of it opted in to `data-*` chunks (R-WR-7).",
    )


class BaselineOp(WireModel):
    """Freezes the baseline of the system messages (R-SY-2)."""

    op: Literal["baseline"] = "baseline"


class BeginOp(WireModel):
    """Begins an attempt: resets system messages, settings and the response (R-SY-3, R-IS-8)."""

    op: Literal["begin"] = "begin"
    step: int
    retry_count: int
    feedback: list[str] = Field(default_factory=list)
    config: StepConfig


class EmitOp(WireModel):
    """Sends chunks to the client as they are."""

    op: Literal["emit"] = "emit"
    chunks: list[JsonObject]


class StreamOp(WireModel):
    """Sends chunks through processOutputStream."""

    op: Literal["stream"] = "stream"
    chunks: list[JsonObject]
    processors: list[ProcessorRef] = Field(default_factory=list)


class Guard(WireModel):
    """An input processor whose processInput runs beside the model call."""

    processor: ProcessorRef
    index: int = Field(default=0, description="Its `processorIndex`.")


class ModelOp(WireModel):
    """Calls the model (or replays a cached response) and streams its answer through processOutputStream."""

    op: Literal["model"] = "model"
    processors: list[ProcessorRef] = Field(
        default_factory=list, description="Those with processOutputStream."
    )
    guards: list[Guard] = Field(
        default_factory=list,
        description="Asked while the provider is; nothing of the answer goes anywhere before all have agreed.",
    )
    keep_chunks: bool = Field(default=False, description="Some processor implements processLLMResponse.")
    entry: ModelEntry | None = None
    max_retries: int = 0
    api_base: str | None = None
    keyless: bool = Field(
        default=False, description="The request itself says where the call goes: no key of ours goes there."
    )
    include_raw_chunks: bool = False
    replica: str | None = Field(
        default=None, description="The output replica that had the last stream of this run."
    )


class UnlessToolsOp(WireModel):
    """Ends the command here when the answer has calls that tools must run: what follows is for an answer without."""

    op: Literal["unlessTools"] = "unlessTools"


class IfOutcomesOp(WireModel):
    """Ends the command here unless a tool gave an outcome: what follows is for a run that goes on."""

    op: Literal["ifOutcomes"] = "ifOutcomes"


class ToolsOp(WireModel):
    """Runs the tool calls of the accepted response (R-TX)."""

    op: Literal["tools"] = "tools"
    require_approval: bool = False
    decisions: dict[str, JsonObject] = Field(
        default_factory=dict,
        description="toolCallId -> {approved, reason?} or {resumeData} when a run is resumed.",
    )
    processors: list[ProcessorRef] = Field(
        default_factory=list, description="Those with processOutputStream."
    )


class ToolResultsOp(WireModel):
    """Records the outcomes of the tools in call order: processToolResult, the list, then the stream."""

    op: Literal["toolResults"] = "toolResults"
    result_processors: list[ProcessorRef] = Field(default_factory=list)
    places: list[int] | None = Field(
        default=None,
        description="`processorIndex` of each of those; absent: they are the first.",
    )
    processors: list[ProcessorRef] = Field(default_factory=list)


class StopOp(WireModel):
    """Evaluates stop conditions (R-LP-3)."""

    op: Literal["stop"] = "stop"
    conditions: list[ProcessorRef]


class RejectOp(WireModel):
    """Takes the output of the current attempt back (R-AB-28); with a retry it becomes an entry of `steps`."""

    op: Literal["reject"] = "reject"
    tripwire: Tripwire | None = None
    finish_reason: Literal["retry", "tripwire"] = "retry"
    listed: bool = Field(default=True, description="The attempt becomes an entry of the result's steps.")


class AcceptOp(WireModel):
    """Accepts the current attempt: its step result counts from here on."""

    op: Literal["accept"] = "accept"


class StepFinishOp(WireModel):
    """Sends `step-finish` through processOutputStream."""

    op: Literal["stepFinish"] = "stepFinish"
    reason: str | None = Field(default=None, description="Absent: the finish reason of the answer.")
    is_continued: bool
    tripwire: Tripwire | None = Field(default=None, description="Why a retried attempt was rejected.")
    processors: list[ProcessorRef] = Field(default_factory=list)


class FailOp(WireModel):
    """Records an unrecovered model failure on the assistant message (R-AE-14)."""

    op: Literal["fail"] = "fail"
    error: Failure


class ResultOp(WireModel):
    """Compiles the final result; sends `finish` unless the run ended otherwise."""

    op: Literal["result"] = "result"
    finish_reason: str | None = Field(default=None, description="Absent: the finish reason of the answer.")
    status: Literal["finished", "blocked", "failed", "cancelled", "suspended"]
    finish: bool = True
    tripwire: Tripwire | None = None
    error: Failure | None = None
    suspend_payload: JsonObject | None = None


Op = Annotated[
    OpenOp | HookOp | ArraysOp | BaselineOp | BeginOp | EmitOp | StreamOp | ModelOp | UnlessToolsOp | ToolsOp
    | ToolResultsOp | IfOutcomesOp | StopOp | RejectOp | AcceptOp | StepFinishOp | FailOp | ResultOp,
    Field(discriminator="op"),
]  # fmt: skip


class WorkCommand(WireModel):
    """Operations for one service, on `procession.v1.work.<service>.<tenant>.<run>`.

    `seq` numbers the commands of a run; a result is only accepted for the outstanding number (fencing). `version` is
    the version of the context that the operations start from.
    """

    run: str
    tenant: str
    agent: str
    seq: int
    service: str
    version: int
    out_seq: int = Field(description="Number of the next chunk.")
    message_id: str = Field(description="Id of the run's assistant message.")
    stream: bool = True
    ops: list[Op]
    chain_places: list[int] | None = Field(
        default=None,
        description="`processorIndex` of each processor of the output chain; absent: they are the first.",
    )
    renewed: bool = Field(
        default=False, description="Redis may have forgotten commands that were done before it."
    )
    lent: int | None = Field(
        default=None,
        description="Deprecated: gateways of before looked here for the first operation that they lent.",
    )

    @property
    def id(self) -> str:
        """Identity of the command: the same for every delivery of it, and no other tenant's."""
        return f"{self.tenant}:{self.run}:{self.seq}"


class StepFacts(WireModel):
    """What the orchestrator needs to know of a response to go on."""

    finish_reason: str = "other"
    tool_calls: int = 0
    outcomes: int = Field(default=0, description="Local tool calls that got an outcome.")
    started: bool = Field(default=False, description="The model's stream had begun when it failed.")
    stop: bool = Field(default=False, description="A stop condition holds.")


class WorkResult(WireModel):
    """The answer to a command, on `procession.v1.work.orchestrator.<tenant>.<run>`.

    Outcomes: `ok` all operations ran; `tripwire` a processor aborted; `failed` a processor or the runtime failed;
    `modelFailed` the provider did (error processors are asked); `cancelled`; `suspended` a tool waits for a person.
    """

    type: Literal["result"] = "result"
    run: str
    tenant: str
    seq: int
    service: str
    outcome: Literal["ok", "tripwire", "failed", "modelFailed", "cancelled", "suspended"]
    at: int = Field(
        default=0, description="Index of the operation that ended the command, where it is not `ok`."
    )
    stopped: bool = Field(default=False, description="`unlessTools` ended the command: the answer has calls.")
    version: int
    out_seq: int
    tripwire: Tripwire | None = None
    error: Failure | None = None
    suspend: list[JsonObject] | None = Field(
        default=None, description="The calls that wait, with their payloads."
    )
    facts: StepFacts | None = None
    retry: bool | None = Field(default=None, description="What the error processors decided.")
    stop: bool | None = Field(default=None, description="What the stop conditions decided.")
    verdict: Literal["passed", "blocked"] | None = Field(
        default=None, description="What the guards beside the model said; absent where none was asked."
    )
    arrays: dict[str, list[JsonObject]] | None = Field(
        default=None,
        description="What the functions made that make arrays: processors with their hooks and services.",
    )
    replica: str | None = None
    reports: list[HookReport] = Field(default_factory=list)
    model: ModelReport | None = None
    result: RunResult | None = None


class Control(WireModel):
    """What a person tells a run in flight, on `procession.v1.control.<tenant>.<run>`."""

    model_config = ConfigDict(strict=True)

    type: Literal["cancel", "resume"]
    tool_call_id: str | None = None
    approved: bool | None = None
    reason: str | None = None
    resume_data: Any = None
    fence: int | None = Field(
        default=None,
        description="That of the `run.suspended` which it answers; without it, it answers what is asked when it comes.",
    )

    def decision(self, asked: JsonObject) -> JsonObject:
        """What it says of a call that waits; of one that waits for approval, also in the form of its `resumeSchema`."""
        approved, reason, data = self.approved, self.reason, self.resume_data
        if asked.get("kind") == "approval" and approved is None and isinstance(data, dict):
            said, why = data.get("approved"), data.get("reason")
            if isinstance(said, bool) and isinstance(why, str | None):
                approved, reason, data = said, why, None
        told = {"approved": approved, "reason": reason, "resumeData": data}
        return {name: value for name, value in told.items() if value is not None}
