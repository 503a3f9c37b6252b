"""Loads and validates the file that defines the agents: YAML, or Python with a module-level `agents`.

Everything that is wrong is told at once, each with where it is and how to mend it.
"""

import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic.alias_generators import to_snake
from pydantic_core import ErrorDetails

from procession.authors import is_ours, place, said
from procession.json_values import leaf_fault
from procession_schemas.agent import Agent
from procession_schemas.validation import Place, belongs, placed, plain, spellings
from procession_services.runtime.problems import (
    ConfigurationError,
    Problem,
    suggested_field,
    suggestion,
    unreadable,
)
from procession_services.runtime.yaml_text import composed, no_yaml, parsed

__all__ = ["AgentsFile", "read_agents"]

_COMPONENTS: Final = {"input_processors", "output_processors", "error_processors", "tools", "stop_when"}
"""Arrays of what has an id and options."""
_INSTRUCTIONS: Final = {"system", "system_prompt", "prompt", "system_message"}
"""What other libraries call `instructions`."""


def read_agents(path: Path) -> "AgentsFile":
    """Reads agents from a file, and what is wrong with it.

    YAML has one key, `agents`: a mapping from name to agent, or a list of agents. Python has a module-level
    `agents`: the same, as dicts or `Agent` objects, or a function without arguments that returns it.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    source = _Python(path) if path.suffix == ".py" else _Yaml(path)
    file = AgentsFile(source)
    for at, name, raw in _entries(source.read(), source, file.problems):
        if isinstance(raw, Agent):
            agent: Agent | None = raw
        else:
            agent = _validated(raw, name, at, source, file.problems)
        if agent is None:
            continue
        unsent = _unsent(agent.model_dump(by_alias=True, exclude_unset=True))
        file.problems += [source.problem((*at, *path), told) for path, told in unsent]
        if agent.name in file.agents:
            file.problems.append(
                source.problem((*at, "name"), f"another agent is called {agent.name!r}, too")
            )
        file.agents[agent.name] = agent
        file.places[agent.name] = at
    return file


@dataclass(slots=True)
class AgentsFile:
    """What a file says of agents.

    Attributes:
        problems: What is wrong with its form.
        agents: By name; of those that are wrong, what is right of them.
        places: Where in the file each is.
    """

    source: "_Source"
    problems: list[Problem] = field(default_factory=list)
    agents: dict[str, Agent] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)

    def placed(self, found: Iterable[Problem]) -> list[Problem]:
        """Adds lines to problems that were found in agents.

        Left out are problems of an entry that is among `problems` already, and warnings about what contains one.
        """
        told = [f"{problem.path}." for problem in self.problems]
        counting = []
        for problem in found:
            _, name, *rest = problem.path.split(".")
            at = (*self.places[name], *rest)
            path = ".".join(map(str, at)) + "."
            if not any(path == each or (problem.warning and each.startswith(path)) for each in told):
                counting.append(replace(problem, where=self.source.place(at)))
        return counting


class _Source:
    """A file with agents, and how to tell where in it something is."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Any:
        """What the file says, from the top: a mapping with `agents`; raises ConfigurationError."""
        raise NotImplementedError

    def line(self, at: Place) -> int | None:  # noqa: ARG002 - for overriding
        """The line of an entry."""
        return None

    def problem(self, at: Place, message: str) -> Problem:
        """A problem with an entry."""
        return Problem(self.place(at), ".".join(map(str, at)), message)

    def place(self, at: Place) -> str:
        """The file, with the line of an entry where it is known."""
        line = self.line(at)
        return f"{self.path}:{line}" if line else str(self.path)

    def text(self) -> str:
        """The text of the file; raises ConfigurationError."""
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError([Problem(str(self.path), "", unreadable(error))]) from error


class _Yaml(_Source):
    def read(self) -> Any:
        text = self.text()
        try:
            self._tree = composed(text)
            return parsed(text)
        except yaml.YAMLError as error:
            raise ConfigurationError([no_yaml(self.path, error)]) from error

    def line(self, at: Place) -> int | None:
        node, line = self._tree, 1
        for key in at:
            child = _child(node, key)
            if child is None:
                break
            line, node = child
        return line


