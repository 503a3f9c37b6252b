"""The class that processor authors derive from.

Override the hooks that you need, as `def` or `async def`; the runtime finds them by override. State between hooks
belongs into `args.state`, never on the instance: one instance serves many runs, and every service has its own.
"""

import inspect
from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, ForwardRef, Generic, Literal, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from procession import args as a
from procession.authors import by_author
from procession.errors import BrokenComponentError, InvalidOptionsError
from procession_schemas.validation import in_words, wrong_fields


class Hook(StrEnum):
    """The nine hooks, by their names on the wire."""

    INPUT = "processInput"
    INPUT_STEP = "processInputStep"
    LLM_REQUEST = "processLLMRequest"
    LLM_RESPONSE = "processLLMResponse"
    API_ERROR = "processAPIError"
    OUTPUT_STREAM = "processOutputStream"
    OUTPUT_STEP = "processOutputStep"
    TOOL_RESULT = "processToolResult"
    OUTPUT_RESULT = "processOutputResult"


METHODS: dict[Hook, str] = {
    Hook.INPUT: "process_input",
    Hook.INPUT_STEP: "process_input_step",
    Hook.LLM_REQUEST: "process_llm_request",
    Hook.LLM_RESPONSE: "process_llm_response",
    Hook.API_ERROR: "process_api_error",
    Hook.OUTPUT_STREAM: "process_output_stream",
    Hook.OUTPUT_STEP: "process_output_step",
    Hook.TOOL_RESULT: "process_tool_result",
    Hook.OUTPUT_RESULT: "process_output_result",
}
INPUT_HOOKS = (Hook.INPUT, Hook.INPUT_STEP, Hook.LLM_REQUEST, Hook.LLM_RESPONSE)
_BY_NAME = {name: hook for hook, method in METHODS.items() for name in (hook.value, method)}
OUTPUT_HOOKS = (Hook.OUTPUT_STREAM, Hook.OUTPUT_STEP, Hook.TOOL_RESULT, Hook.OUTPUT_RESULT)


class Options(BaseModel):
    """Base of option models: frozen, both spellings, unknown options are errors."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


OptionsT = TypeVar("OptionsT", bound=Options)


def invalid_options(whose: str, error: ValidationError, options: Any) -> InvalidOptionsError:
    """What is wrong with the options of a processor, a tool or a stop condition."""
    fields = wrong_fields(error, options)
    return InvalidOptionsError(f"{whose}: {in_words(fields.items(), 'options')}", fields)


@dataclass(frozen=True, slots=True)
class Traits:
    """What a processor with certain options is: its hooks, whether it runs beside the model, and sees data chunks."""

    hooks: frozenset[Hook]
    parallel: bool
    data_parts: bool


class Processor(Generic[OptionsT]):
    """A processor: an id, an option model, and any subset of the hooks (R-PR-1).

    Class attributes:
        id: Registered id, the contract's spelling (`unicode-normalizer`).
        name, description: For people; `name` falls back to the id.
        process_data_parts: Whether `process_output_stream` also gets `data-*` chunks (R-WR-5).
        on_error: What an exception in a hook does where the agent does not say: `fail` or `skip`. None means the
            contract's default: `skip` for `process_output_stream`, `fail` elsewhere. Guardrails set `fail` (D-2). One
            that overrides `flush_stream` always fails there: skipping could lose or reorder what it holds.
        host: The service that runs this processor, where it is not the one of the array.
    """

    id: ClassVar[str]
    name: ClassVar[str] = ""
    description: ClassVar[str] = ""
    on_error: ClassVar[Literal["fail", "skip"] | None] = None
    host: ClassVar[str | None] = None
    process_data_parts: bool = False
    processor_index: int | None = None

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @classmethod
    def options_type(cls) -> type[Options]:
        """The option model: the type argument of `Processor[...]`, or one without options.

        Raises:
            BrokenComponentError: The argument is not a class derived from `Options`, so its options would be ignored.
        """
        for base in cls.__mro__:
            for generic in base.__dict__.get("__orig_bases__", ()):
                origin = get_origin(generic)
                if not (isinstance(origin, type) and issubclass(origin, Processor)):
                    continue
                for argument in get_args(generic):
                    if isinstance(argument, type) and issubclass(argument, Options):
                        return argument
                    if origin is Processor and argument is not Any and not isinstance(argument, TypeVar):
                        raise BrokenComponentError(_no_options(cls, base, argument))
        return Options

    @classmethod
    def build(cls, options: dict[str, Any] | None = None) -> Self:
        """Makes an instance from raw options.

        Raises:
            InvalidOptionsError: An option is unknown or wrong; the message names each.
            BrokenComponentError: The constructor raised something else.
        """
        with by_author(f"processor {cls.id}", cls.__module__):
            try:
                return cls(cls.options_type().model_validate(options or {}))  # type: ignore[arg-type]  # bound by options_type
            except ValidationError as error:
                raise invalid_options(f"processor {cls.id}", error, options) from error

    @classmethod
    def traits(cls, options: dict[str, Any]) -> Traits:
        """What an instance with these options is, as `hooks_for`, `runs_parallel` and `sees_data_parts` say.

        Raises:
            BrokenComponentError: One of them raised, or `hooks_for` named something that is not a hook.
        """
        with by_author(f"processor {getattr(cls, 'id', cls.__name__)}", cls.__module__):
            hooks = _hooks(cls.hooks_for(options))
            return Traits(
                hooks,
                parallel=Hook.INPUT in hooks and bool(cls.runs_parallel(options)),
                data_parts=Hook.OUTPUT_STREAM in hooks and bool(cls.sees_data_parts(options)),
            )

    @classmethod
    def hooks_for(cls, options: dict[str, Any]) -> frozenset[Hook]:  # noqa: ARG003 - for overriding
        """The hooks an instance with these options has; by default those that the class overrides.

        `"process_input"` and `"processInput"` do for `Hook.INPUT`.
        """
        return overridden(cls)

    @classmethod
    def runs_parallel(cls, options: dict[str, Any]) -> bool:  # noqa: ARG003 - for overriding
        """Whether `process_input` of an instance with these options runs beside the model call, not before it.

        The answer waits for its verdict. It may abort and keep state, but change nothing that the model reads. Its
        other hooks run where they always do.
        """
        return False

    @classmethod
    def holds_back(cls) -> bool:
        """Whether it may hold chunks of a stream, which come out in `flush_stream`."""
        return cls.flush_stream is not Processor.flush_stream

    @classmethod
    def sees_data_parts(cls, options: dict[str, Any]) -> bool:  # noqa: ARG003 - for overriding
        """Whether an instance with these options gets `data-*` chunks (R-WR-6)."""
        return cls.process_data_parts

    def process_input(self, args: a.InputArgs) -> a.InputReturn | Awaitable[a.InputReturn]:
        """Changes the messages of a request, once, before the loop (R-IN)."""
        raise NotImplementedError

    def process_input_step(self, args: a.InputStepArgs) -> a.InputStepReturn | Awaitable[a.InputStepReturn]:
        """Changes messages or settings of one step, before its prompt is built (R-IS)."""
        raise NotImplementedError

    def process_llm_request(
        self, args: a.LLMRequestArgs
    ) -> a.LLMRequestResult | Awaitable[a.LLMRequestResult | None] | None:
        """Changes the prompt of one call, or answers in the model's place (R-RQ)."""
        raise NotImplementedError

    def process_llm_response(self, args: a.LLMResponseArgs) -> Awaitable[None] | None:
        """Sees the complete response of one call (R-RS)."""
        raise NotImplementedError

    def process_api_error(
        self, args: a.APIErrorArgs
    ) -> a.APIErrorResult | Awaitable[a.APIErrorResult | None] | None:
        """Decides about a failed model call (R-AE); what it raises, `onError` or not, means no (R-AE-7)."""
        raise NotImplementedError

    def process_output_stream(self, args: a.OutputStreamArgs) -> a.StreamReturn | Awaitable[a.StreamReturn]:
        """Passes on, changes or drops (None) one chunk; a list emits several (R-OS)."""
        raise NotImplementedError

    def flush_stream(self, args: a.OutputStreamArgs) -> a.StreamReturn | Awaitable[a.StreamReturn]:  # noqa: ARG002
        """Gives out what `process_output_stream` holds back: the time of `args.wake_after` is up, or the stream ended.

        `args.part` is the last chunk that this processor got. Returns chunks as `process_output_stream` does.
        """
        return None

    def process_output_step(self, args: a.OutputStepArgs) -> a.MessagesReturn | Awaitable[a.MessagesReturn]:
        """Judges a response before its tools run (R-ST)."""
        raise NotImplementedError

    def process_tool_result(self, args: a.ToolResultArgs) -> a.MessagesReturn | Awaitable[a.MessagesReturn]:
        """Sees a tool result before it is recorded; changes it with `message_list.update_tool_invocation` (R-TR)."""
        raise NotImplementedError

    def process_output_result(
        self, args: a.OutputResultArgs
    ) -> a.MessagesReturn | Awaitable[a.MessagesReturn]:
        """Changes the final messages, once (R-OR)."""
        raise NotImplementedError

    def on_violation(self, violation: a.Violation) -> Awaitable[None] | None:
        """Called for every abort of this processor; what it raises is counted and ignored (R-VI)."""


