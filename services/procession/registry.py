"""What is installed: processors, tools, factories and stop conditions, by id.

Everything registers alike: an entry point in `procession.processors`, `procession.tools`, `procession.factories` or
`procession.stop_conditions`, or a plugin module with a function `register(registry)`. Ids from the wire select among
what is registered and can do nothing else.
"""

import importlib
import importlib.metadata
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

from procession.args import RequestContext
from procession.errors import UnknownComponentError
from procession.processor import Processor
from procession.tools import Tool
from procession_schemas.messages import StepResult

Factory = Callable[[RequestContext, dict[str, Any]], "list[Any] | Awaitable[list[Any]]"]
"""Builds an array of processor refs (ids, or `{"id", "options"}`) for one request (R-CF-2)."""
StopCondition = Callable[[list[StepResult], dict[str, Any]], bool]
"""Given the steps so far and its options: whether the run stops (R-LP-3)."""

T = TypeVar("T")
_GROUPS = ("processors", "tools", "factories", "stop_conditions")


@dataclass(frozen=True, slots=True)
class _Unloaded:
    """What an entry point names, before anybody asked for it."""

    load: Callable[[], Any]


class Components(MutableMapping[str, T]):
    """Components by id; one from an entry point is loaded when it is first asked for.

    A service so pays only for what its agents use, and one that lacks another service's libraries still starts.
    """

    def __init__(self) -> None:
        self._known: dict[str, T | _Unloaded] = {}

    def __getitem__(self, id: str) -> T:  # noqa: A002 - the contract's word
        """The component.

        Raises:
            UnknownComponentError: A library that it needs is not installed.
            KeyError: There is none with that id.
        """
        found = self._known[id]
        if isinstance(found, _Unloaded):
            try:
                found = self._known[id] = cast("T", found.load())
            except ModuleNotFoundError as error:
                missing = f"{id} needs the module {error.name}, which is not installed here"
                raise UnknownComponentError(f"{missing}; see which extra of procession has it") from error
        return found

    def __setitem__(self, id: str, component: T) -> None:  # noqa: A002
        self._known[id] = component

    def __delitem__(self, id: str) -> None:  # noqa: A002
        del self._known[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, id: object) -> bool:  # noqa: A002
        return id in self._known

    def add_unloaded(self, id: str, load: Callable[[], Any]) -> None:  # noqa: A002
        """Adds a component that `load` gives when it is needed."""
        self._known[id] = _Unloaded(load)


class Registry:
    """The installed components of one process."""

    def __init__(self) -> None:
        self.processors: Components[type[Processor[Any]]] = Components()
        self.tools: Components[type[Tool]] = Components()
        self.factories: Components[Factory] = Components()
        self.stop_conditions: Components[StopCondition] = Components()

    @classmethod
    def load(cls, plugins: Iterable[str] = ()) -> Self:
        """Collects every entry point, then lets each plugin module register its own.

        Raises:
            UnknownComponentError: A plugin module has no function `register`.
        """
        registry = cls()
        for group in _GROUPS:
            for point in importlib.metadata.entry_points(group=f"procession.{group}"):
                getattr(registry, group).add_unloaded(point.name, point.load)
        for name in plugins:
            module = importlib.import_module(name)
            if not callable(getattr(module, "register", None)):
                raise UnknownComponentError(f"plugin {name} has no function register(registry)")
            module.register(registry)
        return registry

    def add_processor(self, processor: type[Processor[Any]]) -> None:
        """Registers a processor class under its id."""
        self.processors[processor.id] = processor

    def add_tool(self, tool: type[Tool]) -> None:
        """Registers a tool class under its id."""
        self.tools[tool.id] = tool

    def processor(self, id: str) -> type[Processor[Any]]:  # noqa: A002 - the contract's word
        """The processor class with that id.

        Raises:
            UnknownComponentError: None is registered; the message lists the nearest ids.
        """
        return _find(self.processors, id, "processor")

    def tool(self, id: str) -> type[Tool]:  # noqa: A002 - the contract's word
        """The tool class with that id; raises UnknownComponentError."""
        return _find(self.tools, id, "tool")

    def factory(self, name: str) -> Factory:
        """The function of that name that makes arrays; raises UnknownComponentError."""
        return _find(self.factories, name, "factory")

    async def make_array(self, factory: str, context: RequestContext, options: dict[str, Any]) -> list[Any]:
        """Calls a factory; raises UnknownComponentError when none has that name."""
        made = self.factory(factory)(context, options)
        return list(await made if inspect.isawaitable(made) else made)

    def stop_condition(self, id: str) -> StopCondition:  # noqa: A002 - the contract's word
        """The stop condition with that id; raises UnknownComponentError."""
        return _find(self.stop_conditions, id, "stop condition")


def _find(table: Mapping[str, T], id: str, kind: str) -> T:  # noqa: A002
    if id in table:
        return table[id]
    near = sorted(table, key=lambda known: (not known.startswith(id[:3]), known))[:8]
    known = ", ".join(near) or "none"
    raise UnknownComponentError(f"unknown {kind} {id!r}; registered: {known}")
