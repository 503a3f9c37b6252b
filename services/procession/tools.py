"""Tools: what a model may call. A function with `@tool`, or a class when the tool has options.

One instance serves many calls of many runs, also at the same time, so nothing of a call belongs on it. A
plain `def` runs in a thread; write `async def` for a tool that waits or that sends chunks. A call is run
once while its host lives, and again when the host died in the middle: `context.run_id` and
`context.tool_call_id` are the key by which a tool recognises the repetition.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    NoReturn,
    Protocol,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from procession.args import AbortSignal, RequestContext
from procession.authors import by_author, said
from procession.errors import ProcessionError
from procession.processor import Options, invalid_options
from procession.services import NO_ENVIRONMENT, Environment, KeyValueStore
from procession_schemas.validation import wrong_fields


class ToolWriter(Protocol):
    """A tool's way to the client while it runs (R-WR-4); usable until the call has ended."""

    async def custom(self, chunk: Mapping[str, Any]) -> None:
        """Sends a `data-*` chunk: `{"type": "data-x", "data": ..., "transient": bool?}`.

        Raises:
            ValueError: The type is missing or does not begin with `data-` (R-WR-2), or the chunk is not JSON.
        """

    async def write(self, output: Any) -> None:
        """Sends a `tool-output` chunk.

        Raises:
            ValueError: The output cannot be turned into JSON.
        """


class ToolSuspended(ProcessionError):  # noqa: N818 - a decision, not an error
    """A tool suspends the run until it is resumed with data; raised by `context.suspend(payload)`."""

    def __init__(self, payload: Any = None) -> None:
        super().__init__("the tool suspended the run")
        self.payload = payload


class InvalidArgumentsError(ProcessionError):
    """Arguments do not fit a tool; `fields` maps the path of each wrong one to its problem (D-38)."""

    def __init__(self, message: str, fields: Mapping[str, str]) -> None:
        super().__init__("\n".join([message, *(f"- {path}: {what}" for path, what in fields.items())]))
        self.fields = dict(fields)


@dataclass(kw_only=True, slots=True)
class ToolContext:
    """What a tool is told about its call (R-TX-6); `resume_data` is for one that suspended the run before."""

    tool_call_id: str
    tool_name: str
    run_id: str
    tenant: str
    writer: ToolWriter
    request_context: RequestContext = field(default_factory=RequestContext)
    abort_signal: AbortSignal = field(default_factory=AbortSignal)
    tracing_context: dict[str, Any] = field(default_factory=dict)
    messages: list[Any] = field(default_factory=list)
    resume_data: Any = None
    environment: Environment = NO_ENVIRONMENT

    @property
    def store(self) -> KeyValueStore:
        """Values of this tenant that outlive the run."""
        return self.environment.store(self.tenant)

    def suspend(self, payload: Any = None) -> NoReturn:
        """Suspends the run; the tool runs again, from its beginning, when the call is resumed with data.

        Only for a tool that declares `resume_schema`.
        """
        raise ToolSuspended(payload)


class Tool:
    """A tool. Derive from it when the tool takes options; `@tool` makes one from a function.

    Class attributes:
        id: Registered id. description: What the model reads. parameters: JSON Schema of the arguments.
        options_type: Option model; the validated options are `self.options`.
        client_side: Nobody executes it here; the run ends and the caller does (R-TX-5).
        require_approval: True has a person approve each call; override `needs_approval` for a rule.
        resume_schema: JSON Schema of the data that resumes the tool; None for one that never suspends. Calls
            of a step run one after another as soon as a tool of it may suspend or need approval (R-TX-1).
    """

    id: ClassVar[str]
    options_type: ClassVar[type[Options]] = Options
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}  # noqa: RUF012 - read only
    client_side: bool = False
    require_approval: bool = False
    resume_schema: dict[str, Any] | None = None

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        """Reads the options.

        Raises:
            InvalidOptionsError: An option is unknown or wrong; the message names each.
        """
        try:
            self.options: Any = self.options_type.model_validate(options or {})
        except ValidationError as error:
            raise invalid_options(f"tool {self.id}", error, options) from error

    @classmethod
    def build(cls, options: dict[str, Any]) -> Self:
        """Makes an instance from raw options.

        Raises:
            InvalidOptionsError: An option is unknown or wrong; the message names each.
            BrokenComponentError: The constructor raised something else.
        """
        with by_author(f"tool {cls.id}", cls.__module__):
            return cls(options)

    def execute(self, args: Any, context: ToolContext) -> Any | Awaitable[Any]:
        """Runs the call with arguments that fit `parameters`; what it raises becomes a `tool-error` (R-TX-4).

        The result is anything that has a JSON form: plain values, pydantic models, dataclasses, dates.
        """
        raise NotImplementedError

    def needs_approval(self, args: Any, context: RequestContext) -> bool | Awaitable[bool]:  # noqa: ARG002
        """Tells whether this call waits for a person (R-AP-1); one that raises counts as yes."""
        return self.require_approval

    def model_output(self, result: Any) -> Any:
        """What the model is shown of a result; by default all of it."""
        return result


