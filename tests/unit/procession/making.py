"""Processors made on the spot, for tests of what runs them."""

from collections.abc import Callable
from typing import Any

from procession.calls import Calls, Link
from procession.context import RunContext
from procession.message_list import MessageList
from procession.processor import METHODS, Options, Processor

NOW = "2026-01-01T00:00:00.000Z"
FOREIGN = MessageList(new_id=iter("abc").__next__, now=lambda: NOW)
"""A list that no hook was given."""


class _Base(Processor[Options]):
    pass


def processor(name: str = "p", /, **members: Any) -> type[Processor[Any]]:
    """A processor class: hooks as functions of `args` (sync or async), and class attributes."""
    body = {key: _method(value) if key in METHODS.values() else value for key, value in members.items()}
    return type(name, (_Base,), {"id": name, **body})


def on(method: str, *hooks: Callable[[Any], Any]) -> list[Any]:
    """Processors with the ids `a`, `b`, ... that have this hook."""
    return [processor(name, **{method: hook}) for name, hook in zip("abcdef", hooks, strict=False)]


def _method(hook: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda _self, args: hook(args)


def link(kind: Any, place: int = 0, **how: Any) -> Link:
    """A processor in an array."""
    return Link(kind.build(), kind.id, place, **how)


def context() -> RunContext:
    """The context of a run that has only begun."""
    messages = MessageList(new_id=map("m{}".format, range(1000)).__next__, now=lambda: NOW)
    return RunContext(run_id="r", tenant="t", agent="a", message_id="answer", messages=messages)


def calls() -> Calls:
    """Calls on a clock that stands still."""
    return Calls(clock=lambda: 0)


def delta(text: str, block: str = "b") -> Any:
    """A piece of text."""
    return {"type": "text-delta", "payload": {"id": block, "text": text}}


def retext(part: Any, text: str) -> Any:
    """The same piece with another text."""
    return {**part, "payload": {**part["payload"], "text": text}}


def texts(chunks: Any) -> list[str]:
    """The texts of chunks."""
    return [chunk["payload"]["text"] for chunk in chunks if chunk["type"] == "text-delta"]
