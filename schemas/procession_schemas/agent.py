"""Agents and everything a person configures about them. Options keep the contract's names."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from procession_schemas.base import JsonObject, StrictModel


def _by_id(value: object) -> object:
    return {"id": value} if isinstance(value, str) else value


class ProcessorRef(StrictModel):
    """A processor of an agent: a registered id and its options. A bare string is an id without options."""

    id: str = Field(min_length=1, description="Registered processor id, for example `unicode-normalizer`.")
    options: JsonObject = Field(
        default_factory=dict, description="Options of that processor, either spelling."
    )
    as_: str | None = Field(
        default=None,
        alias="as",
        min_length=1,
        description="Instance id: state key and `processorId`; default: `id`.",
    )
    on_error: Literal["fail", "skip"] | None = Field(
        default=None, description="When a hook raises: end the run, or go on with the value unchanged (D-2)."
    )
    timeout: float | None = Field(default=None, gt=0, description="Seconds one hook call may take.")

    @property
    def instance(self) -> str:
        """The id under which this instance has its state and reports its violations."""
        return self.as_ or self.id


class ToolRef(StrictModel):
    """A tool of an agent: a registered id and its options. A bare string is an id without options."""

    id: str = Field(min_length=1, description="Registered tool id.")
    as_: str | None = Field(
        default=None, alias="as", min_length=1, description="Name the model sees; default: `id`."
    )
    options: JsonObject = Field(default_factory=dict, description="Options of that tool.")
    description: str | None = Field(default=None, description="Overrides the tool's own description.")
    parameters: JsonObject | None = Field(default=None, description="JSON Schema; overrides the tool's own.")
    require_approval: bool | None = Field(
        default=None, description="Suspend the run until a person approves."
    )
    timeout: float | None = Field(default=None, gt=0, description="Seconds one call may take.")

    @property
    def name(self) -> str:
        """The key of the tool, used everywhere (R-TL-5)."""
        return self.as_ or self.id


class FactoryRef(StrictModel):
    """A named function that builds an array of refs per request from the request context (R-CF-2)."""

    factory: str = Field(min_length=1, description="Registered factory name.")
    options: JsonObject = Field(default_factory=dict, description="Options handed to the factory.")


class ModelEntry(StrictModel):
    """One model of a fallback list (R-FB-1)."""

    model: str = Field(min_length=1)
    id: str | None = None
    max_retries: int | None = Field(default=None, ge=0)
    enabled: bool = True
    model_settings: JsonObject = Field(default_factory=dict)
    provider_options: JsonObject = Field(default_factory=dict)
    headers: dict[str, str] = Field(default_factory=dict)


class MemoryConfig(StrictModel):
    """What an agent remembers. Thread and resource usually come with the request."""

    last_messages: int | Literal[False] = Field(
        default=10, ge=0, description="Newest messages recalled; false: none."
    )
    thread: str | None = Field(default=None, min_length=1)
    resource: str | None = Field(default=None, min_length=1)
    read_only: bool = False


class StructuredOutput(StrictModel):
    """Structured output (R-SO-1)."""

    schema_: JsonObject = Field(alias="schema", description="JSON Schema of the object.")
    model: str | None = None
    error_strategy: Literal["strict", "warn", "fallback"] = "strict"
    fallback_value: Any = None
    instructions: str | None = None
    json_prompt_injection: bool = False


class ToolChoiceTool(StrictModel):
    """A demand for one tool."""

    type: Literal["tool"] = "tool"
    tool_name: str


AnyProcessor = Annotated[ProcessorRef, BeforeValidator(_by_id)]
AnyTool = Annotated[ToolRef, BeforeValidator(_by_id)]
ProcessorArray = list[AnyProcessor] | FactoryRef
ToolChoice = Literal["auto", "none", "required"] | ToolChoiceTool


class AgentOptions(StrictModel):
    """What both an agent and a single request may set; the request's value wins."""

    model: str | list[ModelEntry] | None = Field(
        default=None, description="`provider/name`, or a fallback list."
    )
    instructions: str | list[str] | None = None
    input_processors: ProcessorArray | None = None
    output_processors: ProcessorArray | None = None
    error_processors: ProcessorArray | None = None
    max_steps: int | None = Field(
        default=None, ge=0, description="Steps at the most; 0 counts as not given (R-LP-1)."
    )
    max_processor_retries: int | None = Field(
        default=None, ge=0, description="Retry budget of the run (R-AB-22)."
    )
    max_retries: int | None = Field(default=None, ge=0, description="Retries of one model call (R-MS-3).")
    model_settings: JsonObject | None = None
    provider_options: JsonObject | None = None
    tool_choice: ToolChoice | None = None
    active_tools: list[str] | None = None
    structured_output: StructuredOutput | None = None
    stop_when: list[AnyProcessor] | None = Field(
        default=None, description="Registered stop conditions (R-LP-3)."
    )
    prepare_step: AnyProcessor | None = Field(
        default=None,
        description="A processor whose processInputStep runs after the whole input array (R-IS-11).",
    )
    require_tool_approval: bool | None = None
    include_raw_chunks: bool | None = None
    timeout: float | None = Field(
        default=None, gt=0, description="Seconds until the run is ended with an error."
    )


class Agent(AgentOptions):
    """An agent: a name, a model, and its procession of processors."""

    name: str = Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_-]+$")
    description: str | None = None
    tools: list[AnyTool] = Field(default_factory=list)
    memory: MemoryConfig | None = None
    api_base: str | None = Field(
        default=None, description="Base URL of the model provider, where it is not the default."
    )
