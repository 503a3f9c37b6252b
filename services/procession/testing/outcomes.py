"""What a call of the kit gives back: what the hook did, and the tripwire where it aborted."""

from dataclasses import dataclass, field
from typing import Any

from procession.errors import TripWire
from procession.messages import text_of
from procession_schemas.chunks import Chunk
from procession_schemas.messages import Message, SystemMessage
from procession_schemas.work import StepConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The conversation after a hook.

    Attributes:
        tripwire: The abort that ended the hook: `reason`, `retry`, `metadata`, `processor_id`; None if there was none.
        messages: The conversation, oldest first, without system messages.
        system: The system messages, in prompt order.
        written: The `data-*` chunks that this call wrote and that reached the client.
    """

    tripwire: TripWire | None = None
    messages: list[Message] = field(default_factory=list)
    system: list[SystemMessage] = field(default_factory=list)
    written: list[Chunk] = field(default_factory=list)

    @property
    def blocked(self) -> TripWire:
        """The tripwire; raises AssertionError where the hook did not abort."""
        assert self.tripwire is not None, "the processor did not abort"
        return self.tripwire

    @property
    def texts(self) -> list[str]:
        """The text of each message."""
        return [text_of(message) for message in self.messages]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome(Outcome):
    """After `process_input_step`: `config` is what the model would be called with."""

    config: StepConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOutcome(Outcome):
    """After `process_llm_request`: the prompt to send, or the response that answers in the model's place."""

    prompt: list[dict[str, Any]]
    response: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamOutcome(Outcome):
    """After a stream: the chunks that the client got, and what the run makes of the answer (R-OS-7).

    Attributes:
        chunks: In order, with data chunks written meanwhile; `finish` and `response-metadata` never reach the client.
        text: The text of the answer as the processors left it.
        tool_calls: The tool calls that would run.
    """

    chunks: list[Chunk]
    text: str
    tool_calls: list[dict[str, Any]]

    @property
    def deltas(self) -> list[str]:
        """The pieces of text as the client got them."""
        return [chunk["payload"]["text"] for chunk in self.chunks if chunk["type"] == "text-delta"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolOutcome(Outcome):
    """After `process_tool_result`: the result as it is recorded and as the model sees it; None where it has failed."""

    result: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorOutcome(Outcome):
    """After `process_api_error`: whether the step is tried again."""

    retry: bool
