"""What an agent remembers, as people configure it; a request may override every option."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from procession_schemas.base import JsonObject, StrictModel

LastMessages = Annotated[int, Field(ge=0, strict=True)] | Literal[False]
Scope = Literal["thread", "resource"]
Concurrency = Literal["queue", "reject", "interrupt"]
MEMORY_KEY: Final = "MastraMemory"
"""Where the request context of a run has its thread, its resource and its memory options (R-RX-2)."""
THREAD_KEY: Final = "mastra__threadId"
RESOURCE_KEY: Final = "mastra__resourceId"
"""What of a request context counts more than the thread and the resource of the memory options (R-RX-2)."""
LONGEST_PAGE: Final = 1000
"""Messages or threads in one request to the memory service, and in one answer."""
ThreadName = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""The name of a thread or a resource: it travels in headers, so it has no control characters."""


def _is_embedder(name: str) -> str:
    if "/" not in name and name not in ("auto", "onnx", "lexical"):
        raise ValueError(
            "should be auto, onnx, lexical, or provider/model as in openai/text-embedding-3-small"
        )
    return name


EmbedderName = Annotated[str, AfterValidator(_is_embedder)]
Tokens = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class HistoryBudget(StrictModel):
    """How many tokens of history a run may be given (R-WIRE-6)."""

    max_tokens: Tokens = Field(
        description="Above this number the oldest recalled messages are left out; 0: no history."
    )
    at_max_remove_tokens: Tokens | None = Field(
        default=None,
        description="How many tokens below the limit the history is then cut to; default: a quarter of the limit.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.at_max_remove_tokens is not None and self.at_max_remove_tokens > self.max_tokens:
            raise ValueError("atMaxRemoveTokens must not be more than maxTokens")
        return self

    @property
    def removed_tokens(self) -> float:
        """How many tokens below the limit the history is cut to."""
        return self.max_tokens * 0.25 if self.at_max_remove_tokens is None else self.at_max_remove_tokens


class MessageRange(StrictModel):
    """How many neighbouring messages are recalled with each hit."""

    before: int = Field(default=1, ge=0, description="Messages before the hit.")
    after: int = Field(default=1, ge=0, description="Messages after the hit.")


class SemanticRecallConfig(StrictModel):
    """Recall of old messages that are similar to the question."""

    top_k: int = Field(default=4, ge=1, le=100, description="Number of hits to ask the index for.")
    message_range: Annotated[int, Field(ge=0)] | MessageRange = Field(
        default=1,
        description="Messages to recall around each hit: one number for both sides, or `{before, after}`.",
    )
    scope: Scope = Field(
        default="resource", description="Search this thread, or all threads of the resource."
    )
    threshold: float | None = Field(
        default=None, description="Only hits with at least this score, which is at most 1."
    )
    embedder: EmbedderName | None = Field(
        default=None, description="`provider/model`, `onnx` or `lexical`; default: PROCESSION_EMBEDDER."
    )
    embedder_options: JsonObject = Field(
        default_factory=dict,
        description="Options for an embedding model (`provider/model`), such as `{dimensions: 512}`.",
    )
    index_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Name of an index that is separate from the tenant's other ones.",
    )


class WorkingMemoryTemplate(StrictModel):
    """The form that working memory should have."""

    format: Literal["markdown", "json"] = Field(default="markdown", description="Format of the note.")
    content: str | JsonObject = Field(description="The template: text, or for `json` also a JSON Schema.")


def _as_template(value: object) -> object:
    return {"format": "markdown", "content": value} if isinstance(value, str) else value


Template = Annotated[
    WorkingMemoryTemplate, BeforeValidator(_as_template, json_schema_input_type=str | WorkingMemoryTemplate)
]


