"""Work for the services: a command is a short program of operations for one of them.

Each phase of a run is compiled into operations, and every longest stretch that falls to one service is one command. The
service runs the operations in order on the run's context (in Redis), takes their result into the run, and sends the
next command (docs/adr/0011). An operation without processors can run anywhere and joins its neighbour, so a phase that
no configured processor implements costs no message.
"""

from operator import attrgetter
from typing import Annotated, Any, Final, Literal, cast

from msgspec import field
from pydantic import AfterValidator, ConfigDict, Field

from procession_schemas.agent import (
    FactoryRef,
    ModelEntry,
    ProcessorRef,
    StructuredOutput,
    ToolRef,
    plain_choice,
)
from procession_schemas.base import JsonObject, WireModel, WireStruct
from procession_schemas.model_settings import ModelSettings
from procession_schemas.run import Failure, HookReport, ModelReport, RunResult, Tripwire

ANY_VERSION: Final = -1
"""The version of a command that starts from whatever the context has become (a failure, a deadline)."""


class StepConfig(WireStruct):
    """The configuration of a step; the step hooks may override it for that step (R-IS-8)."""

    model: str
    model_by: Annotated[
        str | None, Field(description="The processor whose processInputStep chose the model.")
    ] = None
    set_by: Annotated[
        dict[str, str],
        Field(description="The processors whose processInputStep set something else, by the name of that."),
    ] = field(default_factory=dict)
    tools: dict[str, ToolRef] = field(default_factory=dict)
    tool_choice: Annotated[Any, AfterValidator(plain_choice)] = "auto"
    active_tools: list[str] | None = None
    model_settings: ModelSettings = field(default_factory=dict)
    provider_options: JsonObject = field(default_factory=dict)
    structured_output: StructuredOutput | None = None


class Operation(WireStruct, tag_field="op"):
    """One operation of a command; `op` is its name on the wire."""

    op = cast("str", property(attrgetter("__struct_config__.tag")))


class OpenOp(Operation, tag="open"):
    """Creates the context of a run from its request: instructions, messages, request context."""

    instructions: list[str] = field(default_factory=list)
    system: list[str] = field(default_factory=list)
    context: list[Any] = field(default_factory=list)
    input: list[Any] = field(default_factory=list)
    request_context: JsonObject = field(default_factory=dict)
    tracing_context: JsonObject = field(default_factory=dict)
    memory: Annotated[
        JsonObject | None, Field(description="Options that memory processors read from the request context.")
    ] = None
    waited: Annotated[
        bool,
        Field(description="The run waited for others on its thread, so its input gets the current time."),
    ] = False


class ArraysOp(Operation, tag="arrays"):
    """Calls the factories of the output and error arrays of this run, after processInput (R-CF-3)."""

    factories: Annotated[dict[str, FactoryRef], Field(description="Factories by kind: `output`, `error`.")]


class HookOp(Operation, tag="hook"):
    """Runs one hook of these processors, in order."""

    hook: str
    processors: list[ProcessorRef]
    offset: Annotated[int, Field(description="`processorIndex` of the first processor.")] = 0
    places: Annotated[
        list[int] | None,
        Field(description="`processorIndex` of each processor; absent: they are consecutive."),
    ] = None
    finish_reason: Annotated[str | None, Field(description="For processOutputResult.")] = None
    stream_processors: Annotated[
        list[ProcessorRef],
        Field(description="The output chain, if some of it opted in to `data-*` chunks (R-WR-7)."),
    ] = field(default_factory=list)


class BaselineOp(Operation, tag="baseline"):
    """Saves the system messages as the baseline to which every attempt resets them (R-SY-2)."""


class BeginOp(Operation, tag="begin"):
    """Starts an attempt: resets system messages, settings and the response (R-SY-3, R-IS-8)."""

    step: int
    retry_count: int
    feedback: list[str] = field(default_factory=list)
    config: StepConfig


