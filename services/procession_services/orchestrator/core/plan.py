"""From an agent and a request to the frozen plan of a run (core.md 17)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from procession.addresses import WEB_SCHEMES, is_address
from procession.json_values import NotJsonError, given
from procession.processor import Hook
from procession.registry import Registry
from procession.structured import schema_problem
from procession_schemas.agent import (
    Agent,
    AgentOptions,
    FactoryRef,
    ModelEntry,
    ProcessorRef,
    StructuredOutput,
    ToolRef,
    plain_choice,
)
from procession_schemas.base import from_json
from procession_schemas.memory import RESOURCE_KEY, THREAD_KEY, MemoryOptions, ThreadName
from procession_schemas.model_settings import retries_of
from procession_schemas.run import RunRequest
from procession_schemas.validation import RefusedError, short
from procession_schemas.work import OpenOp, StepConfig
from procession_services.orchestrator.core.memory_wiring import (
    NoVectorStoreError,
    last_messages,
    merged_options,
    wire,
)
from procession_services.runs.arrays import DEFAULT_BUDGET, HOSTS, place, refused, sees_data, usable
from procession_services.runs.merging import deep_merge
from procession_services.runs.state import Line, Placed, Plan

DEFAULT_STEPS = 5
STRUCTURER = "structured-output"
GUARD = "trailing-assistant-guard"
_THREAD_NAME: TypeAdapter[str] = TypeAdapter(ThreadName)
Arrays = Mapping[str, list[ProcessorRef] | FactoryRef]


def parse_request(body: bytes, limit: int, remedy: str = "") -> RunRequest:
    """Reads a run request, of so many bytes at most; `remedy` is how to have longer ones.

    Raises:
        RefusedError: The body is too long, not JSON, or does not fit; each wrong field is named. Or it has a number or
            a depth of nesting that cannot be sent on.
    """
    if len(body) > limit:
        told = f"the request has {len(body)} bytes; at most {limit} are accepted"
        raise RefusedError("REQUEST_TOO_LARGE", f"{told}: {remedy}")
    try:
        request = RunRequest.model_validate_json(body)
        given(from_json(body), "request")
    except ValidationError as error:
        raise RefusedError.because(error, body=_parsed(body)) from error
    except NotJsonError as error:
        raise RefusedError("INVALID_REQUEST", str(error), short(error.field) or None) from error
    return request


def _parsed(body: bytes) -> Any:
    try:
        return from_json(body)
    except ValueError:
        return None


def make_plan(
    request: RunRequest, agent: Agent, arrays: Arrays, registry: Registry, defaults: dict[str, Any]
) -> Plan:
    """Freezes the configuration of a run; what the request says to this run alone is in its `opening`.

    `arrays` are the effective `input`, `output` and `error` arrays; a factory of the latter two is called when
    processInput is through. `defaults` has `api_base`, and tells whether there are `vectors`.

    Raises:
        RefusedError: Something named is unknown or wrong.
    """
    placed, factories = _placed(arrays, registry)
    memory, memory_tools = _memory(request, agent), list[ToolRef]()
    if memory is not None:
        memory_tools = _add_memory(placed, memory, registry, vectors=bool(defaults.get("vectors")))
    if prepare := pick(request, agent, "prepare_step"):
        placed["input"].append(_prepare_step(prepare, registry))
    stop_when = pick(request, agent, "stop_when") or []
    for index, ref in enumerate(stop_when):
        with refused(f"stopWhen.{index}.id"):
            registry.stop_options(ref.id, ref.options)
    structured: StructuredOutput | None = pick(request, agent, "structured_output")
    if structured:
        _check_schema(structured.schema_)
    if structured and structured.model:
        placed["output"].append(_structurer(structured, registry))
        structured = None
    models = _models(request, agent)
    placed["input"] += _guard(placed["input"], models, structured, registry)
    tools = _tools(request.tools if request.tools is not None else agent.tools, registry, memory_tools)
    config = _config(request, agent, models[0].model, tools, structured)
    budget = pick(request, agent, "max_processor_retries")
    max_steps = request.max_steps or agent.max_steps or (None if stop_when else DEFAULT_STEPS)
    retries = _retries(config.model_settings, "modelSettings")
    config.model_settings.pop("maxRetries", None)
    return Plan(
        input=placed["input"],
        output=placed["output"],
        error=placed["error"],
        config=config,
        models=models,
        max_steps=max_steps,
        stop_when=stop_when,
        budget=DEFAULT_BUDGET if budget is None and placed["error"] else budget,
        max_retries=retries if retries is not None else pick(request, agent, "max_retries") or 0,
        require_tool_approval=bool(pick(request, agent, "require_tool_approval")),
        include_raw_chunks=bool(pick(request, agent, "include_raw_chunks")),
        api_base=agent.api_base or defaults.get("api_base"),
        data_parts=sees_data(placed["output"]),
        stream=request.stream,
        factories=factories,
    )


def _placed(arrays: Arrays, registry: Registry) -> tuple[dict[str, list[Placed]], dict[str, FactoryRef]]:
    """Where the processors of each array run, and the factories, whose arrays are empty until they are called."""
    placed, factories = dict[str, list[Placed]](), dict[str, FactoryRef]()
    for kind, array in arrays.items():
        if isinstance(array, FactoryRef):
            with refused(f"{kind}Processors.factory"):
                registry.factory(array.factory)
            factories[kind], placed[kind] = array, []
        else:
            placed[kind] = place(kind, array, registry)
    return placed, factories


def _config(
    request: RunRequest,
    agent: Agent,
    model: str,
    tools: dict[str, ToolRef],
    structured: StructuredOutput | None,
) -> StepConfig:
    """What each step begins with."""
    return StepConfig(
        model=model,
        tools=tools,
        tool_choice=plain_choice(pick(request, agent, "tool_choice") or "auto"),
        active_tools=pick(request, agent, "active_tools"),
        model_settings=deep_merge(agent.model_settings or {}, request.model_settings or {}),
        provider_options=deep_merge(agent.provider_options or {}, request.provider_options or {}),
        structured_output=structured,
    )


def _retries(settings: dict[str, Any], where: str) -> int | None:
    """`maxRetries` of these settings, which is the runtime's and not the provider's (R-MS-1, R-MS-3)."""
    try:
        return retries_of(settings)
    except ValueError as error:
        raise RefusedError("INVALID_REQUEST", str(error), f"{where}.maxRetries") from error


def pick(request: RunRequest, agent: AgentOptions, name: str) -> Any:
    """The effective value of an option (R-CF-4)."""
    value = getattr(request, name)
    return value if value is not None else getattr(agent, name)


def _prepare_step(ref: ProcessorRef, registry: Registry) -> Placed:
    cls, traits = usable("input", ref, registry, "prepareStep.id")
    if Hook.INPUT_STEP not in traits.hooks:
        raise RefusedError(
            "INVALID_REQUEST", f"processor {ref.id} has no processInputStep hook", "prepareStep.id"
        )
    renamed = ref.but(as_=ref.as_ or "prepare-step")
    return Placed(ref=renamed, hooks=frozenset({Hook.INPUT_STEP}), host=cls.host or HOSTS["input"])


def _guard(
    array: list[Placed], models: list[ModelEntry], structured: StructuredOutput | None, registry: Registry
) -> list[Placed]:
    """The guard against a last turn that a model's provider would refuse, where one does (R-TAG-1)."""
    if GUARD not in registry.processors or any(placed.ref.id == GUARD for placed in array):
        return []
    native = structured is not None and not structured.json_prompt_injection
    options = {"models": [entry.model for entry in models], "nativeSchema": native}
    made = place("input", [ProcessorRef(id=GUARD, options=options)], registry)
    return [placed for placed in made if placed.hooks]


