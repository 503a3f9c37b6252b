"""Names and references that the runner and the hooks must spell alike: models, tools, schemas, providers."""

from typing import Any

__all__ = ["Context", "own_provider", "strict_schema", "tool_choice", "tool_ref"]

Context = dict[str, Any]
"""What every scripted processor and tool gets in its options: `key` of the board, `run` number, `model`
prefix, and, where a hook adds tools, `tools`: all tool definitions of the scenario by name."""

SCENARIO_PROVIDER = "mock-provider"
OWN_PROVIDER = "openai"


def tool_ref(definition: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """A reference to a scripted tool."""
    slim = {k: v for k, v in ctx.items() if k != "tools"}
    return {
        "id": "scripted-tool",
        "as": definition["name"],
        "description": definition.get("description") or definition["name"],
        "parameters": strict_schema(definition.get("parameters") or {"type": "object", "properties": {}}),
        "options": {"tool": definition, "ctx": slim},
    }


def strict_schema(schema: dict[str, Any] | None) -> dict[str, Any]:
    """The JSON Schema that a scenario means: every property is required unless it says which are."""
    if not schema:
        return {"type": "object", "properties": {}}
    match schema.get("type"):
        case "object":
            properties = schema.get("properties") or {}
            return {
                "type": "object",
                "properties": {name: strict_schema(each) for name, each in properties.items()},
                "required": [name for name in properties if name in schema.get("required", properties)],
            }
        case "array":
            return {"type": "array", "items": strict_schema(schema.get("items"))}
        case "number" | "integer" | "boolean" as kind:
            return {"type": kind}
        case _:
            return {"type": "string", "enum": schema["enum"]} if schema.get("enum") else {"type": "string"}


def tool_choice(choice: Any) -> Any:
    """A scenario's tool choice in the contract's spelling."""
    return (
        {"type": "tool", "toolName": choice["tool"]}
        if isinstance(choice, dict) and "tool" in choice
        else choice
    )


def own_provider(options: dict[str, Any]) -> dict[str, Any]:
    """Provider options with the scenario's provider under the name of the one that we call."""
    return {OWN_PROVIDER if name == SCENARIO_PROVIDER else name: value for name, value in options.items()}