class WorkingMemoryConfig(StrictModel):
    """Notes that the model keeps about its user, and a tool to change them."""

    enabled: bool = Field(default=True, description="False: no working memory.")
    scope: Scope = Field(
        default="resource", description="One note for each thread, or for all threads of a resource."
    )
    template: Template | None = Field(default=None, description="Markdown text, or `{format, content}`.")
    schema_: JsonObject | None = Field(
        default=None, alias="schema", description="JSON Schema of the note, in place of a template."
    )
    version: Literal["stable", "vnext"] = Field(
        default="stable", description="`vnext`: the tool can add to the note and replace parts of it."
    )
    use_state_signals: bool = Field(
        default=False,
        description="Send the note as a signal when it changes, instead of as a system message.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.template is not None and self.schema_ is not None:
            raise ValueError("give either a template or a schema")
        return self


OBSERVING_MODEL: Final = "gemini/gemini-2.5-flash"
"""The reference's model for notes, as LiteLLM calls its provider."""
Activation = Annotated[float, Field(gt=0, le=1)]
BlockAfter = Annotated[float, Field(ge=1, allow_inf_nan=False)]
_MULTIPLES: Final = 2
"""A `blockAfter` below it is a multiple of its threshold, any other a number of tokens."""


def _block_tokens(block_after: float, threshold: int) -> float:
    """The tokens that `blockAfter` stands for.

    Raises:
        ValueError: They are less than the threshold.
    """
    tokens = block_after * threshold if block_after < _MULTIPLES else block_after
    if tokens < threshold:
        raise ValueError(
            f"blockAfter is {block_after:g} tokens, less than the threshold of {threshold}: give more, "
            "or a multiple from 1 to 2"
        )
    return tokens


class ObservationConfig(StrictModel):
    """When messages are turned into notes."""

    message_tokens: int = Field(
        default=30_000,
        gt=0,
        description="Tokens of messages that are not in notes yet, from which on notes are made.",
    )
    model: str | None = Field(default=None, description="`provider/model` of the observer.")
    buffer_tokens: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal[False] = Field(
        default=0.2,
        description="Notes are made in advance, in the background, each time this many tokens were added (below 1: "
        "this share of `messageTokens`). false: nothing is done in advance, not even reflection.",
    )
    buffer_activation: Activation = Field(
        default=0.8,
        description="Share of `messageTokens` that notes made in advance replace when there are too many messages.",
    )
    block_after: BlockAfter = Field(
        default=1.2,
        description="From this many tokens on, a run waits for the observer; below 2: a multiple of `messageTokens`.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        _block_tokens(self.block_after, self.message_tokens)
        if self.interval is not None and self.interval >= self.message_tokens:
            raise ValueError("bufferTokens must be less than messageTokens, or nothing would be noted ahead")
        return self

    @property
    def interval(self) -> float | None:
        """Tokens of messages that are noted ahead at a time; None: none are."""
        if self.buffer_tokens is False:
            return None
        return self.buffer_tokens * self.message_tokens if self.buffer_tokens < 1 else self.buffer_tokens

    @property
    def block_tokens(self) -> float:
        """Tokens of messages from which on a run waits for the observer."""
        return _block_tokens(self.block_after, self.message_tokens)

    @property
    def kept_tokens(self) -> float:
        """Tokens of messages that stay when notes made ahead take over."""
        return (1 - self.buffer_activation) * self.message_tokens


class ReflectionConfig(StrictModel):
    """When notes are condensed."""

    observation_tokens: int = Field(
        default=40_000, gt=0, description="Tokens of notes from which on they are condensed."
    )
    model: str | None = Field(default=None, description="`provider/model` of the reflector.")
    buffer_activation: Activation = Field(
        default=0.5,
        description="From this share of `observationTokens` on, notes are condensed in advance, in the background.",
    )
    block_after: BlockAfter = Field(
        default=1.2,
        description="From this many tokens on, a run waits for the reflector; below 2: a multiple of "
        "`observationTokens`.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        _block_tokens(self.block_after, self.observation_tokens)
        return self

    @property
    def ahead_tokens(self) -> float:
        """Tokens of notes from which on they are condensed ahead."""
        return self.buffer_activation * self.observation_tokens

    @property
    def block_tokens(self) -> float:
        """Tokens of notes from which on a run waits for the reflector."""
        return _block_tokens(self.block_after, self.observation_tokens)


class ObservationalConfig(StrictModel):
    """Notes that a model makes of long threads, which replace their oldest messages (R-OM)."""

    model: str | None = Field(
        default=None, description=f"`provider/model` of observer and reflector; default: {OBSERVING_MODEL}."
    )
    scope: Scope = Field(
        default="thread", description="Notes of one thread, or of all threads of a resource."
    )
    observation: ObservationConfig = Field(default_factory=ObservationConfig, description="The observer.")
    reflection: ReflectionConfig = Field(default_factory=ReflectionConfig, description="The reflector.")
    temporal_markers: bool = Field(
        default=False,
        description="Tell the model where a user's message came 10 minutes or more after the previous message.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.model is not None and (self.observation.model or self.reflection.model):
            raise ValueError("give either `model`, or a model for observation and reflection")
        return self


class Retention(StrictModel):
    """What a thread keeps; other messages are deleted when the next turn is saved."""

    max_age_days: float | None = Field(
        default=None, gt=0, description="Messages older than this are deleted."
    )
    max_messages: int | None = Field(
        default=None, ge=1, description="Only this many of the newest messages are kept."
    )


def _switch(value: object) -> object:
    return {} if value is True else value


SemanticRecallSwitch = Annotated[
    SemanticRecallConfig | Literal[False],
    BeforeValidator(_switch, json_schema_input_type=SemanticRecallConfig | bool),
]
WorkingMemorySwitch = Annotated[
    WorkingMemoryConfig | Literal[False],
    BeforeValidator(_switch, json_schema_input_type=WorkingMemoryConfig | bool),
]
ObservationalSwitch = Annotated[
    ObservationalConfig | Literal[False],
    BeforeValidator(_switch, json_schema_input_type=ObservationalConfig | bool),
]


class MemoryOptions(StrictModel):
    """What both an agent and a request may say about memory; the request's value wins (R-WIRE-9)."""

    last_messages: LastMessages | None = Field(
        default=None,
        description="How many of the newest messages are recalled; 0 or false: no history. Default: 10, or no limit "
        "with `messageHistory`.",
    )
    message_history: HistoryBudget | None = Field(default=None, description="A token budget for the history.")
    semantic_recall: SemanticRecallSwitch | None = Field(
        default=None, description="Also recall messages that are similar to the question; default: off."
    )
    working_memory: WorkingMemorySwitch | None = Field(
        default=None, description="Notes about the user that the model keeps up to date; default: off."
    )
    observational_memory: ObservationalSwitch | None = Field(
        default=None,
        description="Turn old messages of long threads into notes, instead of `lastMessages`; default: off.",
    )
    read_only: bool | None = Field(default=None, description="Recall, but save nothing; default: false.")
    save: Literal["end", "eager"] | None = Field(
        default=None,
        description="`eager`: the user's message is stored before the model is asked; default: `end`.",
    )
    mark_partial: bool | None = Field(
        default=None,
        description="The answer of a cancelled run is stored as far as it got: mark it with the metadata "
        "`partial: true`; default: false.",
    )
    concurrency: Concurrency | None = Field(
        default=None,
        description="If other runs on the thread came first: wait for them, fail, or cancel them; default: `queue`. "
        "Runs that are `readOnly` never wait.",
    )
    retention: Retention | None = Field(default=None, description="What a thread keeps; default: everything.")


class MemoryConfig(MemoryOptions):
    """What an agent remembers. The request usually names thread and resource."""

    thread: ThreadName | None = Field(default=None, description="Thread to use if the request names none.")
    resource: ThreadName | None = Field(default=None, description="Owner of the thread, such as a user.")


class RequestMemory(MemoryOptions):
    """The memory of a request; it needs both thread and resource (R-ME-8). Its options override the agent's."""

    thread: ThreadName = Field(description="The conversation.")
    resource: ThreadName = Field(description="Owner of the conversation, such as a user.")


def history_limits(last_messages: LastMessages | None, budget: HistoryBudget | None) -> dict[str, Any]:
    """How much history is recalled (R-WIRE-6).

    Returns:
        `enabled`, and where they limit it `maxMessages`, `maxTokens` and `atMaxRemoveTokens`.
    """
    limits: dict[str, Any] = {"enabled": True}
    if last_messages is not None:
        limits["maxMessages"] = int(last_messages)
    if budget is not None:
        limits["maxTokens"] = budget.max_tokens
        limits["atMaxRemoveTokens"] = budget.removed_tokens
    limits["enabled"] = limits.get("maxMessages") != 0 and limits.get("maxTokens") != 0
    return limits
