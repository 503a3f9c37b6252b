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
from procession_schemas.subjects import TOKEN_PATTERN

_TOLD: Final = 21
"""Unknown settings of a request that are looked at: one more than its sender is told (`validation`)."""


class RunRequest(AgentOptions):
    """A request on `procession.v1.run.<tenant>.<agent>`: `{"input": "Hello"}` is enough.

    `runId` is the idempotency key: a request with the same id and the same body, byte for byte, on the same subject is
    the same run; with another body, or for another agent, it is a conflict. So the keys of the body have to be in the
    same order each time; the Python client keeps the order of a dict. The id has 1 to 128 letters, digits, `_` and `-`.
    A request without one gets the value of the header `Nats-Msg-Id` as its id, or without that header
    `run-<stream sequence>`, with the sequence number from the publish acknowledgement. So does a request whose id or
    JSON cannot be read: its `run.finished` has that id.

    A message is `{"role": "user", "content": ...}`. Its content is a string or a list of parts, in the form of the AI
    SDK or of OpenAI's API: `{"type": "text", "text"}`, `{"type": "image", "image"}`,
    `{"type": "file", "data", "mediaType"}`; images and data are a URL, a data URI or base64. Parts of unknown types are
    kept, but no model sees them. Messages of a result can be sent again unchanged
    ([message.json](../../schemas/json-schema/message.json)).

    Integers have at most 64 bits, values at most 100 levels of nesting, and arrays at most 256 processors.
    """

    run_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=LONGEST,
        pattern=TOKEN_PATTERN,
        description="Idempotency key.",
    )
    input: str | JsonObject | list[str | JsonObject] = Field(
        description="A string, a message, or a list of these. A message or part with `providerOptions` "
        "`{anthropic: {cacheControl: {type: ephemeral}}}` marks the end of the prompt that the provider should cache; "
        "`bedrock` and `openrouter` work alike."
    )
    agent: Agent | None = Field(
        default=None, description="An inline agent; the agent name in the subject is then only a label."
    )
    tools: list[AnyTool] | None = Field(
        default=None, description="Replaces the agent's tools for this request."
    )
    memory: RequestMemory | None = Field(
        default=None, description="Default: the agent's thread, if it has one."
    )
    system: str | list[str] | None = Field(
        default=None, description="System messages that follow the instructions."
    )
    context: list[str | JsonObject] | None = Field(
        default=None, description="Messages that the model is shown, but that are never stored."
    )
    request_context: JsonObject = Field(
        default_factory=dict, description="Data for hooks; the model never sees it."
    )
    tracing_context: JsonObject = Field(default_factory=dict, description="Passed on to hooks unchanged.")
    stream: bool = Field(default=True, description="False: no chunks are sent, only the result at the end.")

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
    """An error: what is wrong, where, and if known how to mend it (D-30)."""

    code: str = Field(description="One of the error codes, or one of a processor's own.")
    message: str = Field(description="The error in words, for people.")
    field: str | None = Field(
        default=None, description="Path in the request, such as `inputProcessors.0.id`."
    )
    processor_id: str | None = Field(default=None, description="The processor whose hook failed.")
    hook: str | None = Field(
        default=None,
        description="The hook that failed. Also `processOutputResult` if the run failed before the verdict of that "
        "hook was stored; then the answer is withheld.",
    )
    name: str | None = Field(default=None, description="Class of the error, if it has one.")
    status_code: int | None = Field(default=None, description="HTTP status of the provider's answer.")
    is_retryable: bool | None = Field(default=None, description="Whether the same call may succeed later.")
    retry_after: float | None = Field(
        default=None, description="Seconds after which to send the same request again."
    )
    detail: JsonObject | None = Field(
        default=None, description="Further details; for a limit `limit`, `allowed` and `current`."
    )

    def told(self) -> str:
        """The message, with the class of the exception if a processor raised it, and where it was raised."""
        raised = self.code == "PROCESSOR_FAILED" and self.name not in (None, "Error", self.message)
        where = " of ".join(part for part in (self.hook, self.processor_id) if part)
        return (f"{self.name}: " if raised else "") + self.message + (f" ({where})" if where else "")


class Tripwire(WireModel):
    """Why a processor blocked a run."""

    reason: str
    processor_id: str
    retry: bool | None = Field(
        default=None, description="The processor asked for another answer from the model."
    )
    metadata: Any = Field(default=None, description="Further data of the processor.")


