"""A run request, and what a run ends with."""

from itertools import chain, islice
from typing import Annotated, Any, Final, Literal, Self

from msgspec import field
from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from procession_schemas.agent import Agent, AgentOptions, AnyTool
from procession_schemas.base import JsonObject, WireModel, WireStruct
from procession_schemas.memory import RequestMemory
from procession_schemas.run_ids import LONGEST

_TOLD: Final = 21
"""Unknown settings of a request that are looked at: one more than its sender is told (`validation`)."""


class RunRequest(AgentOptions):
    """A request on `procession.v1.run.<tenant>.<agent>`: `{"input": "Hello"}` is enough.

    `runId` is the idempotency key: the same id with the same body, byte for byte, on the same subject is the same run;
    with another body, or for another agent, it is a conflict. So keys have to be in the same order, which a model that
    fills a schema heeds; the Python client keeps that in which a dict was made. It has 1 to 128 letters, digits, `_`
    and `-`. Without one, the run is called what the header `Nats-Msg-Id` says, and without that
    `run-<stream sequence>`, which the publish acknowledgement tells. So is one whose id, or whose JSON, cannot be
    read: its `run.finished` has that name.

    A message is `{"role": "user", "content": ...}`. Its content is a text or a list of parts, as the AI SDK and OpenAI
    write them: `{"type": "text", "text"}`, `{"type": "image", "image"}`, `{"type": "file", "data", "mediaType"}`;
    images and data are a URL, a data URI or base64. Parts of a type that nobody knows are kept, but no model sees them.
    Messages of a result can be sent again as they are ([message.json](../../schemas/json-schema/message.json)).

    Integers have 64 bits at the most, values nest 100 levels deep, and an array has 256 processors at the most.
    """

    run_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=LONGEST,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="Idempotency key.",
    )
    input: str | JsonObject | list[str | JsonObject] = Field(
        description="A text, a message, or a list of these. A message or part with `providerOptions` "
        "`{anthropic: {cacheControl: {type: ephemeral}}}` is where a prompt that the provider keeps ends; so with "
        "`bedrock` and `openrouter`."
    )
    agent: Agent | None = Field(
        default=None, description="An inline agent; the subject's agent name is then a label."
    )
    tools: list[AnyTool] | None = Field(
        default=None, description="Replaces the agent's tools for this request."
    )
    memory: RequestMemory | None = Field(
        default=None, description="Default: the agent's thread, if it has one."
    )
    system: str | list[str] | None = Field(
        default=None, description="System messages after the instructions."
    )
    context: list[str | JsonObject] | None = Field(
        default=None, description="Messages shown but never stored."
    )
    request_context: JsonObject = Field(
        default_factory=dict, description="Visible to hooks, never to the model."
    )
    tracing_context: JsonObject = Field(default_factory=dict, description="Handed to hooks as it is.")
    stream: bool = Field(default=True, description="False: no chunks are sent, the result comes at the end.")

    @model_validator(mode="after")
    def _refuse_unknown_settings(self) -> Self:
        """What was meant as a limit would not hold; of the agents in a file, `procession check` tells."""
        wrong = self.unknown_settings()
        if self.agent:
            of_agent = ((("agent", *place), told) for place, told in self.agent.unknown_settings())
            wrong = chain(wrong, of_agent)
        lines = [
            InitErrorDetails(type=PydanticCustomError("unknown_setting", told), loc=place, input=None)
            for place, told in islice(wrong, _TOLD)
        ]
        if lines:
            raise ValidationError.from_exception_data("RunRequest", lines)
        return self


class Failure(WireModel):
    """An error as it is told: what, where, and how to mend it where that is known (D-30)."""

    code: str = Field(description="One of the error codes, or one of a processor's own.")
    message: str = Field(description="For people.")
    field: str | None = Field(
        default=None, description="Path in the request, such as `inputProcessors.0.id`."
    )
    processor_id: str | None = Field(default=None, description="Whose hook failed.")
    hook: str | None = Field(
        default=None,
        description="Which one failed; `processOutputResult` also where the run failed before its judgement was "
        "stored; then nothing of the answer is told.",
    )
    name: str | None = Field(default=None, description="Class of the error, where it has one.")
    status_code: int | None = Field(default=None, description="What the provider answered over HTTP.")
    is_retryable: bool | None = Field(
        default=None, description="Whether the provider may answer the same call another time."
    )
    retry_after: float | None = Field(
        default=None, description="Seconds after which the same request may be accepted."
    )
    detail: JsonObject | None = Field(
        default=None, description="What more is known; of a limit `limit`, `allowed` and `current`."
    )

    def told(self) -> str:
        """The message with what its author looks for: the class of what a processor raised, and where."""
        raised = self.code == "PROCESSOR_FAILED" and self.name not in (None, "Error", self.message)
        where = " of ".join(part for part in (self.hook, self.processor_id) if part)
        return (f"{self.name}: " if raised else "") + self.message + (f" ({where})" if where else "")


