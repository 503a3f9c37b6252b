"""Synthetic load: answers of a given size and pace, with tool steps and errors at given calls.

A request is configured by, later ones winning, `[[mock k=v k=v]]` in the first user message, the model name
`mock:k=v,k=v`, and the header `x-mock: k=v;k=v`. The keys are the fields of `Load`; times are milliseconds.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from procession_services.demo_model.answers import Answer, Break, Refusal, Reply, ToolCall, Usage
from procession_services.demo_model.conversation import (
    Body,
    InvalidRequestError,
    Message,
    last_turn,
    messages_of,
    prompt_tokens,
    text_of,
)
from procession_services.demo_model.misfits import misfits

_IN_MESSAGE: Final = re.compile(r"\[\[mock ([^\]]*)\]\]")
_PHRASE: Final = "every word of this text is nothing but load and says so again until enough bytes are sent "
_STRIDE: Final = 5
_TOKENS_PER_TOOL_CALL: Final = 10


class Load(BaseModel):
    """The keys of a synthetic request.

    `tools=2` makes the first two calls of a conversation tool steps, `tool_at=0|3` exactly the given ones.
    `err=429@0|1` refuses calls 0 and 1 (without `@` every call), `mid=5@0` breaks call 0 after five chunks.
    Calls are counted per `run` when it is given, else by the assistant messages since the last user message.
    `ts=1` begins every chunk with `@<CLOCK_MONOTONIC in ns>@`, taken when it is sent. Negative `pt` and `ct`
    (tokens of prompt and completion) mean an estimate.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    chunks: int = Field(default=100, ge=0)
    bytes: int = Field(default=20, ge=0, le=1_000_000)
    delay: float = Field(default=0.0, ge=0)
    ttft: float = Field(default=0.0, ge=0)
    coalesce: int = Field(default=1, ge=1)
    ts: bool = False
    tools: int = Field(default=0, ge=0)
    tool_at: str = Field(default="", pattern=r"^(\d+(\|\d+)*)?$")
    tool_name: str = ""
    tool_calls: int = Field(default=1, ge=0)
    tool_args: str = ""
    tool_text: int = Field(default=0, ge=0)
    reasoning: int = Field(default=0, ge=0)
    err: str = Field(default="", pattern=r"^([45]\d\d(@\d+(\|\d+)*)?)?$")
    mid: str = Field(default="", pattern=r"^(\d+(@\d+(\|\d+)*)?)?$")
    mid_kind: Literal["event", "drop", "garbage"] = "event"
    run: str = ""
    pt: int = -1
    ct: int = -1
    usage: Literal["auto", "always", "never"] = "auto"
    finish: str = "stop"


class SyntheticText(Sequence[str]):
    """`chunks` texts of `size` ASCII bytes, made when asked for; `stamped` ones tell when that was."""

    def __init__(self, chunks: int, size: int, *, stamped: bool) -> None:
        self._indices = range(chunks)
        self._size = size
        self._stamped = stamped
        self._words = _PHRASE * (size // len(_PHRASE) + 2)

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[position] for position in self._indices[index]]
        position = self._indices[index]
        if self._stamped:
            return f"@{time.monotonic_ns()}@".ljust(self._size, "x")
        start = position * _STRIDE % len(_PHRASE)
        return self._words[start : start + self._size]


def load_of(model_keys: str | None, header: str | None, messages: Sequence[Message]) -> Load | None:
    """Return the synthetic load that a request asks for, or None when it asks for none.

    Args:
        model_keys: what follows `mock:` in the model name; None when the model is another one.
        header: the value of `x-mock`.
        messages: the request's; the first one of the user may carry keys.

    Raises:
        InvalidRequestError: for an unknown key or a value that does not fit; the message names it.
    """
    first = next((text_of(message) for message in messages if message.get("role") == "user"), "")
    inline = _IN_MESSAGE.search(first) if "[[mock " in first else None
    if inline is None and model_keys is None and header is None:
        return None
    return _load(inline[1] if inline else "", model_keys or "", header or "")