class EmitOp(Operation, tag="emit"):
    """Sends chunks to the client unchanged."""

    chunks: list[JsonObject]


class StreamOp(Operation, tag="stream"):
    """Sends chunks through processOutputStream."""

    chunks: list[JsonObject]
    processors: list[ProcessorRef] = field(default_factory=list)


class Guard(WireStruct):
    """An input processor whose processInput runs beside the model call."""

    processor: ProcessorRef
    index: Annotated[int, Field(description="Its `processorIndex`.")] = 0


class ModelOp(Operation, tag="model"):
    """Calls the model (or replays a cached response) and streams its answer through processOutputStream."""

    processors: Annotated[list[ProcessorRef], Field(description="Processors with processOutputStream.")] = (
        field(default_factory=list)
    )
    guards: Annotated[
        list[Guard],
        Field(
            description="Asked while the model is called; no part of the answer is passed on until all have let it "
            "pass."
        ),
    ] = field(default_factory=list)
    keep_chunks: Annotated[bool, Field(description="A processor implements processLLMResponse.")] = False
    entry: ModelEntry | None = None
    fallback: Annotated[
        bool,
        Field(description="If this model fails before it answers, this attempt asks another one."),
    ] = False
    max_retries: int = 0
    api_base: str | None = None
    keyless: Annotated[
        bool, Field(description="The request names the base URL, so the call is made without our API key.")
    ] = False
    include_raw_chunks: bool = False
    replica: Annotated[
        str | None, Field(description="The output replica that had the previous stream of this run.")
    ] = None


class UnlessToolsOp(Operation, tag="unlessTools"):
    """Ends the command here if the answer has tool calls to run: what follows is for an answer without."""


class IfOutcomesOp(Operation, tag="ifOutcomes"):
    """Ends the command here unless every tool call has an outcome: what follows is for a run that continues."""


class ToolsOp(Operation, tag="tools"):
    """Runs the tool calls of the accepted response (R-TX)."""

    require_approval: bool = False
    decisions: Annotated[
        dict[str, JsonObject],
        Field(description="When a run is resumed: toolCallId -> {approved, reason?} or {resumeData}."),
    ] = field(default_factory=dict)
    processors: Annotated[list[ProcessorRef], Field(description="Processors with processOutputStream.")] = (
        field(default_factory=list)
    )


class ToolResultsOp(Operation, tag="toolResults"):
    """Records the outcomes of the tools in call order: processToolResult, then the message list, then the stream."""

    result_processors: list[ProcessorRef] = field(default_factory=list)
    places: Annotated[
        list[int] | None,
        Field(description="`processorIndex` of each result processor; absent: they are the first."),
    ] = None
    processors: list[ProcessorRef] = field(default_factory=list)


class StopOp(Operation, tag="stop"):
    """Evaluates stop conditions (R-LP-3)."""

    conditions: list[ProcessorRef]


class RejectOp(Operation, tag="reject"):
    """Discards the output of the current attempt (R-AB-28); with a retry it becomes an entry of `steps`."""

    tripwire: Tripwire | None = None
    finish_reason: Literal["retry", "tripwire"] = "retry"
    listed: Annotated[bool, Field(description="The attempt becomes an entry of the result's steps.")] = True


class AcceptOp(Operation, tag="accept"):
    """Accepts the current attempt: its step result counts from now on."""


class StepFinishOp(Operation, tag="stepFinish"):
    """Sends `step-finish` through processOutputStream."""

    reason: Annotated[str | None, Field(description="Absent: the finish reason of the answer.")] = None
    is_continued: bool
    tripwire: Annotated[Tripwire | None, Field(description="Why a retried attempt was rejected.")] = None
    processors: list[ProcessorRef] = field(default_factory=list)


class FailOp(Operation, tag="fail"):
    """Records an unrecovered model failure on the assistant message (R-AE-14)."""

    error: Failure


