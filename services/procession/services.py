"""What hooks and tools may use beside their arguments: models through the gateway, a store, the time."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from procession.errors import ProcessionError
from procession.signals import Signal
from procession.structured import parse_object
from procession.usage import Scope, UsageBooks, UsageSum, scope_keys
from procession_schemas.messages import Message


class ModelCallError(ProcessionError):
    """A model call of a processor failed: no answer, a refusal, or an answer that does not fit its schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One question to a model.

    Attributes:
        model: `provider/name`.
        prompt: Prompt entries of core.md 6.1: `{"role", "content"}`, content a string or a list of parts.
        schema: JSON Schema of the answer; None for free text.
        json_prompt_injection: Ask for the schema in the prompt instead of by response format.
        model_settings: `temperature`, `maxOutputTokens`, ... (R-MS-1).
        provider_options: By provider (R-MS-2).
        timeout: Seconds until the call counts as failed.
    """

    model: str
    prompt: list[dict[str, Any]]
    schema: dict[str, Any] | None = None
    json_prompt_injection: bool = False
    model_settings: dict[str, Any] = field(default_factory=dict)
    provider_options: dict[str, Any] = field(default_factory=dict)
    timeout: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """What the model said; `chunks` are the answer's chunks as a stream would have shown them."""

    text: str
    finish_reason: str = "stop"
    usage: dict[str, int | None] = field(default_factory=dict)
    cost: float | None = None
    chunks: list[dict[str, Any]] = field(default_factory=list)


class Models(Protocol):
    """Calls models; the services do it through the LLM gateway."""

    async def generate(self, request: ModelRequest, *, tenant: str) -> ModelAnswer:
        """Asks once and returns the whole answer.

        Raises:
            ModelCallError: No answer came, whatever the reason.
        """


def conversation_key(resource: str, thread: str) -> str:
    """What names a thread of a resource in a key: both are quoted, so that no other two make the same (D-86)."""
    return ":".join(quote(each, safe="", errors="surrogatepass") for each in (resource, thread))


def book_keys(request_context: Mapping[str, Any], run_id: str) -> dict[Scope, str]:
    """The keys under which the calls of a run are counted; that of a thread has its resource in it (D-86)."""
    keys = scope_keys(request_context, run_id)
    if thread := keys.get("thread"):
        keys["thread"] = conversation_key(keys.get("resource", thread), thread)
    return keys


class KeyValueStore(Protocol):
    """JSON values that outlive a run, kept apart by tenant; begin keys with the component's id."""

    async def get(self, key: str) -> Any:
        """The value, or None."""

    async def put(self, key: str, value: Any, *, ttl: float | None = None, only_new: bool = False) -> bool:
        """Stores a value for `ttl` seconds; False when `only_new` and there is one already."""

    async def delete(self, *keys: str) -> None:
        """Removes values and sets."""

    async def add(self, key: str, amount: float, *, ttl: float | None = None) -> float:
        """Adds to a number, atomically and once, and returns the sum; `ttl` counts from its creation."""

    async def insert(self, key: str, *members: str, ttl: float | None = None) -> None:
        """Puts strings into a set and renews its `ttl`."""

    async def members(self, key: str) -> set[str]:
        """The strings of a set."""


class Services(Protocol):
    """What a processor may use beside its arguments; use is counted in the run's reports."""

    tenant: str
    agent: str

    @property
    def model(self) -> str:
        """The model of the step in hand, `provider/name`."""

    @property
    def store(self) -> KeyValueStore:
        """Values of this tenant that outlive the run."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def secret(self, name: str) -> bytes | None:
        """A secret of the operator, or None; for keys only, never for the conversation or the state."""

    async def generate(self, request: ModelRequest) -> ModelAnswer:
        """Asks a model through the gateway.

        Raises:
            ModelCallError: No answer came, whatever the reason.
        """

    async def generate_object(self, request: ModelRequest) -> Any:
        """Asks for JSON that fits `request.schema`.

        Raises:
            ModelCallError: No answer came, or one that does not fit (R-COM-20).
        """

    def count_model(self, *, calls: int = 0, tokens: int = 0, cost: float = 0) -> None:
        """Counts model calls that were made for this processor elsewhere, in the report of this hook.

        Args:
            calls: How many.
            tokens: What they used.
            cost: US dollars.

        Raises:
            TypeError: `calls` or `tokens` is no integer, or `cost` is no number.
        """

    async def usage(self, scope: Scope, key: str, window_seconds: float | None) -> UsageSum:
        """What model calls used and cost in the last seconds (None: all that is kept), for one key of a scope.

        `book_keys` gives the keys of a run; that of the tenant is `tenant`.

        Raises:
            ValueError: There is no such scope.
        """

    async def violation(self, message: str, detail: Any = None) -> None:
        """Reports a violation that does not abort (D-17): `on_violation` is called, the event is stored."""

    async def send_signal(self, signal: Signal) -> Message:
        """Adds context that the model reads next, as a message of role `signal`, and tells the client.

        Raises:
            InvalidSignalError: A key of the signal is missing or wrong.
            ProcessionError: Called in `process_output_stream`, whose conversation is no longer open.
        """

    def warn(self, text: str) -> None:
        """Counts a warning and logs it; the text must hold nothing of the conversation."""


class _NoServices:
    """The services of arguments that were made by hand."""

    tenant = agent = model = ""

    def __getattr__(self, name: str) -> Any:
        raise ProcessionError(
            f"`services.{name}` is not available: these arguments were not made by a service or a ProcessorKit"
        )


def no_services() -> Services:
    """What arguments have that were made by hand: whatever is asked of it is an error."""
    nothing: Any = _NoServices()  # answers every call with the error
    services: Services = nothing
    return services


class _Nothing:
    """Models, store and books of a process that has none."""

    async def generate(self, request: ModelRequest, *, tenant: str) -> ModelAnswer:  # noqa: ARG002
        raise ModelCallError("models are not available: this processor runs outside a service")

    async def read(self, tenant: str, scope: Scope, key: str, window_seconds: float | None) -> UsageSum:  # noqa: ARG002
        raise ProcessionError("usage is not available: this processor runs outside a service")

    def __getattr__(self, name: str) -> Any:
        raise ProcessionError(
            f"`store.{name}` is not available: this processor or tool runs outside a service"
        )


class Environment(msgspec.Struct, frozen=True):
    """What one process offers to all hooks and tools that run in it; `now` gives seconds since the epoch."""

    models: Models
    store: Callable[[str], KeyValueStore]
    now: Callable[[], float]
    log: Callable[[str], None] = lambda _text: None
    secret: Callable[[str], bytes | None] = lambda _name: None
    usage: UsageBooks = msgspec.field(default_factory=_Nothing)
    watch: Callable[[str, str, Any], AbstractContextManager[Any]] | None = None
    """Entered around each call of a hook outside the stream; gets processor, hook, and its running tally."""


def _no_store(_tenant: str) -> KeyValueStore:
    nothing: Any = _Nothing()
    return nothing  # type: ignore[no-any-return]  # answers every call with the error


NO_ENVIRONMENT = Environment(models=_Nothing(), store=_no_store, now=lambda: 0.0)
"""The environment of hooks that are called outside a service."""


def object_of(answer: ModelAnswer, schema: dict[str, Any]) -> Any:
    """The object that an answer spells.

    Raises:
        ModelCallError: The answer is no JSON, or does not fit the schema (R-COM-20).
    """
    value, problem = parse_object(answer.text, schema)
    if problem is not None:
        raise ModelCallError(problem)
    return value
