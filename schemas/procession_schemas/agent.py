"""Agents and everything a person configures about them. Options keep the contract's names."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from msgspec import field
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from procession_schemas.base import JsonObject, StrictModel, WireStruct
from procession_schemas.memory import MemoryConfig
from procession_schemas.model_settings import ModelSettings, unknown_settings
from procession_schemas.subjects import TOKEN_PATTERN

LONGEST_RUN: Final = 31_536_000
"""Seconds that a run may take."""


def _by_id(value: object) -> object:
    if isinstance(value, str):
        return {"id": value}
    if callable(value) or (isinstance(getattr(value, "id", None), str) and not isinstance(value, WireStruct)):
        raise ValueError(  # noqa: TRY004 - pydantic tells no other
            "name it by its id, such as 'my-guard'; a plugin registers the class (`registry.add_processor`, `add_tool`)"
        )
    return value


class ProcessorRef(WireStruct):
    """A processor of an agent: a registered id and its options. A bare string is an id without options."""

    FORM = StrictModel

    id: Annotated[
        str, Field(min_length=1, description="Registered processor id, for example `unicode-normalizer`.")
    ]
    options: Annotated[
        JsonObject, Field(description="Options of that processor, in camelCase or snake_case.")
    ] = field(default_factory=dict)
    as_: Annotated[
        str | None,
        Field(
            alias="as",
            min_length=1,
            description="Id of this instance, which is its state key and its `processorId`; default: `id`.",
        ),
    ] = field(name="as", default=None)
    on_error: Annotated[
        Literal["fail", "skip"] | None,
        Field(
            description="If a hook raises: end the run, or continue with the value unchanged (D-2). Default: the "
            "processor's own, else `skip` for processOutputStream and `fail` for the others. Does not apply to "
            "processAPIError: there the next processor is asked (R-AE-7)."
        ),
    ] = None
    timeout: Annotated[float | None, Field(gt=0, description="Seconds that one hook call may take.")] = None

    @property
    def instance(self) -> str:
        """The id under which this instance has its state and reports its violations."""
        return self.as_ or self.id


class ToolRef(WireStruct):
    """A tool of an agent: a registered id and its options. A bare string is an id without options."""

    FORM = StrictModel

    id: Annotated[str, Field(min_length=1, description="Registered tool id.")]
    as_: Annotated[
        str | None, Field(alias="as", min_length=1, description="Name that the model sees; default: `id`.")
    ] = field(name="as", default=None)
    options: Annotated[JsonObject, Field(description="Options of that tool.")] = field(default_factory=dict)
    description: Annotated[str | None, Field(description="Overrides the tool's own description.")] = None
    parameters: Annotated[JsonObject | None, Field(description="JSON Schema; overrides the tool's own.")] = (
        None
    )
    require_approval: Annotated[
        bool | None, Field(description="Suspend the run until a person approves the call.")
    ] = None
    timeout: Annotated[float | None, Field(gt=0, description="Seconds that one call may take.")] = None

    @property
    def name(self) -> str:
        """The key of the tool, used everywhere (R-TL-5)."""
        return self.as_ or self.id


class FactoryRef(StrictModel):
    """A named function that builds an array of refs per request from the request context (R-CF-2)."""

    factory: str = Field(min_length=1, description="Registered factory name.")
    options: JsonObject = Field(default_factory=dict, description="Options for the factory.")


class ModelEntry(WireStruct):
    """One model of a fallback list (R-FB-1)."""

    FORM = StrictModel

    model: Annotated[str, Field(min_length=1, description="`provider/name`.")]
    id: Annotated[str | None, Field(description="A label; nothing reads it.")] = None
    max_retries: Annotated[int | None, Field(ge=0, description="Overrides the agent's `maxRetries`.")] = None
    enabled: Annotated[bool, Field(description="False: the entry is skipped.")] = True
    model_settings: Annotated[ModelSettings, Field(description="Merged into the agent's, and win.")] = field(
        default_factory=dict
    )
    provider_options: Annotated[JsonObject, Field(description="Merged into the agent's, and win.")] = field(
        default_factory=dict
    )
    headers: Annotated[dict[str, str], Field(description="Extra HTTP headers of the call.")] = field(
        default_factory=dict
    )


class StructuredOutput(StrictModel):
    """Asks for an object instead of free text (R-SO-1)."""

    schema_: JsonObject = Field(alias="schema", description="JSON Schema of the object.")
    model: str | None = Field(
        default=None, description="A second model, which makes the object from the finished answer."
    )
    error_strategy: Literal["strict", "warn", "fallback"] = Field(
        default="strict",
        description="If the answer does not fit the schema: fail, warn and continue without an object, or use "
        "`fallbackValue`.",
    )
    fallback_value: Any = Field(default=None, description="The object that `fallback` uses.")
    instructions: str | None = Field(
        default=None, description="With `jsonPromptInjection`: what the model is told before the schema."
    )
    json_prompt_injection: bool = Field(
        default=False,
        description="Put the schema into the prompt, for models that support no response format.",
    )


class ToolChoiceTool(StrictModel):
    """The model must call this tool."""

    type: Literal["tool"] = Field(default="tool", description="Always `tool`.")
    tool_name: str = Field(description="The name that the model sees.")


AnyProcessor = Annotated[ProcessorRef, BeforeValidator(_by_id, json_schema_input_type=str | ProcessorRef)]
AnyTool = Annotated[ToolRef, BeforeValidator(_by_id, json_schema_input_type=str | ToolRef)]
ProcessorArray = list[AnyProcessor] | FactoryRef
ToolChoice = Literal["auto", "none", "required"] | ToolChoiceTool


def plain_choice(choice: Any) -> Any:
    """A choice of tools as it travels; raises ValueError where the value is not one."""
    try:
        given = _TOOL_CHOICE.validate_python(choice)
    except ValidationError:
        raise ValueError('use "auto", "none", "required" or {"type": "tool", "toolName": ...}') from None
    return given if isinstance(given, str) else given.model_dump(by_alias=True)


_TOOL_CHOICE: Final = TypeAdapter[Any](ToolChoice)


class AgentOptions(StrictModel):
    """What both an agent and a single request may set; the request's value wins."""

    model: str | list[ModelEntry] | None = Field(
        default=None, description="`provider/name`, or a fallback list."
    )
    instructions: str | list[str] | None = Field(default=None, description="The first system messages.")
    input_processors: ProcessorArray | None = Field(
        default=None, description="For processInput, processInputStep, processLLMRequest, processLLMResponse."
    )
    output_processors: ProcessorArray | None = Field(
        default=None,
        description="For processOutputStream, processOutputStep, processToolResult, processOutputResult.",
    )
    error_processors: ProcessorArray | None = Field(default=None, description="For processAPIError.")
    max_steps: int | None = Field(
        default=None,
        ge=0,
        description="Maximum number of steps; default: 5, or no limit with `stopWhen`; 0 means the default (R-LP-1).",
    )
    max_processor_retries: int | None = Field(
        default=None,
        ge=0,
        description="How often processors may have the model asked again, per run; default: 10 with "
        "`errorProcessors`, else 0 (R-AB-22).",
    )
    max_retries: int | None = Field(
        default=None, ge=0, description="Retries of one model call; default: 0 (R-MS-3)."
    )
    model_settings: ModelSettings | None = Field(
        default=None,
        description="`temperature`, `maxOutputTokens`, `topP`, `topK`, `presencePenalty`, `frequencyPenalty`, "
        "`stopSequences`, `seed`, `maxRetries`, `headers`, `timeout` (milliseconds; or by name: `totalMs`, `stepMs`, "
        "`firstChunkMs`, `chunkMs`). Any other name is not sent; it is an error in a request and from a hook, and in "
        "a file `procession check` warns of it. Options of one provider belong in `providerOptions`. What LiteLLM "
        "knows the provider not to accept (a setting, `toolChoice`, the tools, or the schema of `structuredOutput`) "
        "is silently left out. Merged deeply (R-MS-1).",
    )
    provider_options: JsonObject | None = Field(
        default=None, description="Options by provider; merged deeply (R-MS-2)."
    )
    tool_choice: ToolChoice | None = Field(default=None, description="Default: `auto`.")
    active_tools: list[str] | None = Field(
        default=None, description="Names of the tools that the model is shown; default: all."
    )
    structured_output: StructuredOutput | None = Field(
        default=None, description="Ask for an object instead of free text."
    )
    stop_when: list[AnyProcessor] | None = Field(
        default=None,
        description="Stop conditions (R-LP-3): `step-count-is` (option `count`), `has-tool-call` (option "
        "`toolName`), or those of plugins.",
    )
    prepare_step: AnyProcessor | None = Field(
        default=None,
        description="A processor whose processInputStep runs after the whole input array (R-IS-11).",
    )
    require_tool_approval: bool | None = Field(
        default=None,
        description="Tool calls wait for a person; a tool's own `requireApproval` takes precedence (R-AP-1).",
    )
    include_raw_chunks: bool | None = Field(
        default=None, description="Also send the provider's events as `raw` chunks."
    )
    timeout: float | None = Field(
        default=None,
        gt=0,
        le=LONGEST_RUN,
        description="Seconds after which the run ends with an error, at most a year; default: PROCESSION_RUN_TIMEOUT.",
    )

    def unknown_settings(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Settings of model calls that do not exist: the place of each, and what its author is told."""
        for place, told in unknown_settings(self.model_settings or {}):
            yield ("modelSettings", *place), told
        for index, entry in enumerate(self.model if isinstance(self.model, list) else ()):
            for place, told in unknown_settings(entry.model_settings):
                yield ("model", index, "modelSettings", *place), told


class Agent(AgentOptions):
    """An agent: a name, a model, and its processors."""

    name: str = Field(
        min_length=1,
        max_length=200,
        pattern=TOKEN_PATTERN,
        description="Name of the agent, a token of the request's subject.",
    )
    description: str | None = Field(default=None, description="For people.")
    tools: list[AnyTool] = Field(default_factory=list, description="What the model may call.")
    memory: MemoryConfig | None = Field(default=None, description="Default: the agent remembers nothing.")
    api_base: str | None = Field(
        default=None,
        description="Base URL for calls of `model`, not of those that processors call; default: PROCESSION_API_BASE, "
        "else the provider's own.",
    )