class ResultOp(Operation, tag="result"):
    """Compiles the final result; sends `finish` unless the run ended otherwise."""

    finish_reason: Annotated[str | None, Field(description="Absent: the finish reason of the answer.")] = None
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


class WorkCommand(WireStruct):
    """Operations for one service, on `procession.v1.work.<service>.<tenant>.<run>`.

    `seq` numbers the commands of a run; a result is only accepted for the number that is outstanding (fencing).
    `version` is the version of the context that the operations start from.
    """

    run: str
    tenant: str
    agent: str
    seq: int
    service: str
    version: int
    out_seq: Annotated[int, Field(description="Number of the next chunk.")]
    message_id: Annotated[str, Field(description="Id of the run's assistant message.")]
    stream: bool = True
    ops: list[Op]
    chain_places: Annotated[
        list[int] | None,
        Field(
            description="`processorIndex` of each processor of the output chain; absent: they are the first."
        ),
    ] = None
    renewed: Annotated[
        bool, Field(description="Redis may have forgotten commands that were done before this one.")
    ] = False
    lent: Annotated[
        int | None,
        Field(
            description="Deprecated: earlier gateways read the index of the first operation that they lent from it."
        ),
    ] = None

    @property
    def id(self) -> str:
        """Identity of the command: the same for every delivery of it, and no other tenant's."""
        return f"{self.tenant}:{self.run}:{self.seq}"


class StepFacts(WireStruct):
    """What the orchestrator needs to know about a response to continue."""

    finish_reason: str = "other"
    tool_calls: int = 0
    outcomes: Annotated[int, Field(description="Number of local tool calls that have an outcome.")] = 0
    started: Annotated[bool, Field(description="The model failed after its stream had begun.")] = False
    stop: Annotated[bool, Field(description="A stop condition is met.")] = False


class WorkResult(WireStruct, tag_field="type", tag="result"):
    """The answer to a command, on `procession.v1.work.orchestrator.<tenant>.<run>`.

    Outcomes: `ok`: all operations ran; `tripwire`: a processor aborted; `failed`: a processor or the runtime failed;
    `modelFailed`: the provider failed, and error processors are asked; `cancelled`; `suspended`: a tool call waits for
    a person.
    """

    run: str
    tenant: str
    seq: int
    service: str
    outcome: Literal["ok", "tripwire", "failed", "modelFailed", "cancelled", "suspended"]
    at: Annotated[
        int, Field(description="Index of the operation that ended the command, unless the outcome is `ok`.")
    ] = 0
    stopped: Annotated[
        bool, Field(description="`unlessTools` ended the command: the answer has tool calls.")
    ] = False
    version: int
    out_seq: int
    tripwire: Tripwire | None = None
    error: Failure | None = None
    suspend: Annotated[
        list[JsonObject] | None,
        Field(description="The tool calls that wait for a person, with their payloads."),
    ] = None
    facts: StepFacts | None = None
    retry: Annotated[bool | None, Field(description="What the error processors decided.")] = None
    stop: Annotated[bool | None, Field(description="What the stop conditions decided.")] = None
    verdict: Annotated[
        Literal["passed", "blocked"] | None,
        Field(description="Verdict of the guards beside the model; absent if none was asked."),
    ] = None
    arrays: Annotated[
        dict[str, list[JsonObject]] | None,
        Field(description="The arrays that factories made: processors with their hooks and services."),
    ] = None
    replica: str | None = None
    reports: list[HookReport] = field(default_factory=list)
    model: ModelReport | None = None
    result: RunResult | None = None


class Control(WireModel):
    """What a person tells an active run, on `procession.v1.control.<tenant>.<run>`."""

    model_config = ConfigDict(strict=True)

    type: Literal["cancel", "resume"]
    tool_call_id: str | None = None
    approved: bool | None = None
    reason: str | None = None
    resume_data: Any = None
    fence: int | None = Field(
        default=None,
        description="Fence of the `run.suspended` that this answers; without it, this answers whatever the run waits "
        "for when it arrives.",
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