class _Python(_Source):
    def read(self) -> Any:
        self.text()
        spec = importlib.util.spec_from_file_location("procession_agents_file", self.path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            agents = getattr(module, "agents", None)
            return {"agents": agents() if callable(agents) else agents}
        except BaseException as error:  # whatever the file's own code raises, `sys.exit` too
            if is_ours(error):
                raise
            where = place(error, spec.name) or str(self.path)
            raise ConfigurationError([Problem(where, "", f"cannot be run: {said(error)}")]) from error


def _child(node: Any, key: str | int) -> tuple[int, Any] | None:
    """The line and the node of an entry of a YAML node."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value in spellings(key):
                return name.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and str(key).isdecimal() and int(key) < len(node.value):
        value = node.value[int(key)]
        return value.start_mark.line + 1, value
    return None


def _entries(content: Any, source: _Source, problems: list[Problem]) -> list[tuple[Place, str | None, Any]]:
    """The agents of a file: where each is, its name where its key says it, and its fields."""
    if not isinstance(content, Mapping):
        problems.append(source.problem((), "must be a mapping with the key 'agents'"))
        return []
    problems += [
        source.problem((key,), f"unknown key {key!r}{suggestion(str(key), ['agents'])}")
        for key in content
        if key != "agents"
    ]
    match content.get("agents"):
        case {**named} if named:
            return [(("agents", str(name)), str(name), fields) for name, fields in named.items()]
        case [*listed] if listed:
            return [(("agents", index), None, fields) for index, fields in enumerate(listed)]
    problems.append(source.problem((), "defines no agents; `agents` must be a mapping by name, or a list"))
    return []


def _validated(
    raw: Any, name: str | None, at: Place, source: _Source, problems: list[Problem]
) -> Agent | None:
    fields = raw if name is None or not isinstance(raw, Mapping) else {"name": name, **raw}
    try:
        return Agent.model_validate(fields)
    except ValidationError as error:
        wrong = _told(error.errors(), fields)
        problems += [source.problem((*at, *path), told) for path, told in wrong]
        return _rest(fields, [path for path, _ in wrong])


def _unsent(value: Any, at: Place = (), around: tuple[int, ...] = ()) -> Iterator[tuple[Place, str]]:
    """What no message can hold: the services would read something else, or could not read the agent at all."""
    if isinstance(value, Mapping | list):
        if id(value) in around:
            yield at, "contains itself"
            return
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _unsent(item, (*at, key), (*around, id(value)))
    elif isinstance(value, int | float) and (fault := leaf_fault(value)):
        yield at, f"{fault.strip()}; give another number, or leave it out"


def _rest(fields: Any, wrong: list[Place]) -> Agent | None:
    """An agent without what is wrong with it, or without the fields that this is in: so the others are checked, too."""
    for left_out in (wrong, [path[:1] for path in wrong]):
        try:
            return Agent.model_validate(_without(fields, left_out))
        except ValidationError:
            continue
    return None


def _without(data: Any, wrong: list[Place]) -> Any:
    if not wrong or not isinstance(data, Mapping | list):
        return data
    entries = data.items() if isinstance(data, Mapping) else enumerate(data)
    kept = {
        key: _without(value, [path[1:] for path in wrong if path[:1] == (key,)])
        for key, value in entries
        if isinstance(data, list) or (key,) not in wrong  # what is behind an entry of a list keeps its number
    }
    return kept if isinstance(data, Mapping) else list(kept.values())


def _told(errors: list[ErrorDetails], fields: Any) -> list[tuple[Place, str]]:
    """One message a place."""
    told: dict[Place, dict[str, str]] = {}
    for path, error in placed(errors, fields):
        message, value = _message(path, error)
        told.setdefault(path, {})[message] = value
    return [(path, " or ".join(said) + next(iter(said.values()))) for path, said in told.items()]


def _message(path: Place, error: ErrorDetails) -> tuple[str, str]:
    """What is wrong, and the value where showing it helps."""
    if error["type"] == "extra_forbidden":
        return _unknown(path), ""
    if error["type"] == "missing":
        return "is missing", ""
    value = error["input"]
    if isinstance(value, str) and path[:-1] == ("model",):
        return f"should be a mapping, such as {{model: {value}}}", ""
    shown = f", not {value!r}" if isinstance(value, str | int | float | bool | None) else ""
    told = plain(error).replace("Input should", "should").replace("a valid list", "a list")
    return re.sub(r"a valid dictionary( or instance of \w+)?", "a mapping", told), shown


def _unknown(path: Place) -> str:
    """What is told of a key that there is not."""
    *around, key = path
    hint = belongs(path) or suggested_field(path, Agent)
    if not around and to_snake(str(key)) in _INSTRUCTIONS:
        hint = "; it is `instructions` here"
    elif len(around) == 2 and to_snake(str(around[0])) in _COMPONENTS:  # noqa: PLR2004 - the array, and a number in it
        if key == "factory":
            return f"a factory takes the place of the whole array: `{around[0]}: {{factory: ...}}`"
        if not hint.startswith("; did you mean"):
            hint += "; what it takes itself belongs in `options`: `{id: ..., options: {...}}`"
    return f"unknown key{hint}"