def overridden(kind: type[Processor[Any]]) -> frozenset[Hook]:
    """The hooks that a class has; options may leave an instance fewer."""
    return frozenset(h for h, m in METHODS.items() if getattr(kind, m) is not getattr(Processor, m))


def misshapen(kind: type[Processor[Any]], hooks: Iterable[Hook]) -> Iterator[str]:
    """What is wrong with the form of these hooks: every call of such a one fails, or gives what is no answer."""
    for name in sorted(METHODS[hook] for hook in hooks):
        hook, stands = getattr(kind, name), inspect.getattr_static(kind, name)
        if not callable(hook):
            yield f"{name} is not a method"
            continue
        if inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
            yield f"{name} uses yield; return the value instead, and several chunks as a list"
        try:
            signature = inspect.signature(hook, follow_wrapped=False)
        except ValueError:  # not of Python
            continue
        gets_self = hasattr(stands, "__get__") and not isinstance(stands, staticmethod | classmethod)
        try:
            signature.bind(*[None] * (2 if gets_self else 1))
        except TypeError:
            yield f"{name} has the signature {signature}; a hook takes (self, args)"


def _no_options(kind: type[Processor[Any]], base: type[Any], argument: Any) -> str:
    """What the author is told whose option model is none."""
    told = f"processor {getattr(kind, 'id', kind.__name__)}: the option model of {base.__name__} is "
    if isinstance(argument, ForwardRef):
        return f"{told}the string {argument.__forward_arg__!r}; name the class itself, and define it first"
    return f"{told}{getattr(argument, '__name__', argument)}, which does not derive from procession.Options"


def _hooks(given: Iterable[str]) -> frozenset[Hook]:
    """Hooks by either of their names; raises TypeError."""
    names = [given] if isinstance(given, str) else list(given)
    if isinstance(given, str) or any(name not in _BY_NAME for name in names):
        raise TypeError(
            f"hooks_for returned {given!r}; it should return a set of these: {', '.join(METHODS.values())}"
        )
    return frozenset(_BY_NAME[name] for name in names)
