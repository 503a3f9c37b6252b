"""The arguments of the nine hooks and what each may return (core.md 3 to 10).

Every argument object is made for one hook call. `messages` is a list of its own (adding to it changes nothing),
but the message dicts in it are the live ones; `message_list` is the live conversation (R-AR-5..7).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, TypedDict, TypeVar, cast

from procession.message_list import MessageList
from procession.services import Services, no_services
from procession_schemas.chunks import Chunk
from procession_schemas.messages import Message, StepResult, SystemMessage

log = logging.getLogger(__name__)
T = TypeVar("T")
State = dict[str, Any]
"""A processor's own object for one run; JSON values only, since it travels between services (R-SS-1)."""


class RequestContext(dict[str, Any]):
    """The caller's map of request data: live and shared by all hooks and tools of a run (R-RX-1)."""

    def set(self, key: str, value: Any) -> None:
        """Sets a value that later hooks and tools see (R-RX-3)."""
        self[key] = value

    def has(self, key: str) -> bool:
        """Tells whether the key is there."""
        return key in self

    def delete(self, key: str) -> None:
        """Removes the key if it is there."""
        self.pop(key, None)


class AbortSignal:
    """Tells a hook or tool that the run was cancelled (R-CX-1)."""

    def __init__(self) -> None:
        self.aborted = False
        self._listeners: list[Callable[[], None]] = []

    def on_abort(self, listener: Callable[[], None]) -> None:
        """Calls the listener when the run is cancelled, at once if it already was."""
        if self.aborted:
            listener()
        else:
            self._listeners.append(listener)

    def forget(self, listener: Callable[[], None]) -> None:
        """Stops calling the listener; an unknown one is ignored."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def abort(self) -> None:
        """Fires the signal; a second call does nothing."""
        if not self.aborted:
            self.aborted = True
            for listener in tuple(self._listeners):
                try:
                    listener()
                except Exception:  # it is somebody else's, and the others have to hear of it, too
                    log.exception("an on_abort listener of a cancelled run failed")


class Writer(Protocol):
    """Sends custom chunks to the client at once (R-WR-1)."""

    async def custom(self, chunk: Mapping[str, Any]) -> None:
        """Sends a `data-*` chunk: `{"type": "data-x", "data": ..., "transient": bool?}`.

        Raises:
            ValueError: The type is missing, or is reserved for the runtime (R-WR-2).
            TypeError: The chunk contains something that is not JSON, such as a set or a NaN.
        """


class Abort(Protocol):
    """Ends the hook, and the run or the attempt; never returns (R-AB-1)."""

    def __call__(
        self,
        reason: str = "",
        options: Mapping[str, Any] | None = None,
        *,
        retry: bool = False,
        metadata: Any = None,
    ) -> NoReturn:
        """Raises the tripwire; `retry=True` asks for the same step again with the reason as feedback.

        `options` is the reference's way to give the others: `{"retry": True, "metadata": ...}`.
        """


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model of a call: `id` is the full string `provider/name`."""

    id: str
    provider: str = ""
    model_id: str = ""


def own(state: State, name: str, whose: str) -> dict[str, Any]:
    """What one of several processors that share an id, and so a state (R-PR-6), keeps for itself under a name.

    Args:
        state: The state that they share.
        name: What is kept.
        whose: What tells them apart: the place in the chain of a stream (`OutputStreamArgs.own`), for example.
    """
    kept: dict[str, Any] = state.setdefault(name, {}).setdefault(whose, {})
    return kept


class _Unmade:
    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def lazy(make: Callable[[], T]) -> T:
    """The value of a lazy field, made for the first who reads it."""
    return cast("T", _Unmade(make))


class _LazyField:
    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __get__(self, owner: Any, _kind: type | None = None) -> Any:
        if owner is None:
            return self
        value = self._slot.__get__(owner)
        if type(value) is _Unmade:
            value = value.make()
            self._slot.__set__(owner, value)
        return value

    def __set__(self, owner: Any, value: Any) -> None:
        self._slot.__set__(owner, value)


def _lazy_field(name: str) -> Callable[[type[T]], type[T]]:
    """Decorates a class with slots, of which that field may be given as `lazy`."""

    def decorated(owner: type[T]) -> type[T]:
        setattr(owner, name, _LazyField(vars(owner)[name]))
        return owner

    return decorated


@dataclass(kw_only=True, slots=True)
class HookArgs:
    """What every hook gets (R-AR-1..4)."""

    abort: Abort
    retry_count: int
    request_context: RequestContext
    tracing_context: dict[str, Any]
    state: State
    run_id: str
    services: Services = field(default_factory=no_services)


@dataclass(kw_only=True, slots=True)
class InputArgs(HookArgs):
    """`process_input`: once per run, before the loop (R-IN-2)."""

    messages: list[Message]
    system_messages: list[SystemMessage]
    message_list: MessageList


@_lazy_field("steps")
@dataclass(kw_only=True, slots=True)
class StepArgs(HookArgs):
    """What the hooks inside the loop have in common."""

    step_number: int
    steps: list[StepResult]
    writer: Writer | None = None
    abort_signal: AbortSignal = field(default_factory=AbortSignal)


@dataclass(kw_only=True, slots=True)
class InputStepArgs(StepArgs):
    """`process_input_step`: at every attempt of every step (R-IS-2)."""

    messages: list[Message]
    message_list: MessageList
    system_messages: list[SystemMessage]
    model: ModelInfo
    tool_choice: Any
    active_tools: list[str] | None
    tools: dict[str, dict[str, Any]]
    provider_options: dict[str, Any]
    model_settings: dict[str, Any]
    structured_output: dict[str, Any] | None
    message_id: str


