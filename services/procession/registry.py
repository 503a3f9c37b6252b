"""What is installed: processors, tools, factories and stop conditions, by id.

Everything registers alike: an entry point in `procession.processors`, `procession.tools`, `procession.factories` or
`procession.stop_conditions`, or a plugin module with a function `register(registry)`. Ids from the wire select among
what is registered and can do nothing else.
"""

import importlib
import importlib.metadata
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from types import ModuleType
from typing import Any, Self, TypeVar, cast, get_type_hints

from pydantic import ValidationError

from procession.args import RequestContext
from procession.authors import by_author
from procession.errors import BrokenComponentError, PluginError, UnknownComponentError
from procession.processor import Options, Processor, invalid_options
from procession.tools import Tool
from procession_schemas.messages import StepResult
from procession_schemas.validation import short

Factory = Callable[[RequestContext, dict[str, Any]], "list[Any] | Awaitable[list[Any]]"]
"""Builds an array of processor refs (ids, or `{"id", "options"}`) for one request (R-CF-2)."""
StopCondition = Callable[[list[StepResult], Any], "bool | Awaitable[bool]"]
"""Given the steps so far and its options: whether the run stops (R-LP-3).

The options come as a dict, or as the model, derived from `Options`, with which the second parameter is annotated.
"""

T = TypeVar("T")
_GROUPS = ("processors", "tools", "factories", "stop_conditions")
_OF_A_FILE = re.compile(r"[/\\]|\.py$")
"""What the name of a file has, and that of a module rarely."""
_TOLD = 8
"""Ids that somebody is told who asks for another one."""


@dataclass(frozen=True, slots=True)
class _Unloaded:
    """What an entry point names, before anybody asked for it."""

    load: Callable[[], Any]
    module: str


class Components(MutableMapping[str, T]):
    """Components by id; one from an entry point is loaded when it is first asked for.

    So a service pays only for what its agents use, and starts even without the libraries of another service.
    """

    def __init__(self) -> None:
        self._known: dict[str, T | _Unloaded] = {}
        self._added: dict[str, T] = {}

    def __getitem__(self, id: str) -> T:  # noqa: A002 - the contract's word
        """The component.

        Raises:
            UnknownComponentError: A library that it needs is not installed.
            BrokenComponentError: Its module raised something else.
            KeyError: There is no component with that id.
        """
        found = self._known[id]
        if isinstance(found, _Unloaded):
            with by_author(f"component {id}", found.module):
                try:
                    found = self._known[id] = cast("T", found.load())
                except ModuleNotFoundError as error:
                    missing = f"{id} needs the module {error.name}, which is not installed here"
                    raise UnknownComponentError(
                        f"{missing}; see which extra of procession includes it"
                    ) from error
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

    def add(self, id: str, component: T) -> None:  # noqa: A002
        """Adds a component; raises TypeError where another one was added under that id, which it would replace."""
        other = self._added.setdefault(id, component)
        if other is not component:
            raise TypeError(f"{other!r} has the id {id!r} too; give one of the two another id")
        self[id] = component

    def add_unloaded(self, id: str, load: Callable[[], Any], module: str = "") -> None:  # noqa: A002
        """Adds a component that `load` gives when it is needed, from a module."""
        self._known[id] = _Unloaded(load, module)