def _models(request: RunRequest, agent: Agent) -> list[ModelEntry]:
    if agent.api_base and not is_address(agent.api_base, WEB_SCHEMES):
        raise RefusedError("INVALID_REQUEST", "apiBase should be like https://api.openai.com/v1", "apiBase")
    model = pick(request, agent, "model")
    if not model:
        raise RefusedError(
            "INVALID_REQUEST",
            "no model is set; give the agent or the request one, as 'provider/name'",
            "model",
        )
    entries = [ModelEntry(model=model)] if isinstance(model, str) else [e for e in model if e.enabled]
    if not entries:
        raise RefusedError("INVALID_REQUEST", "every model in the list is disabled", "model")
    for index, entry in enumerate(model if isinstance(model, list) else ()):
        _retries(entry.model_settings, f"model.{index}.modelSettings")
    return entries


def _tools(given: list[ToolRef], registry: Registry, of_memory: list[ToolRef]) -> dict[str, ToolRef]:
    """The tools by name; one of memory gives way to one of the agent's with its name."""
    tools: dict[str, ToolRef] = {}
    names = {ref.name for ref in given}
    for index, ref in enumerate([*given, *(ref for ref in of_memory if ref.name not in names)]):
        field = f"tools.{index}.id"
        with refused(field):
            made = registry.tool(ref.id).build(ref.options)
        if ref.name in tools:
            raise RefusedError(
                "INVALID_REQUEST", f"two tools are called {ref.name!r}; rename one with `as`", field
            )
        update = {
            "description": ref.description or made.description,
            "parameters": ref.parameters or made.parameters,
        }
        tools[ref.name] = ref.but(**update)
    return tools


