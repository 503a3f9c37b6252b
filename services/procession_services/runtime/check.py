"""Tells everything that is wrong with a configuration before anything runs: `procession check`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from procession.addresses import WEB_SCHEMES, is_address
from procession.errors import (
    BrokenComponentError,
    InvalidOptionsError,
    PluginError,
    UnknownComponentError,
)
from procession.placing import misplaced, unhosted
from procession.processor import INPUT_HOOKS, METHODS, OUTPUT_HOOKS, Hook, Processor, misshapen, overridden
from procession.registry import Registry
from procession.structured import schema_problem
from procession_schemas.admin import ModelUse
from procession_schemas.agent import Agent, FactoryRef, ProcessorRef, ToolRef
from procession_schemas.memory import OBSERVING_MODEL, ObservationalConfig, WorkingMemoryConfig
from procession_services.runtime.agents import AgentsFile, read_agents
from procession_services.runtime.problems import ConfigurationError, Problem, suggested_field, suggestion
from procession_services.runtime.settings import Settings
from procession_services.runtime.tenants import load_tenants

__all__ = ["ModelCheck", "check", "check_agent", "checked_agents", "models_of"]

_ARRAYS: Final = (
    ("input_processors", "inputProcessors", frozenset(INPUT_HOOKS)),
    ("output_processors", "outputProcessors", frozenset(OUTPUT_HOOKS)),
    ("error_processors", "errorProcessors", frozenset({Hook.API_ERROR})),
)

_KINDS: Final = {hooks: attribute.removesuffix("_processors") for attribute, _, hooks in _ARRAYS}

_UNUSABLE: Final = (UnknownComponentError, BrokenComponentError)

ModelCheck = Callable[[str], str | None]
"""What is wrong with a model's name, or None."""


def check(settings: Settings, model_problem: ModelCheck | None = None) -> list[Problem]:
    """Checks the plugins, the limits of tenants, and the agents file: every id, every option and every model in it.

    Args:
        settings: The settings of the services.
        model_problem: Given a model such as `openai/gpt-4o-mini`, says what is wrong with it.
    """
    problems = [*_tenants(settings), *_embedder_of(settings, model_problem)]
    try:
        registry = Registry.load(settings.plugins)
    except PluginError as error:
        return [*problems, *(Problem("PROCESSION_PLUGINS", "", told) for told in str(error).splitlines())]
    if settings.agents is None:
        told = "no agents file; only requests that bring their own agent will run"
        return [*problems, Problem("PROCESSION_AGENTS", "", told, warning=True)]
    try:
        file = read_agents(settings.agents)
    except ConfigurationError as error:
        return [*problems, *error.problems]
    return [*problems, *_in_file(file, registry, model_problem)]


def _in_file(file: AgentsFile, registry: Registry, model_problem: ModelCheck | None = None) -> list[Problem]:
    """What is wrong with the form of an agents file and with the agents in it, from the first line on."""
    found = [told for agent in file.agents.values() for told in check_agent(agent, registry, model_problem)]
    return sorted([*file.problems, *file.placed(found)], key=_line)


def _line(problem: Problem) -> int:
    _, _, line = problem.where.rpartition(":")
    return int(line) if line.isdecimal() else 0


def _tenants(settings: Settings) -> list[Problem]:
    """What is wrong with the limits of tenants."""
    try:
        if settings.tenants is not None:
            load_tenants(settings.tenants)
    except ConfigurationError as error:
        return error.problems
    return []


def _embedder_of(settings: Settings, model_problem: ModelCheck | None) -> Iterator[Problem]:
    """What is wrong with the embedder of agents that name none."""
    if model_problem and "/" in settings.embedder and (told := model_problem(settings.embedder)):
        yield Problem("PROCESSION_EMBEDDER", "", told)


def check_agent(
    agent: Agent, registry: Registry, model_problem: ModelCheck | None = None
) -> Iterator[Problem]:
    """Checks one agent against what is installed; in which file and line it stands is not told."""
    base = f"agents.{agent.name}"
    for attribute, key, hooks in _ARRAYS:
        array = getattr(agent, attribute)
        if isinstance(array, FactoryRef):
            yield from _known(registry.factories, array.factory, "factory", f"{base}.{key}.factory")
            continue
        for index, ref in enumerate(array or ()):
            yield from _processor(ref, hooks, registry, f"{base}.{key}.{index}")
    if agent.prepare_step:
        yield from _processor(agent.prepare_step, {Hook.INPUT_STEP}, registry, f"{base}.prepareStep")
    for index, ref in enumerate(agent.stop_when or ()):
        yield from _stop_condition(ref, registry, f"{base}.stopWhen.{index}")
    names: set[str] = set()
    for index, tool in enumerate(agent.tools):
        yield from _tool(tool, registry, f"{base}.tools.{index}")
        if tool.name in names:
            told = f"two tools are called {tool.name!r}; rename one with `as`"
            yield Problem("", f"{base}.tools.{index}", told)
        names.add(tool.name)
    for index, name in enumerate(agent.active_tools or ()):
        if name not in names and name not in registry.tools:  # which a processor may add
            told = f"no tool is called {name!r}{suggestion(name, names)}"
            yield Problem("", f"{base}.activeTools.{index}", told, warning=True)
    yield from _schemas(agent, base)
    yield from _models(agent, base, model_problem)
    yield from _embedder(agent, base, model_problem)
    yield from _settings(agent, base)
    yield from _api_base(agent, base)