class Registry:
    """The installed components of one process."""

    def __init__(self, service: str = "") -> None:
        """`service` is the service of this process; messages name it when a component is missing in it."""
        self.service = service
        self.processors: Components[type[Processor[Any]]] = Components()
        self.tools: Components[type[Tool]] = Components()
        self.factories: Components[Factory] = Components()
        self.stop_conditions: Components[StopCondition] = Components()

    @classmethod
    def load(cls, plugins: Iterable[str] = (), service: str = "") -> Self:
        """Collects every entry point, then lets each plugin module register its own.

        Raises:
            PluginError: Plugins are missing, or fail; all are told.
        """
        registry = cls(service)
        for group in _GROUPS:
            for point in importlib.metadata.entry_points(group=f"procession.{group}"):
                getattr(registry, group).add_unloaded(point.name, point.load, point.module)
        wrong = [told for name in plugins if (told := registry._plug(name))]
        if wrong:
            raise PluginError("\n".join(wrong))
        return registry

    def _plug(self, name: str) -> str:
        """Lets a plugin register its components; returns what is wrong with it, nothing when all is well."""
        try:
            with by_author(f"plugin {name}", name):
                _register_of(importlib.import_module(name))(self)
        except BrokenComponentError as error:
            return _told(name, error)
        return ""

    def add_processor(self, processor: type[Processor[Any]]) -> None:
        """Registers a processor class under its id, in the place of a built-in one of that id.

        Raises:
            TypeError: It is not a processor class, has no id, or another class was registered under that id.
        """
        self.processors.add(_id_of(processor, Processor), processor)

    def add_tool(self, tool: type[Tool]) -> None:
        """Registers a tool class under its id; raises TypeError as `add_processor` does."""
        self.tools.add(_id_of(tool, Tool), tool)

    def processor(self, id: str) -> type[Processor[Any]]:  # noqa: A002 - the contract's word
        """The processor class with that id.

        Raises:
            UnknownComponentError: None is registered; the message lists the nearest ids.
        """
        return self._find(self.processors, id, "processor")

    def tool(self, id: str) -> type[Tool]:  # noqa: A002 - the contract's word
        """The tool class with that id; raises UnknownComponentError."""
        return self._find(self.tools, id, "tool")

    def factory(self, name: str) -> Factory:
        """The function of that name that makes arrays; raises UnknownComponentError."""
        return self._find(self.factories, name, "factory")

    async def make_array(self, factory: str, context: RequestContext, options: dict[str, Any]) -> list[Any]:
        """Calls a factory.

        Raises:
            UnknownComponentError: None has that name.
            TypeError: It did not return a list.
        """
        made: Any = self.factory(factory)(context, options)
        array = await made if inspect.isawaitable(made) else made
        if isinstance(array, str | Mapping) or not isinstance(array, Iterable):
            raise TypeError(f"it returned {array!r}; it should return a list of ids or {{'id', 'options'}}")
        return list(array)

    def stop_condition(self, id: str) -> StopCondition:  # noqa: A002 - the contract's word
        """The stop condition with that id; raises UnknownComponentError."""
        return self._find(self.stop_conditions, id, "stop condition")

    def stop_options(self, id: str, options: dict[str, Any]) -> Any:  # noqa: A002
        """The options as the stop condition takes them.

        Raises:
            UnknownComponentError: None has that id.
            InvalidOptionsError: An option is unknown or wrong; the message names each.
            BrokenComponentError: It cannot be called with steps and options.
        """
        condition = self.stop_condition(id)
        with by_author(f"stop condition {id}", getattr(condition, "__module__", "")):
            model = _options_of(condition)
            try:
                return options if model is None else model.model_validate(options)
            except ValidationError as error:
                raise invalid_options(f"stop condition {id}", error, options) from error

    def _find(self, table: Mapping[str, T], id: str, kind: str) -> T:  # noqa: A002
        if id in table:
            return table[id]
        names = sorted(table, key=lambda known: (not known.startswith(id[:3]), known))
        left_out = [f"and {len(names) - _TOLD} more"] if len(names) > _TOLD else []
        known = ", ".join([*names[:_TOLD], *left_out]) or "none"
        here, remedy = "", ""
        if self.service:
            here = f" in {self.service}"
            remedy = "; is its plugin in the PROCESSION_PLUGINS of that service?"
        raise UnknownComponentError(f"unknown {kind} {short(id)!r}{here}; registered: {known}{remedy}")

    async def stops(self, id: str, steps: list[StepResult], options: dict[str, Any]) -> bool:  # noqa: A002
        """Asks a stop condition, also one that is an `async def`.

        Raises:
            UnknownComponentError, InvalidOptionsError: As `stop_options` does.
            BrokenComponentError: It raised.
        """
        condition, given = self.stop_condition(id), self.stop_options(id, options)
        with by_author(f"stop condition {id}", getattr(condition, "__module__", "")):
            answer = condition(steps, given)
            return bool(await answer if inspect.isawaitable(answer) else answer)


def _id_of(component: Any, kind: type) -> str:
    """The id under which a class is registered; raises TypeError."""
    if not (isinstance(component, type) and issubclass(component, kind)):
        remedy = " (`@tool` makes one from a function)" if kind is Tool else ""
        raise TypeError(f"{component!r} is not a class derived from {kind.__name__}{remedy}")
    if not isinstance(id := getattr(component, "id", None), str):  # noqa: A001
        raise TypeError(
            f'{component.__name__} has no id; add `id = "my-{kind.__name__.lower()}"` to the class'
        )
    return id


def _options_of(condition: StopCondition) -> type[Options] | None:
    """The model with which a stop condition's second parameter is annotated; raises TypeError where it has not two."""
    inspect.signature(condition).bind([], {})
    name = list(inspect.signature(condition).parameters)[1]
    hint = get_type_hints(condition).get(name)
    return hint if isinstance(hint, type) and issubclass(hint, Options) else None


def _register_of(module: ModuleType) -> Callable[[Registry], None]:
    """The function with which a plugin registers its components; raises BrokenComponentError."""
    register = getattr(module, "register", None)
    if callable(register) and not inspect.iscoroutinefunction(register):
        with suppress(TypeError):
            inspect.signature(register).bind(None)
            return cast("Callable[[Registry], None]", register)
    code, file = getattr(register, "__code__", None), getattr(module, "__file__", None) or ""
    at = f"{file}:{code.co_firstlineno}" if code else file
    raise BrokenComponentError(f"plugin {module.__name__} has no function `def register(registry)`", at)


def _told(plugin: str, error: BrokenComponentError) -> str:
    """What is wrong with a plugin, and where."""
    cause = error.__cause__
    missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
    is_absent = missing is not None and f"{plugin}.".startswith(f"{missing}.")
    start = "start in the folder that contains it, or add that folder to PYTHONPATH"
    if plugin.startswith(".") or (is_absent and _OF_A_FILE.search(plugin)):
        return f"plugin {plugin}: this is a file; name its module, {PurePath(plugin).stem}, and {start}"
    if is_absent:
        return f"plugin {plugin}: there is no module {missing} on the Python path; {start}"
    remedy = "; install it where the services run" if missing else ""
    return f"{error.told}{remedy}"