def _check_schema(schema: dict[str, Any]) -> None:
    """A model would be asked in vain: its answer could not be held against the schema."""
    if problem := schema_problem(schema):
        path, told = problem
        field = ".".join(["structuredOutput", "schema", *path])
        raise RefusedError("INVALID_REQUEST", f"{field} {told}", field)


def _structurer(structured: StructuredOutput, registry: Registry) -> Placed:
    """The processor that asks the second model for the object, last on the output side (R-SO-4)."""
    ref = ProcessorRef(id=STRUCTURER, options=structured.model_dump(by_alias=True, exclude_none=True))
    with refused("structuredOutput.model"):
        cls = registry.processor(STRUCTURER)
    with refused("structuredOutput"):
        cls.build(ref.options)
    return Placed(ref=ref, hooks=cls.traits(ref.options).hooks, host=HOSTS["output"])


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory of a run: its options, and what processors read from the request context."""

    options: MemoryOptions
    context: dict[str, Any]


def _memory(request: RunRequest, agent: Agent) -> _Memory | None:
    """The memory of a run; None when it has none (R-ME-8)."""
    if agent.memory is None:
        if request.memory is not None:
            raise RefusedError(
                "INVALID_REQUEST", "the agent has no memory; configure `memory` on it", "memory"
            )
        return None
    given = request.memory or agent.memory
    thread = _from_context(request, THREAD_KEY) or given.thread
    resource = _from_context(request, RESOURCE_KEY) or given.resource
    if not thread and not resource:
        return None
    if not thread or not resource:
        missing = "resource" if thread else "thread"
        raise RefusedError(
            "AGENT_MEMORY_MISSING_RESOURCE_ID",
            f"memory needs a thread and a resource; {missing} is missing",
            f"memory.{missing}",
        )
    options = merged_options(agent.memory, request.memory)
    config: dict[str, Any] = {"readOnly": bool(options.read_only)}
    if (last := last_messages(options)) is not None:
        config["lastMessages"] = last
    if options.retention is not None:
        config["retention"] = options.retention.model_dump(by_alias=True, exclude_none=True)
    return _Memory(options, {"thread": {"id": thread}, "resourceId": resource, "memoryConfig": config})


def _line(memory: _Memory) -> Line | None:
    """Where runs on one thread take turns; those that only read need not."""
    if memory.options.read_only:
        return None
    resource, thread = memory.context["resourceId"], memory.context["thread"]["id"]
    return Line(resource=resource, thread=thread, policy=memory.options.concurrency or "queue")


def _from_context(request: RunRequest, key: str) -> str | None:
    """A reserved key of the request context, which overrides the memory options (R-RX-2)."""
    value = request.request_context.get(key)
    if value is None:
        return None
    try:
        return _THREAD_NAME.validate_python(value)
    except ValidationError as error:
        raise RefusedError.because(error, f"requestContext.{key}") from error


def _add_memory(
    placed: dict[str, list[Placed]], memory: _Memory, registry: Registry, *, vectors: bool
) -> list[ToolRef]:
    """Puts memory's processors first on the input side and last on the output side; gives its tools (R-ME-1..3)."""
    ids = {kind: {each for p in placed[kind] for each in (p.ref.id, p.ref.instance)} for kind in placed}
    try:
        wiring = wire(memory.options, input_ids=ids["input"], output_ids=ids["output"], vectors=vectors)
    except NoVectorStoreError as error:
        told = f"{error}: set PROCESSION_CHROMA_URL, or PROCESSION_CHROMA_PATH on a single machine"
        raise RefusedError("NO_VECTOR_STORE", told, "memory.semanticRecall") from error
    placed["input"][:0] = place("input", wiring.input, registry)
    placed["output"] += place("output", wiring.output, registry)
    return wiring.tools


def opening(request: RunRequest, agent: Agent) -> tuple[OpenOp, Line | None]:
    """What a run begins with, and where it takes turns with others.

    Raises:
        RefusedError: The request asks for memory but the agent has none, or only one of thread and resource is given.
    """
    memory = _memory(request, agent)
    first = OpenOp(
        instructions=_listed(
            request.instructions if request.instructions is not None else agent.instructions
        ),
        system=_listed(request.system),
        context=_listed(request.context),
        input=_listed(request.input),
        request_context=request.request_context,
        tracing_context=request.tracing_context,
        memory=memory.context if memory is not None else None,
    )
    return first, _line(memory) if memory is not None else None


def _listed(value: Any) -> list[Any]:
    """What a request gives once or in a list; an empty text is none."""
    if value is None or value == "":
        return []
    return value if isinstance(value, list) else [value]


__all__ = ["Arrays", "make_plan", "opening", "parse_request", "pick"]
