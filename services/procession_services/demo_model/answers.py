"""What the model answers, before it is bytes: a `Reply`, a `Refusal` or a `Hangup`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of a call."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call; `arguments` is JSON text, as the model wrote it.

    A stream carries id, name and arguments in one delta, or, when there are `pieces`, id and name first and
    then the arguments piece by piece.
    """

    id: str
    name: str
    arguments: str
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Break:
    """How a stream goes wrong: an error event, a cut connection, or an event that is not JSON."""

    kind: Literal["event", "drop", "garbage"]
    message: str


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; it is sent in the order reasoning, text, tool calls, finish reason, usage.

    `text` is read chunk by chunk at the time of sending; `breaks` ends a stream right after it. Times are
    seconds: `delay` passes before the first byte, `chunk_delay` between two text chunks. `coalesce` is the
    number of text chunks per socket write.
    """

    usage: Usage
    text: Sequence[str] = ()
    reasoning: Sequence[str] = ()
    tool_calls: Sequence[ToolCall] = ()
    finish_reason: str = "stop"
    breaks: Break | None = None
    delay: float = 0.0
    chunk_delay: float = 0.0
    coalesce: int = 1
    send_usage: Literal["auto", "always", "never"] = "auto"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP error in place of an answer, after `delay` seconds."""

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Hangup:
    """The connection closes without an answer, after `delay` seconds."""

    delay: float = 0.0


Answer = Reply | Refusal | Hangup