class HookReport(WireStruct, omit_defaults=False):
    """What one processor did in one hook, summed over a run."""

    processor: str
    hook: str
    calls: int = 0
    micros: Annotated[float, Field(description="Wall time in the hook, in microseconds.")] = 0.0
    changed: int = 0
    dropped: int = 0
    aborts: int = 0
    errors: int = 0
    warnings: int = 0
    model_calls: Annotated[int, Field(description="Model calls by the processor itself.")] = 0
    model_tokens: Annotated[int, Field(description="Input and output tokens of these calls.")] = 0
    model_cost: Annotated[
        float, Field(description="Cost of these calls in US dollars, as far as prices are known.")
    ] = 0.0

    shown = WireStruct.to_dict  # each result has several, and nothing in them is left out

    def add(self, more: "HookReport") -> None:
        """Adds what the same hook did elsewhere."""
        self.calls += more.calls
        self.micros += more.micros
        self.changed += more.changed
        self.dropped += more.dropped
        self.aborts += more.aborts
        self.errors += more.errors
        self.warnings += more.warnings
        self.model_calls += more.model_calls
        self.model_tokens += more.model_tokens
        self.model_cost += more.model_cost


class ModelReport(WireStruct):
    """Usage and cost of the model calls of a run."""

    model: str
    calls: int = 0
    usage: dict[str, int | None] = field(default_factory=dict)
    cost: Annotated[
        float | None, Field(description="Cost in US dollars; absent if the price is unknown.")
    ] = None


class RunResult(WireModel):
    """The final result of a run, or the result so far while the run waits for a person."""

    run_id: str
    agent: str
    status: Literal["finished", "blocked", "failed", "cancelled", "suspended"] = Field(
        description="`blocked`: by a processor, see `tripwire`; `failed`: see `error`; `suspended`: the run waits for "
        "a person."
    )
    finish_reason: str = Field(
        description="How the last answer of the model ended: `stop`, `tool-calls`, `length`, `content-filter`, "
        "`error` or `other`; `aborted` if the run was cancelled, `suspended` while it waits for a person."
    )
    text: str = Field(default="", description="The text of all accepted steps, as processors have left it.")
    usage: dict[str, int | None] = Field(
        default_factory=dict,
        description="`inputTokens`, `outputTokens`, `totalTokens`, and if the provider reports them "
        "`reasoningTokens`, `cachedInputTokens`, `cacheCreationInputTokens`; null: unknown. Of all steps and attempts.",
    )
    total_usage: dict[str, int | None] = Field(default_factory=dict, description="Same as `usage`.")
    warnings: list[Any] = Field(default_factory=list, description="Warnings of the last step.")
    provider_metadata: JsonObject | None = Field(
        default=None, description="Provider metadata of the last step."
    )
    steps: list[JsonObject] = Field(
        default_factory=list,
        description="Every answer of the model: `stepNumber`, `stepType`, `text`, `reasoningText`, `toolCalls`, "
        "`toolResults`, `sources`, `finishReason`, `usage`, `model`, `warnings`, and from the provider "
        "`request`, `response`, `providerMetadata`; `tripwire` if the answer was rejected.",
    )
    tool_calls: list[JsonObject] = Field(
        default_factory=list,
        description="Tool calls of all accepted steps: `toolCallId`, `toolName`, `input`.",
    )
    tool_results: list[JsonObject] = Field(
        default_factory=list,
        description="Their results, without errors: `toolCallId`, `toolName`, `output`.",
    )
    reasoning_text: str | None = Field(default=None, description="Same as `text`, for reasoning.")
    sources: list[JsonObject] = Field(
        default_factory=list,
        description="Payloads of the `source` chunks: `sourceType`, `url`, ...",
    )
    files: list[JsonObject] = Field(
        default_factory=list, description="Files that the model generated: `data`, `mimeType`."
    )
    object: Any = Field(default=None, description="The structured output.")
    used_fallback_value: bool | None = Field(
        default=None, description="True: `object` is the fallback value."
    )
    messages: list[JsonObject] = Field(
        default_factory=list, description="The whole conversation after the run."
    )
    remembered_messages: list[JsonObject] = Field(
        default_factory=list, description="Those of `messages` that come from memory."
    )
    response: JsonObject = Field(
        default_factory=dict,
        description="`messages` generated in this run, `id`, `modelId`, and `timestamp` if the provider reported it. "
        "Or `shortened: true`: the result was too long for a NATS message, so steps and messages are left out, and the "
        "text may be cut.",
    )
    tripwire: Tripwire | None = Field(default=None, description="Why the run is `blocked`.")
    error: Failure | None = Field(
        default=None, description="Why the run `failed`; or what went wrong when it was cancelled."
    )
    suspend_payload: JsonObject | None = Field(
        default=None,
        description="`calls` that wait for a person: `toolCallId`, `toolName`, `args`, `kind` (`approval` or "
        "`suspended`), `suspendPayload`, `resumeSchema`.",
    )
    processors: list[HookReport] = Field(default_factory=list)
    models: list[ModelReport] = Field(default_factory=list)
    retries: int = Field(default=0, description="How often processors had the model asked again.")
    duration_ms: int | None = Field(default=None, description="Milliseconds since the run was accepted.")
