"""The payloads of the chunk types (core.md 11.2); see `procession_schemas.chunk_types`."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from procession_schemas.base import JsonObject


class WithMetadata(TypedDict):
    """Additional data of the provider, by provider."""

    providerMetadata: NotRequired[JsonObject]


class StartPayload(TypedDict):
    """The agent (`id`), and the run's assistant message (`messageId`)."""

    id: str
    messageId: str


class StepStartPayload(TypedDict):
    """An attempt of a step starts."""

    messageId: str
    request: JsonObject
    warnings: list[Any]


class ResponseMetadataPayload(TypedDict):
    """What the provider says about its response; `timestamp` is ISO 8601."""

    id: NotRequired[str]
    modelId: NotRequired[str]
    timestamp: NotRequired[str]


class BlockPayload(WithMetadata):
    """A block of text or reasoning; its chunks share the `id`."""

    id: str


class TextPayload(BlockPayload):
    """A piece of a block."""

    text: str


class ReasoningPayload(TextPayload):
    """A piece of reasoning."""

    signature: NotRequired[str]


class SignaturePayload(BlockPayload):
    """The provider's signature of its reasoning."""

    signature: str


class RedactedPayload(BlockPayload):
    """Reasoning that only the provider can read."""

    data: str


class CallPayload(WithMetadata):
    """A call of a tool."""

    toolCallId: str
    toolName: str
    providerExecuted: NotRequired[bool]


class CallInputStartPayload(CallPayload):
    """Arguments are about to be streamed."""

    dynamic: NotRequired[bool]
    title: NotRequired[str]


class CallDeltaPayload(WithMetadata):
    """A piece of the arguments' JSON text."""

    toolCallId: str
    toolName: NotRequired[str]
    argsTextDelta: str


class CallInputEndPayload(WithMetadata):
    """The arguments are complete."""

    toolCallId: str


class ToolCallPayload(CallPayload):
    """A complete call; `argsText` instead of `args` if the model's text is not JSON even after a repair."""

    args: NotRequired[Any]
    argsText: NotRequired[str]
    output: NotRequired[Any]
    dynamic: NotRequired[bool]
    title: NotRequired[str]


class ToolResultPayload(CallPayload):
    """The result of a tool."""

    args: Any
    result: Any
    isError: NotRequired[bool]


class ToolError(TypedDict):
    """Why a call failed; the model reads the message."""

    name: str
    message: str


class ToolErrorPayload(CallPayload):
    """A call that failed, names an unknown tool, or has arguments that do not fit (D-38)."""

    args: Any
    error: ToolError


class ToolOutputPayload(TypedDict):
    """What a tool wrote while it ran."""

    toolCallId: str
    toolName: str
    output: Any


class ApprovalPayload(TypedDict):
    """A call that waits for a person."""

    toolCallId: str
    toolName: str
    args: Any
    resumeSchema: JsonObject


class SuspendedPayload(ApprovalPayload):
    """A call whose tool waits for data from a person."""

    suspendPayload: Any


class DeniedPayload(TypedDict):
    """A call that a person declined."""

    toolCallId: str
    toolName: str
    args: Any
    approval: JsonObject


class SourcePayload(WithMetadata):
    """Something the model cites."""

    id: str
    sourceType: Literal["url", "document"]
    title: str
    url: NotRequired[str]
    mimeType: NotRequired[str]
    filename: NotRequired[str]


class FilePayload(WithMetadata):
    """A file that the model generated; `data` is base64 or a URL."""

    data: str
    mimeType: str
    base64: NotRequired[str]


class StepOutcome(TypedDict):
    """How an attempt ended; the `retry...` fields say why it was rejected."""

    reason: str
    isContinued: NotRequired[bool]
    warnings: NotRequired[list[Any]]
    rawReason: NotRequired[str]
    retryReason: NotRequired[str]
    retryProcessorId: NotRequired[str]
    retryMetadata: NotRequired[Any]


class StepOutput(TypedDict):
    """Text and usage of an attempt, or at the end of the run.

    `shortened`: the text, which the deltas had in full, is cut because it is too long for a NATS message.
    """

    text: NotRequired[str]
    usage: NotRequired[dict[str, int | None]]
    shortened: NotRequired[bool]


class FinishPayload(TypedDict):
    """The end of an attempt (`step-finish`) or of the run (`finish`).

    The provider's own `finish`, which only stream hooks see, has no `messageId`.
    """

    stepResult: StepOutcome
    output: StepOutput
    messageId: NotRequired[str]
    metadata: NotRequired[JsonObject]


class ErrorPayload(TypedDict):
    """`error` is a `procession_schemas.run.Failure` as JSON."""

    error: JsonObject


class TripwirePayload(TypedDict):
    """Why a processor blocked the run."""

    reason: str
    processorId: str
    retry: NotRequired[bool]
    metadata: NotRequired[Any]


ResetPayload = TypedDict("ResetPayload", {"from": int})
"""The number of the first chunk that no longer counts."""
