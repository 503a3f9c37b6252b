"""The reference pages of docs/reference, made from the models themselves."""

import re
from collections.abc import Iterable, Iterator

from pydantic_core import PydanticUndefined

from procession_schemas.agent import AgentOptions
from procession_schemas.catalog import CATALOG, Row
from procession_schemas.codes import ERROR_CODES
from procession_schemas.run import RunRequest
from procession_services.runtime.settings import Settings, variable
from tests.contract.json_schemas import Schema, json_schemas

NOTE = "<!-- Generated: change the models, then `make schemas`. -->"


def configuration() -> str:
    """Settings of the services, agents, and what a request may set."""
    agents, request = json_schemas()["agents-file"]["$defs"], json_schemas()["run.request"]
    parts = (
        "ProcessorRef",
        "ToolRef",
        "FactoryRef",
        "ModelEntry",
        "MemoryConfig",
        "HistoryBudget",
        "SemanticRecallConfig",
        "MessageRange",
        "WorkingMemoryConfig",
        "WorkingMemoryTemplate",
        "ObservationalConfig",
        "ObservationConfig",
        "ReflectionConfig",
        "Retention",
        "StructuredOutput",
        "ToolChoiceTool",
    )
    return _page(
        "# Configuration",
        NOTE,
        "## Settings of a process",
        "From the environment, or from the YAML file that `--config` or `PROCESSION_CONFIG` names (lower-case names "
        "without the prefix); the environment wins. An unknown name is an error, in both (on Kubernetes, which makes "
        "variables of the names of services: `enableServiceLinks: false`).",
        _table(("variable", "type", "default", "meaning"), _settings()),
        "A provider's key comes from the variable that LiteLLM reads for it, such as `OPENAI_API_KEY`. Secrets are "
        "read from files, which these settings name. A process reads its settings when it starts; the agents file is "
        "read again when it changes ([operations](../operations.md#change-agents)).",
        "## An agents file",
        "YAML with one key, `agents`: agents by name, or a list. Or a Python file with a module-level `agents`: the "
        "same, or a function that returns it. Keys may be written in snake_case too. The schema for editors is "
        "[agents-file.json](../../schemas/json-schema/agents-file.json); `procession check` reports everything that "
        "is wrong.",
        "### Agent",
        _fields(agents["Agent"]),
        *_each(agents, parts),
        "## A request",
        "A request may also set the fields of an agent's options (from `model` to `timeout`); they then override those "
        "of the agent. Further fields:",
        _fields(request, without=agents["Agent"]["properties"].keys() - {"tools", "memory"}),
        *_each(request["$defs"], ("RequestMemory",)),
    )


def messages() -> str:
    """Every message, the operations of a command, and the types of chunks."""
    schemas = json_schemas()
    commands = schemas["work.command"]["$defs"]
    operations = sorted(
        ((definition["properties"]["op"]["const"], definition) for definition in _operations(commands)),
        key=lambda named: named[0],
    )
    return _page(
        "# Messages",
        NOTE,
        "Generated from `procession_schemas.catalog`. JSON on NATS; keys are camelCase. A message with a stream is "
        "stored in it, and its sender waits until that is confirmed (except for chunks); the others are lost if nobody "
        "listens. Schemas: [json-schema](../../schemas/json-schema), examples: "
        "[golden-messages](../../schemas/golden-messages), all as AsyncAPI: "
        "[asyncapi.json](../../schemas/asyncapi.json).",
        _table(
            ("message", "subject", "stream", "from", "to"),
            (
                (
                    f"[{row.name}](#{row.name.replace('.', '')})",
                    f"`{row.subject}`",
                    row.stream or "",
                    *_parties(row),
                )
                for row in CATALOG
            ),
        ),
        *(part for row in CATALOG for part in _message(row, schemas.get(row.name))),
        "## Results",
        "The `result` of `run.finished` and `run.suspended`, and its parts.",
        *_each(
            schemas["run.finished"]["$defs"],
            ("RunResult", "Failure", "Tripwire", "HookReport", "ModelReport"),
        ),
        "## Error codes",
        "Values of `error.code` in results, in `request.rejected`, and in answers about threads and chunks. Some "
        "errors have a `name` instead, such as `APICallError`; the built-in processors may use further codes, and your "
        "own processors any code.",
        _table(("code", "meaning"), ((f"`{code}`", meaning) for code, meaning in ERROR_CODES.items())),
        "## Operations of a command",
        "A `work.command` is a list of these, run in order on the run's context.",
        _table(
            ("operation", "fields", "meaning"),
            (
                (f"`{op}`", _names(definition, {"op"}), definition["description"].partition("\n")[0])
                for op, definition in operations
            ),
        ),
        "## Chunks",
        '`{"type", "runId", "from", "payload"}`; the schema is [chunk.json](../../schemas/json-schema/chunk.json).',
        _table(("type", "payload", "meaning"), _chunks(schemas["chunk"])),
    )