@lru_cache(maxsize=256)
def _load(inline: str, model_keys: str, header: str) -> Load:
    keys = _parse(inline, " ") | _parse(model_keys, ",") | _parse(header, ";")
    try:
        return Load.model_validate(keys)
    except ValidationError as error:
        problems = (f"mock key {where}: {what}" for where, what in misfits(error, keys, Load))
        raise InvalidRequestError("; ".join(problems)) from error


def _parse(text: str, separator: str) -> dict[str, str]:
    """Split at separators that a new key follows, so that JSON values may contain them."""
    items = re.split(rf"\s*{separator}\s*(?=\w+=)", text.strip())
    pairs = (item.rstrip(separator + " ").partition("=") for item in items)
    return {key.strip(): value for key, _, value in pairs if key.strip()}


class SyntheticModel:
    """Answers synthetic requests; remembers nothing but the calls of each `run`."""

    def __init__(self) -> None:
        self._runs: dict[str, int] = {}

    def clear(self) -> None:
        """Forget the runs."""
        self._runs.clear()

    def answer(self, load: Load, body: Body) -> Answer:
        """Return the answer to the next call of the conversation."""
        messages = messages_of(body)
        call = self._call_index(load.run, messages)
        status = _value_at(load.err, call)
        if status is not None:
            return Refusal(status, f"synthetic error {status}", {"retry-after": "0"} if status == 429 else {})  # noqa: PLR2004
        return _reply(load, body, messages, call)

    def _call_index(self, run: str, messages: Sequence[Message]) -> int:
        if run:
            call = self._runs.get(run, 0)
            self._runs[run] = call + 1
            return call
        return sum(message.get("role") == "assistant" for message in last_turn(messages))


def _reply(load: Load, body: Body, messages: Sequence[Message], call: int) -> Reply:
    is_tool_step = call in _indices(load.tool_at) if load.tool_at else call < load.tools
    tool_calls = _tool_calls(load, body, call) if is_tool_step else ()
    chunks = load.tool_text if is_tool_step else load.chunks
    estimate = chunks + _TOKENS_PER_TOOL_CALL * len(tool_calls)
    usage = Usage(
        load.pt if load.pt >= 0 else prompt_tokens(messages),
        load.ct if load.ct >= 0 else estimate,
    )
    mid = _value_at(load.mid, call)
    breaks = mid is not None and mid <= chunks
    return Reply(
        usage=usage,
        text=SyntheticText(mid if breaks and mid is not None else chunks, load.bytes, stamped=load.ts),
        reasoning=[f"think {index} " for index in range(load.reasoning)],
        tool_calls=tool_calls,
        finish_reason="tool_calls" if tool_calls else load.finish.replace("-", "_"),
        breaks=Break(load.mid_kind, "synthetic mid-stream error") if breaks else None,
        delay=load.ttft / 1000,
        chunk_delay=load.delay / 1000,
        coalesce=load.coalesce,
        send_usage=load.usage,
    )


def _tool_calls(load: Load, body: Body, call: int) -> tuple[ToolCall, ...]:
    name = load.tool_name or _first_tool(body)
    arguments = load.tool_args or json.dumps({"x": call})
    return tuple(
        ToolCall(f"call_{call}_{number}", name, arguments, (arguments,)) for number in range(load.tool_calls)
    )


def _first_tool(body: Body) -> str:
    tools: Sequence[Mapping[str, Any]] = body.get("tools") or ()
    return str(tools[0]["function"]["name"]) if tools else "tool"


def _indices(text: str) -> set[int]:
    return {int(index) for index in text.split("|")}


def _value_at(text: str, call: int) -> int | None:
    """Return 429 for "429@0|1" at calls 0 and 1, and for "429" at every call."""
    value, at, calls = text.partition("@")
    if not value or (at and call not in _indices(calls)):
        return None
    return int(value)
