"""Scripted answers: the calls of a script are played in order, the last one again and again.

The format is that of the conformance scenarios' `model_script`; its spelling is the contract's.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from procession_services.demo_model.answers import Answer, Break, Hangup, Refusal, Reply, ToolCall, Usage
from procession_services.demo_model.conversation import Body, InvalidRequestError
from procession_services.demo_model.misfits import misfits

# The arguments of a streamed tool input come in pieces of so many characters.
_PIECE: Final = 16
Milliseconds = Annotated[float, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScriptedToolCall(_Part):
    """A tool call; `arguments` are an object, or the raw text that the model is to have written."""

    id: str
    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)

    def to_answer(self, *, streamed: bool) -> ToolCall:
        """Return the call as the model makes it, in pieces when its input is streamed."""
        raw = self.arguments
        text = raw if isinstance(raw, str) else json.dumps(raw, separators=(",", ":"), ensure_ascii=False)
        starts = range(0, len(text), _PIECE) if streamed else ()
        return ToolCall(self.id, self.name, text, tuple(text[start : start + _PIECE] for start in starts))


class ScriptedUsage(_Part):
    """The tokens of a call."""

    prompt_tokens: int = Field(default=10, ge=0)
    completion_tokens: int = Field(default=5, ge=0)


class ScriptedError(_Part):
    """An error before any output: HTTP `status`, or with `network` a connection closed without an answer.

    `retryable`, where given, is told to the client in the header `x-should-retry`, which OpenAI's SDKs obey.
    """

    status: int = Field(default=500, ge=400, le=599)
    message: str = "scripted error"
    retryable: bool | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    network: bool = False

    def to_answer(self, delay: float) -> Refusal | Hangup:
        """Return the error as it is answered."""
        if self.network:
            return Hangup(delay)
        retry = {} if self.retryable is None else {"x-should-retry": str(self.retryable).lower()}
        return Refusal(self.status, self.message, retry | self.headers, delay)


class ScriptedBreak(_Part):
    """An error after the text chunks."""

    kind: Literal["event", "drop", "garbage"] = "event"
    message: str = "scripted mid-stream error"


class ScriptedCall(_Part):
    """One call of a script; `finish_reason` has hyphens (the contract) or underscores (OpenAI)."""

    chunks: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    tool_calls: tuple[ScriptedToolCall, ...] = ()
    stream_tool_input: bool = False
    finish_reason: str | None = None
    usage: ScriptedUsage = ScriptedUsage()
    delay_ms: Milliseconds = 0
    chunk_delay_ms: Milliseconds = 0
    error: ScriptedError | None = None
    mid_error: ScriptedBreak | None = None

    @model_validator(mode="after")
    def _has_one_outcome(self) -> "ScriptedCall":
        if self.error and self.model_fields_set - {"error", "delay_ms"}:
            raise ValueError("`error` comes before any output: beside it only `delay_ms` is allowed")
        if self.mid_error and self.tool_calls:
            raise ValueError("`mid_error` comes before the tool calls: drop one of them")
        return self

    def to_answer(self) -> Answer:
        """Return what the model answers."""
        delay = self.delay_ms / 1000
        if self.error is not None:
            return self.error.to_answer(delay)
        finish = self.finish_reason or ("tool_calls" if self.tool_calls else "stop")
        return Reply(
            usage=Usage(self.usage.prompt_tokens, self.usage.completion_tokens),
            text=self.chunks,
            reasoning=self.reasoning,
            tool_calls=tuple(call.to_answer(streamed=self.stream_tool_input) for call in self.tool_calls),
            finish_reason=finish.replace("-", "_"),
            breaks=Break(self.mid_error.kind, self.mid_error.message) if self.mid_error else None,
            delay=delay,
            chunk_delay=self.chunk_delay_ms / 1000,
        )


_CALLS: Final = TypeAdapter(Annotated[tuple[ScriptedCall, ...], Field(min_length=1)])


@dataclass(slots=True)
class _Script:
    answers: tuple[Answer, ...]
    requests: list[Body] = field(default_factory=list)


class ScriptBook:
    """The scripts of a server, by id, with the requests that each of them has received."""

    def __init__(self) -> None:
        self._scripts: dict[str, _Script] = {}

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the scripts."""
        return tuple(self._scripts)

    def add(self, script_id: str, calls: object) -> None:
        """Set a script; an older one of the same id is forgotten with its requests.

        Raises:
            InvalidRequestError: when `calls` is not a list of at least one call; the message says where.
        """
        try:
            parsed = _CALLS.validate_python(calls)
        except ValidationError as error:
            found = misfits(error, calls, ScriptedCall)
            problems = [f"calls{'.' if where else ''}{where}: {what}" for where, what in found]
            raise InvalidRequestError("; ".join(problems)) from error
        self._scripts[script_id] = _Script(tuple(call.to_answer() for call in parsed))

    def answer(self, script_id: str, body: Body) -> Answer:
        """Note the request and return the next answer; the last one repeats."""
        script = self._scripts.get(script_id)
        if script is None:
            return Refusal(404, f"no script {script_id!r}: POST it to /mock/script first")
        script.requests.append(body)
        return script.answers[min(len(script.requests), len(script.answers)) - 1]

    def requests(self, script_id: str) -> list[Mapping[str, Any]] | None:
        """Return the bodies that a script has received, in order, or None when there is no such script."""
        script = self._scripts.get(script_id)
        return None if script is None else list(script.requests)

    def clear(self) -> None:
        """Forget every script."""
        self._scripts.clear()