class _Schema(GenerateJsonSchema):
    """Leaves out the titles that pydantic makes from names: the model pays for them and learns nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - the base's signature
        return False


class _FunctionTool(Tool):
    """A tool made from a plain function by `@tool`."""

    _function: ClassVar[Callable[..., Any]]
    _arguments: ClassVar[type[BaseModel]]
    _context_name: ClassVar[str | None]

    def execute(self, args: Any, context: ToolContext) -> Any:
        return self._call(args, context)

    def _call(self, args: Any, context: ToolContext) -> Any:
        try:
            model = self._arguments.model_validate(args)
        except ValidationError as error:
            text = f"The arguments do not fit the tool {context.tool_name!r}:"
            wrong = {path or "arguments": what for path, what in wrong_fields(error).items()}
            raise InvalidArgumentsError(text, wrong) from error
        fields = self._arguments.model_fields
        values = {info.alias or key: getattr(model, key) for key, info in fields.items()}
        if self._context_name:
            values[self._context_name] = context
        return type(self)._function(**values)  # noqa: SLF001 - own attribute, unbound on purpose


class _AsyncFunctionTool(_FunctionTool):
    """A tool made from an `async def` by `@tool`."""

    async def execute(self, args: Any, context: ToolContext) -> Any:
        return await self._call(args, context)


@overload
def tool(function: Callable[..., Any]) -> type[Tool]: ...


@overload
def tool(
    *, id: str | None = None, require_approval: bool = False, resume_schema: dict[str, Any] | None = None
) -> Callable[[Callable[..., Any]], type[Tool]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    *,
    id: str | None = None,  # noqa: A002 - the contract's word
    require_approval: bool = False,
    resume_schema: dict[str, Any] | None = None,
) -> Any:
    """Makes a tool class from a function: schema from its signature, description from its docstring.

    A parameter annotated `ToolContext`, or as one that may be None, gets the context and is not part of the schema; an
    annotation such as
    `Annotated[int, Field(ge=1)]` says more about an argument than its type.
    The id is the function's name with `-` for `_`.

    Raises:
        TypeError: A parameter cannot be an argument: `*args`, `**kwargs`, positional-only, default `Field`, or of a
            type that has no JSON Schema.
    """

    def make(function: Callable[..., Any]) -> type[Tool]:
        context_name, arguments, schema = _signature(function)
        return type(
            function.__name__,
            (_AsyncFunctionTool if inspect.iscoroutinefunction(function) else _FunctionTool,),
            {
                "id": id or function.__name__.replace("_", "-"),
                "description": inspect.getdoc(function) or "",
                "parameters": schema,
                "require_approval": require_approval,
                "resume_schema": resume_schema,
                "_function": staticmethod(function),
                "_arguments": arguments,
                "_context_name": context_name,
                "__module__": function.__module__,
                "__doc__": function.__doc__,
            },
        )

    return make(function) if function else make


def _signature(function: Callable[..., Any]) -> tuple[str | None, type[BaseModel], dict[str, Any]]:
    """The name of the parameter for the context, a model of all others, and its schema.

    A field's name is its position, its alias the parameter: fields may not be called `json` or `_x`.
    """
    where = f"tool {function.__name__}"
    context_name, fields = None, {}
    for position, (name, parameter) in enumerate(inspect.signature(function).parameters.items()):
        hint = _hint(function, parameter, where)
        if _is_context(hint):
            context_name = name
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{where}: {parameter} cannot be an argument; name each argument")
        if isinstance(parameter.default, FieldInfo):
            raise TypeError(f"{where}: write `{name}: Annotated[..., Field(...)]`, without a default")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"p{position}"] = (hint, Field(default, alias=name))
    try:
        return (context_name, *_model(function.__name__, fields))
    except Exception:
        for key, (_, field) in fields.items():
            try:
                _model(function.__name__, {key: fields[key]})
            except Exception as error:
                told = f"{where}: the parameter `{field.alias}` cannot be an argument: {said(error)}"
                raise TypeError(
                    f"{told}; annotate it with a type that JSON has, or with `ToolContext`"
                ) from error
        raise


def _model(name: str, fields: dict[str, Any]) -> tuple[type[BaseModel], dict[str, Any]]:
    model: type[BaseModel] = create_model(
        f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields
    )
    schema = model.model_json_schema(schema_generator=_Schema)
    schema.pop("title")
    return model, schema


def _hint(function: Callable[..., Any], parameter: inspect.Parameter, where: str) -> Any:
    """A parameter's annotation, read where it is a text; raises TypeError."""
    if parameter.annotation is parameter.empty:
        return Any
    written = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    known = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return get_type_hints(written, known, include_extras=True)[parameter.name]
    except Exception as error:
        raise TypeError(
            f"{where}: the annotation of `{parameter.name}` cannot be read: {said(error)}"
        ) from error


def _is_context(hint: Any) -> bool:
    """Whether it is the context that a parameter wants, or takes None in its place."""
    if get_origin(hint) is Annotated:
        return _is_context(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        given = [each for each in get_args(hint) if each is not NoneType]
        return bool(given) and all(map(_is_context, given))
    return hint is ToolContext
