"""Processors, tools and stop conditions that a test writes inline, for services that run in the test's own process."""

import inspect
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

from procession.processor import METHODS, Hook, Options, Processor
from procession.registry import Registry
from procession.tools import Tool, ToolContext
from procession_schemas.messages import StepResult

__all__ = ["processor", "register", "same", "stop", "tool"]

_hooks: dict[str, dict[str, Callable[..., Any]]] = {}
_tools: dict[str, Callable[[ToolContext], Any]] = {}
_stops: dict[str, Callable[[list[StepResult]], Any]] = {}
_sees_data: set[str] = set()
_keys = map("k{}".format, itertools.count())


def processor(name: str, *, data: bool = False, **hooks: Any) -> dict[str, Any]:
    """A processor with these hooks (`process_input=...`, `on_violation=...`); with `data` it gets `data-*` chunks.

    A hook of two parameters gets the processor, too.
    """
    key = next(_keys)
    _hooks[key] = hooks
    if data:
        _sees_data.add(key)
    return {"id": "hooked", "as": name, "options": {"key": key}}


def tool(name: str, execute: Callable[[ToolContext], Any]) -> dict[str, Any]:
    """A tool without arguments."""
    key = next(_keys)
    _tools[key] = execute
    return {"id": "hooked-tool", "as": name, "options": {"key": key}}


def stop(condition: Callable[[list[StepResult]], Any]) -> dict[str, Any]:
    """A stop condition, which may be an `async def`."""
    key = next(_keys)
    _stops[key] = condition
    return {"id": "hooked-stop", "options": {"key": key}}


def same(args: Any) -> Any:
    """A stream hook that passes everything on."""
    return args.part


class Keyed(Options):
    key: str


class Hooked(Processor[Keyed]):
    id: ClassVar[str] = "hooked"

    def __init__(self, options: Keyed) -> None:
        super().__init__(options)
        self.process_data_parts = options.key in _sees_data

    @classmethod
    def hooks_for(cls, options: dict[str, Any]) -> frozenset[Hook]:
        return frozenset(hook for hook, method in METHODS.items() if method in _hooks[options["key"]])

    @classmethod
    def sees_data_parts(cls, options: dict[str, Any]) -> bool:
        return options["key"] in _sees_data

    async def on_violation(self, violation: Any) -> None:
        told = _hooks[self.options.key].get("on_violation")
        if told:
            told(violation)


def _arity(hook: Callable[..., Any]) -> int:
    return len(inspect.signature(hook).parameters)


def _calling(method: str) -> Callable[[Hooked, Any], Any]:
    async def call(self: Hooked, args: Any) -> Any:
        hook = _hooks[self.options.key][method]
        value = hook(args) if _arity(hook) == 1 else hook(args, self)
        return await value if inspect.isawaitable(value) else value

    return call


for _method in METHODS.values():
    setattr(Hooked, _method, _calling(_method))


class HookedTool(Tool):
    id = "hooked-tool"
    options_type = Keyed
    parameters: dict[str, Any] = {"type": "object", "properties": {}}  # noqa: RUF012 - as the base class has it

    async def execute(self, _args: Any, context: ToolContext) -> Any:
        value = _tools[self.options.key](context)
        return await value if inspect.isawaitable(value) else value


def hooked_stop(steps: list[StepResult], options: Keyed) -> Any:
    """Asks what the test wrote."""
    return _stops[options.key](steps)


def register(registry: Registry) -> None:
    """Adds all."""
    registry.add_processor(Hooked)
    registry.add_tool(HookedTool)
    registry.stop_conditions["hooked-stop"] = hooked_stop