@dataclass(kw_only=True, slots=True)
class LLMRequestArgs(StepArgs):
    """`process_llm_request`: the prompt, right before the provider call (R-RQ-2).

    The fields after `message_list` are the other settings of the call, for processors that need them (D-23).
    """

    prompt: list[dict[str, Any]]
    model: ModelInfo
    message_list: MessageList
    tool_choice: Any = "auto"
    active_tools: list[str] | None = None
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    provider_options: dict[str, Any] = field(default_factory=dict)
    model_settings: dict[str, Any] = field(default_factory=dict)
    structured_output: dict[str, Any] | None = None


@dataclass(kw_only=True, slots=True)
class LLMResponseArgs(StepArgs):
    """`process_llm_response`: the complete response, live or replayed (R-RS-2)."""

    chunks: list[dict[str, Any]]
    model: ModelInfo
    from_cache: bool
    warnings: list[Any]
    request: dict[str, Any]
    raw_response: dict[str, Any]


@dataclass(kw_only=True, slots=True)
class OutputStreamArgs(HookArgs):
    """`process_output_stream`: one chunk; `stream_parts` are all chunks this processor got, this one last.

    `wake_after(seconds)` has the runtime call `flush_stream` when the time is up; None takes that back. `place` is the
    processor's place in the chain: it tells apart two that share an id, and so a state.
    """

    part: Chunk
    stream_parts: list[Chunk]
    message_list: MessageList
    writer: Writer
    wake_after: Callable[[float | None], None] = lambda _seconds: None
    place: int = 0
    json_text: bool = False

    def own(self, name: str) -> dict[str, Any]:
        """What this processor alone keeps under a name: a dict in the state, for its place in the chain."""
        return own(self.state, name, str(self.place))


@dataclass(kw_only=True, slots=True)
class OutputStepArgs(StepArgs):
    """`process_output_step`: the response of an attempt, before any tool runs (R-ST-2)."""

    messages: list[Message]
    message_list: MessageList
    system_messages: list[SystemMessage]
    finish_reason: str
    tool_calls: list[dict[str, Any]] | None
    text: str
    usage: dict[str, int | None]
    provider_metadata: dict[str, Any]


@dataclass(kw_only=True, slots=True)
class ToolResultArgs(StepArgs):
    """`process_tool_result`: one successful tool result, before it is recorded (R-TR-2)."""

    messages: list[Message]
    message_list: MessageList
    system_messages: list[SystemMessage]
    tool_name: str
    tool_call_id: str
    args: Any
    result: Any
    provider_executed: bool


@_lazy_field("steps")
@dataclass(frozen=True, slots=True)
class OutputResult:
    """What a run produced, as a snapshot (core.md 7.7)."""

    text: str
    usage: dict[str, int | None]
    finish_reason: str
    steps: list[StepResult]


@dataclass(kw_only=True, slots=True)
class OutputResultArgs(HookArgs):
    """`process_output_result`: once per run, before `finish` (R-OR-2)."""

    messages: list[Message]
    message_list: MessageList
    result: OutputResult
    writer: Writer


@dataclass(frozen=True, slots=True)
class APIError:
    """A provider error as error processors see it; `cause` is the next entry of its chain."""

    message: str
    name: str = "APICallError"
    status_code: int | None = None
    is_retryable: bool | None = None
    code: str | None = None
    type: str | None = None
    kind: str | None = None
    response_headers: dict[str, str] = field(default_factory=dict)
    response_body: str | None = None
    cause: "APIError | None" = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class APIErrorArgs(StepArgs):
    """`process_api_error`: a model call failed for good (R-AE-2)."""

    error: APIError
    messages: list[Message]
    message_list: MessageList
    message_id: str


class InputResult(TypedDict):
    """The object form of `process_input`'s return value; both keys are needed (R-IN-3)."""

    messages: list[Message]
    system_messages: list[SystemMessage]


class InputStepResult(TypedDict, total=False):
    """The object form of `process_input_step`'s return value: each present key overrides, this step only (R-IS-3)."""

    model: str | ModelInfo | None
    tool_choice: Any
    active_tools: list[str] | None
    tools: dict[str, dict[str, Any]] | None
    messages: list[Message]
    message_list: MessageList
    system_messages: list[SystemMessage]
    provider_options: dict[str, Any] | None
    model_settings: dict[str, Any] | None
    structured_output: dict[str, Any] | None


class LLMRequestResult(TypedDict, total=False):
    """`prompt` replaces this call's prompt; `response` `{"chunks": [...]}` answers in the model's place (R-CA-1)."""

    prompt: list[dict[str, Any]] | None
    response: dict[str, Any] | None


class APIErrorResult(TypedDict):
    """`{"retry": True}` asks for the step again (R-AE-6)."""

    retry: bool


@dataclass(frozen=True, slots=True)
class Violation:
    """The argument of `on_violation` (R-VI-3)."""

    processor_id: str
    message: str
    detail: Any = None


InputReturn = list[Message] | MessageList | InputResult | None
InputStepReturn = InputStepResult | list[Message] | MessageList | None
MessagesReturn = list[Message] | MessageList | None
StreamReturn = Chunk | list[Chunk] | None