def _settings() -> Iterator[tuple[str, ...]]:
    types = Settings.model_json_schema()["properties"]
    for name, field in Settings.model_fields.items():
        generated = field.default is PydanticUndefined
        default = "" if generated or field.default in (None, ()) else f"`{field.default}`"
        told = "path" if "Path" in str(field.annotation) else _type(types[name])
        yield (
            f"`{variable(name)}`",
            told,
            default.replace("True", "true").replace("False", "false"),
            field.description or "",
        )


def _message(row: Row, schema: Schema | None) -> Iterator[str]:
    yield f"## {row.name}"
    yield row.meaning
    if schema and schema.get("properties"):
        if schema["description"] != row.meaning:
            yield schema["description"]
        if row.body is RunRequest:
            yield "It may also override the agent's options: [configuration](configuration.md#agent)."
        yield _fields(schema, without=AgentOptions.model_json_schema()["properties"])


def _parties(row: Row) -> tuple[str, str]:
    workers = {"input_processors", "llm_gateway", "error_recovery", "memory", "tools"}

    def told(names: tuple[str, ...]) -> str:
        if len(names) > len(workers):
            return "every service" if "orchestrator" in names else "every service but the orchestrator"
        return "every service but output_processors" if workers < {*names} else ", ".join(names)

    return told(row.producers), told(row.consumers)


def _operations(definitions: Schema) -> Iterator[Schema]:
    return (each for name, each in definitions.items() if name.endswith("Op"))


def _chunks(schema: Schema) -> Iterator[tuple[str, ...]]:
    core, data = schema["anyOf"]
    definitions = schema["$defs"]
    for each in (*core["oneOf"], data):
        definition = _resolved(each, definitions)
        kind = definition["properties"]["type"]
        types = kind.get("enum") or [kind.get("const") or "data-..."]
        payload = _resolved(definition["properties"].get("payload", {}), definitions)
        fields = _names(payload) if payload.get("properties") else ""
        if "payload" not in definition["properties"]:
            fields = f"instead of `payload`: {_names(definition, {'type', 'runId', 'from', 'metadata'})}"
        yield ", ".join(f"`{t}`" for t in types), fields, definition["description"]


def _resolved(schema: Schema, definitions: Schema) -> Schema:
    return definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _names(definition: Schema, without: Iterable[str] = ()) -> str:
    """Its fields; a question mark behind those that may be missing."""
    required = definition.get("required", ())
    names = (name for name in definition["properties"] if name not in without)
    return ", ".join(f"`{name}`" if name in required else f"`{name}`?" for name in names)


def _each(definitions: Schema, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield f"### {name}"
        yield definitions[name]["description"]
        yield _fields(definitions[name])


def _fields(definition: Schema, without: Iterable[str] = ()) -> str:
    required = definition.get("required", ())
    return _table(
        ("field", "type", "default", "meaning"),
        (
            (
                f"`{name}`",
                _type(field),
                "required" if name in required else _default(field),
                field.get("description", "").replace("\n", " "),
            )
            for name, field in definition["properties"].items()
            if name not in without
        ),
    )


def _default(field: Schema) -> str:
    default = field.get("default")
    return (
        ""
        if default in (None, {}, [], "")
        else f"`{str(default).lower() if isinstance(default, bool) else default}`"
    )


def _type(field: Schema) -> str:
    """What a field holds, in a few words."""
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if options := field.get("anyOf") or field.get("oneOf"):
        told = [_type(option) for option in options if option.get("type") != "null"]
        return "an operation" if len(told) > 10 else " or ".join(dict.fromkeys(told))
    if "const" in field or "enum" in field:
        values = field.get("enum", [field.get("const")])
        return ", ".join(f"`{str(v).lower() if isinstance(v, bool) else v}`" for v in values)
    if field.get("type") == "array":
        items = _type(field.get("items", {}))
        return f"list of ({items})" if " or " in items else f"list of {items}"
    if isinstance(inner := field.get("additionalProperties"), dict) and inner:
        is_null = any(option.get("type") == "null" for option in inner.get("anyOf", []))
        return f"object of ({_type(inner)} or null)" if is_null else f"object of {_type(inner)}"
    return str(field.get("type", "anything"))


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _page(*parts: str) -> str:
    """A page; numbers of the contract's rules say something to those who read the code only."""
    text = "\n\n".join(re.sub(r" +\n", "\n", part) for part in parts) + "\n"
    text = re.sub(r" \((?:R-[A-Z]+-\d+(?:, )?)+\)", "", text)
    return re.sub(r"\bD-\d+\b", r"[\g<0>](../differences.md)", text)
