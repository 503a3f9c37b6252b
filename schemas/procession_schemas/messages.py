"""Conversation messages as they travel and as processors see them: plain dicts, typed here (core.md 7.1, 7.2)."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

Role = Literal["user", "assistant", "system", "signal"]
Source = Literal["memory", "input", "response", "context"]
ToolState = Literal[
    "partial-call",
    "call",
    "approval-requested",
    "approval-responded",
    "result",
    "output-error",
    "output-denied",
]


class ToolInvocation(TypedDict):
    """A tool call and, once known, its outcome."""

    state: ToolState
    toolCallId: str
    toolName: str
    args: Any
    result: NotRequired[Any]
    errorText: NotRequired[str]
    approval: NotRequired[dict[str, Any]]


class Part(TypedDict, total=False):
    """One part of a message; `type` says which of the other keys are present. Unknown types are kept unchanged."""

    type: str
    text: str
    reasoning: str
    details: list[dict[str, Any]]
    toolInvocation: ToolInvocation
    data: Any
    url: str
    mimeType: str
    filename: str
    image: str
    source: dict[str, Any]
    error: dict[str, Any]
    providerMetadata: dict[str, Any]
    providerExecuted: bool
    createdAt: str


class Content(TypedDict):
    """The content of a message; `parts` is authoritative, `content` is a flattened copy for old readers."""

    format: Literal[2]
    parts: list[Part]
    content: NotRequired[str]
    metadata: NotRequired[dict[str, Any]]


class Message(TypedDict):
    """A stored conversation message (`MastraDBMessage`). `createdAt` is ISO-8601 in UTC with milliseconds."""

    id: str
    role: Role
    createdAt: str
    content: Content
    threadId: NotRequired[str]
    resourceId: NotRequired[str]
    type: NotRequired[str]


class SystemMessage(TypedDict):
    """A system message: agent instructions, memory context, or what the caller or a processor adds."""

    role: Literal["system"]
    content: str


class StepResult(TypedDict, total=False):
    """What one attempt of a step produced (core.md 7.6); `tripwire` only on a rejected one.

    `segment` belongs to the runtime: which step of the run's message this one is, if it has parts there.
    """

    stepNumber: int
    stepType: Literal["initial", "tool-result"]
    text: str
    content: list[dict[str, Any]]
    reasoning: list[dict[str, Any]]
    reasoningText: str
    toolCalls: list[dict[str, Any]]
    toolResults: list[dict[str, Any]]
    finishReason: str
    usage: dict[str, int | None]
    model: str
    sources: list[dict[str, Any]]
    files: list[dict[str, Any]]
    warnings: list[Any]
    providerMetadata: dict[str, Any]
    request: dict[str, Any]
    response: dict[str, Any]
    segment: int
    tripwire: dict[str, Any]