def checked_agents(
    file: Path, *, registry: Registry, warn: Callable[[Problem], None] | None = None
) -> dict[str, Agent]:
    """The agents of a file by name, every id and option in them checked; raises ConfigurationError.

    `warn` hears what is odd about agents that count all the same.
    """
    read = read_agents(file)
    problems = _in_file(read, registry)
    if wrong := [problem for problem in problems if not problem.warning]:
        raise ConfigurationError(wrong)
    if warn is not None:
        for problem in problems:
            warn(problem)
    return read.agents


def models_of(agents: Iterable[Agent], api_base: str | None) -> list[ModelUse]:
    """The models that agents name, each once, and where they are called.

    An agent's own `api_base` is for its `model` alone. `api_base` counts for agents that name none, and for all models
    that are called on behalf of processors and memory.
    """
    uses = set[tuple[str, str | None]]()
    for agent in agents:
        uses.update((name, agent.api_base or api_base) for _, name in _own_models(agent))
        uses.update((name, api_base) for _, name in _models_beside(agent))
    return [ModelUse(model=name, api_base=base) for name, base in sorted(uses, key=str)]


def _known(table: Mapping[str, Any], name: str, kind: str, path: str) -> Iterator[Problem]:
    if name not in table:
        hint = suggestion(name, table)
        if "did you mean" not in hint:
            hint += "; is its plugin missing from PROCESSION_PLUGINS?"
        yield Problem("", path, f"unknown {kind} {name!r}{hint}")


def _processor(
    ref: ProcessorRef, hooks: set[Hook] | frozenset[Hook], registry: Registry, path: str
) -> Iterator[Problem]:
    """A processor must be known, take its options, and have a hook that its place runs."""
    if ref.id not in registry.processors:
        yield from _known(registry.processors, ref.id, "processor", f"{path}.id")
        return
    try:
        kind = registry.processors[ref.id]
        kind.build(ref.options)
        traits = kind.traits(ref.options)
    except InvalidOptionsError as error:
        yield from _options(error, registry.processors[ref.id].options_type(), path)
        return
    except _UNUSABLE as error:
        yield Problem("", f"{path}.id", _told(error))
        return
    idle = not traits.hooks and overridden(kind) & hooks  # its options leave it nothing to do
    if not traits.hooks & hooks and not idle:
        here, there = ", ".join(sorted(hooks)), ", ".join(sorted(traits.hooks))
        has = f"its hooks are {there}" if there else "it has no hooks"
        yield Problem("", f"{path}.id", f"{ref.id} would never run here: {has}, but only {here} run here")
    for wrong_form in misshapen(kind, traits.hooks & hooks):
        yield Problem("", f"{path}.id", f"{ref.id}: {wrong_form}")
    for name, meant in _misspelt(kind):
        told = f"{ref.id} has a method {name}, which is not a hook; did you mean {meant}?"
        yield Problem("", f"{path}.id", told, warning=True)
    array = _KINDS.get(frozenset(hooks), "")
    if wrong := misplaced(array, kind, ref, traits):
        yield Problem("", f"{path}.{wrong[0]}", wrong[1])
    if nowhere := unhosted(array, kind, ref, traits):
        yield Problem("", f"{path}.id", nowhere)


def _misspelt(kind: type[Processor[Any]]) -> Iterator[tuple[str, str]]:
    """Methods whose names are nearly those of hooks, and of which: they would never be called."""
    for name in dir(kind):
        if name.startswith("process") and not hasattr(Processor, name) and callable(getattr(kind, name)):
            for meant in get_close_matches(name.lower(), METHODS.values(), n=1, cutoff=0.85):
                yield name, meant


def _tool(ref: ToolRef, registry: Registry, path: str) -> Iterator[Problem]:
    if ref.id not in registry.tools:
        yield from _known(registry.tools, ref.id, "tool", f"{path}.id")
    else:
        yield from _wrong(lambda: registry.tool(ref.id).build(ref.options), path)