class Tripwire(WireModel):
    """Why a processor blocked a run."""

    reason: str
    processor_id: str
    retry: bool | None = Field(default=None, description="The processor wanted another answer of the model.")
    metadata: Any = Field(default=None, description="What the processor says besides.")


class HookReport(WireStruct):
    """What one processor did in one hook, summed over a run."""

    processor: str
    hook: str
    calls: int = 0
    micros: Annotated[float, Field(description="Wall time in the hook, microseconds.")] = 0.0
    changed: int = 0
    dropped: int = 0
    aborts: int = 0
    errors: int = 0
    warnings: int = 0
    model_calls: Annotated[int, Field(description="Model calls that the processor itself made.")] = 0
    model_tokens: Annotated[int, Field(description="Tokens of these calls, in and out.")] = 0
    model_cost: Annotated[
        float, Field(description="US dollars of these calls, where the price is known.")
    ] = 0.0

    def add(self, more: "HookReport") -> None:
        """Adds what the same hook did elsewhere."""
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(more, name))


_COUNTERS: Final = tuple(name for name in HookReport.__struct_fields__ if name not in ("processor", "hook"))


class ModelReport(WireStruct):
    """What the model calls of a run cost."""

    model: str
    calls: int = 0
    usage: dict[str, int | None] = field(default_factory=dict)
    cost: Annotated[float | None, Field(description="US dollars; absent when the price is not known.")] = None


class RunResult(WireModel):
    """The final result of a run, or what is known of it while it waits for a person."""

    run_id: str
    agent: str
    status: Literal["finished", "blocked", "failed", "cancelled", "suspended"] = Field(
        description="`blocked`: by a processor (`tripwire`); `failed`: see `error`; `suspended`: it waits for a person."
    )
    finish_reason: str = Field(
        description="How the last answer of the model ended: `stop`, `tool-calls`, `length`, `content-filter`, "
        "`error` or `other`; `aborted` of a cancelled run, `suspended` of one that waits."
    )
    text: str = Field(
        default="", description="The texts of the steps that count, as processors have left them."
    )
    usage: dict[str, int | None] = Field(
        default_factory=dict,
        description="`inputTokens`, `outputTokens`, `totalTokens`, and where the provider tells them "
        "`reasoningTokens`, `cachedInputTokens`, `cacheCreationInputTokens`; null is what nobody knows.",
    )
    total_usage: dict[str, int | None] = Field(
        default_factory=dict, description="As `usage`, which counts all steps and attempts."
    )
    warnings: list[Any] = Field(default_factory=list, description="Of the last step.")
    provider_metadata: JsonObject | None = Field(default=None, description="Of the last step.")
    steps: list[JsonObject] = Field(
        default_factory=list,
        description="Every answer of the model: `stepNumber`, `stepType`, `text`, `reasoningText`, `toolCalls`, "
        "`toolResults`, `sources`, `finishReason`, `usage`, `model`, `warnings`, and of the provider `request`, "
        "`response`, `providerMetadata`; `tripwire` in one that was rejected.",
    )
    tool_calls: list[JsonObject] = Field(
        default_factory=list,
        description="Calls of the steps that count: `toolCallId`, `toolName`, `input`.",
    )
    tool_results: list[JsonObject] = Field(
        default_factory=list,
        description="Their results, but no errors: `toolCallId`, `toolName`, `output`.",
    )
    reasoning_text: str | None = Field(default=None, description="As `text`, of reasoning.")
    sources: list[JsonObject] = Field(
        default_factory=list,
        description="What the chunks `source` had as their payload: `sourceType`, `url`, ...",
    )
    files: list[JsonObject] = Field(
        default_factory=list, description="Files that the model made: `data`, `mimeType`."
    )
    object: Any = Field(default=None, description="The structured output.")
    used_fallback_value: bool | None = Field(
        default=None, description="True: `object` is the fallback value."
    )
    messages: list[JsonObject] = Field(
        default_factory=list, description="The whole conversation, as the run has left it."
    )
    remembered_messages: list[JsonObject] = Field(
        default_factory=list, description="Those of `messages` that memory brought."
    )
    response: JsonObject = Field(
        default_factory=dict,
        description="`messages` generated in this run, `id`, `modelId`, `timestamp` where the provider told it. Or "
        "`shortened: true`: steps and messages, and what is too long of the text, are left out, since NATS takes no "
        "longer message.",
    )
    tripwire: Tripwire | None = Field(default=None, description="Of a run that is `blocked`.")
    error: Failure | None = Field(
        default=None, description="Why it `failed`; or what went wrong when it was cancelled."
    )
    suspend_payload: JsonObject | None = Field(
        default=None,
        description="`calls` that wait: `toolCallId`, `toolName`, `args`, `kind` (`approval` or `suspended`), "
        "`suspendPayload`, `resumeSchema`.",
    )
    processors: list[HookReport] = Field(default_factory=list)
    models: list[ModelReport] = Field(default_factory=list)
    retries: int = Field(default=0, description="How often the model was asked again by processors.")
    duration_ms: int | None = Field(default=None, description="Since the run was accepted.")