def _stop_condition(ref: ProcessorRef, registry: Registry, path: str) -> Iterator[Problem]:
    if ref.id not in registry.stop_conditions:
        yield from _known(registry.stop_conditions, ref.id, "stop condition", f"{path}.id")
    else:
        yield from _wrong(lambda: registry.stop_options(ref.id, ref.options), path)


def _wrong(use: Callable[[], Any], path: str) -> Iterator[Problem]:
    """What keeps a component from being used as it is configured."""
    try:
        use()
    except InvalidOptionsError as error:
        yield from _options(error, None, path)
    except _UNUSABLE as error:
        yield Problem("", f"{path}.id", _told(error))


def _told(error: UnknownComponentError | BrokenComponentError) -> str:
    return error.told if isinstance(error, BrokenComponentError) else str(error)


def _options(error: InvalidOptionsError, model: type[BaseModel] | None, path: str) -> Iterator[Problem]:
    for name, told in error.fields.items():
        unknown = "Extra inputs" in told
        message = f"unknown option{suggested_field(name.split('.'), model)}" if unknown else told
        yield Problem("", f"{path}.options.{name}" if name else f"{path}.options", message)


def _schemas(agent: Agent, base: str) -> Iterator[Problem]:
    """Schemas that are none: with them each run would be refused, or each call of the tool."""
    given = [(f"tools.{index}.parameters", tool.parameters) for index, tool in enumerate(agent.tools)]
    if agent.structured_output:
        given.append(("structuredOutput.schema", agent.structured_output.schema_))
    if agent.memory and isinstance(agent.memory.working_memory, WorkingMemoryConfig):
        given.append(("memory.workingMemory.schema", agent.memory.working_memory.schema_))
    for path, schema in given:
        if schema is not None and (problem := schema_problem(schema)):
            place, told = problem
            yield Problem("", ".".join([base, path, *place]), told)


def _models(agent: Agent, base: str, model_problem: ModelCheck | None) -> Iterator[Problem]:
    if agent.model is None:
        yield Problem("", f"{base}.model", "no model; every request must name one", warning=True)
        return
    for path, name in _models_in(agent):
        told = model_problem(name) if model_problem else None
        if told:
            yield Problem("", f"{base}.{path}", told)


def _embedder(agent: Agent, base: str, model_problem: ModelCheck | None) -> Iterator[Problem]:
    recall = agent.memory.semantic_recall if agent.memory else None
    name = (recall and recall.embedder) or ""
    if model_problem and "/" in name and (told := model_problem(name)):
        yield Problem("", f"{base}.memory.semanticRecall.embedder", told)


def _settings(agent: Agent, base: str) -> Iterator[Problem]:
    """Settings that no model gets to see: what was meant as a limit would not hold."""
    for place, told in agent.unknown_settings():
        yield Problem("", ".".join(map(str, (base, *place))), told, warning=True)
    providers = {name.partition("/")[0] for _, name in _models_in(agent)}
    for provider in sorted((agent.provider_options or {}).keys() - providers) if agent.model else ():
        told = f"not sent: no model here is from {provider!r}, only from {', '.join(sorted(providers))}"
        yield Problem("", f"{base}.providerOptions.{provider}", told, warning=True)


def _api_base(agent: Agent, base: str) -> Iterator[Problem]:
    if agent.api_base and not is_address(agent.api_base, WEB_SCHEMES):
        yield Problem("", f"{base}.apiBase", "should be like https://api.openai.com/v1")


def _models_in(agent: Agent) -> list[tuple[str, str]]:
    """Where in an agent a model is named, and its name."""
    return [*_own_models(agent), *_models_beside(agent)]


def _own_models(agent: Agent) -> list[tuple[str, str]]:
    """Those that answer."""
    if isinstance(agent.model, str):
        return [("model", agent.model)]
    return [(f"model.{index}.model", entry.model) for index, entry in enumerate(agent.model or ())]


def _models_beside(agent: Agent) -> list[tuple[str, str]]:
    """Those of processors, of the structured answer, and of notes of its memory."""
    names: list[tuple[str, str]] = []
    if agent.structured_output and agent.structured_output.model:
        names.append(("structuredOutput.model", agent.structured_output.model))
    for attribute, key, _ in _ARRAYS:
        array = getattr(agent, attribute)
        for index, ref in enumerate(array if isinstance(array, list) else ()):
            if isinstance(asked := ref.options.get("model"), str):
                names.append((f"{key}.{index}.options.model", asked))
    observing = agent.memory.observational_memory if agent.memory else None
    if isinstance(observing, ObservationalConfig):
        base, common = "memory.observationalMemory", observing.model or OBSERVING_MODEL
        parts = [("observation", observing.observation.model), ("reflection", observing.reflection.model)]
        found = [(f"{base}.{part}.model", own) if own else (f"{base}.model", common) for part, own in parts]
        names += dict.fromkeys(found)
    return names
