"""`working-memory.json`: the system message, the tool in its forms, and the tags that history cuts out."""

import json
import re
from typing import Any

from procession_services.memory.core.notes import InvalidUpdateError
from procession_services.memory.core.storable import without_blocks
from procession_services.memory.core.templates import empty_object, template_of
from procession_services.memory.notes import NoteToolOptions, update_note
from procession_services.memory.scope import place
from procession_services.memory.working import WorkingMemory
from procession_services.memory.working_tool import SetWorkingMemory, UpdateWorkingMemory
from tests.vectors.adapters.common import without
from tests.vectors.adapters.memory_run import MemoryRun, thrown
from tests.vectors.adapters.memory_stage import TENANT, DictMessages, memory_context

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": "string"}},
        },
    },
}
"""What the vectors call `<schema>`: nothing is required."""
_TOOLS = {tool.id: tool for tool in (UpdateWorkingMemory, SetWorkingMemory)}


async def observe(vector: dict[str, Any]) -> Any:
    """Runs the hook, the tool, or the function that cuts tags."""
    given = vector["input"]
    if "text" in given:
        blocks = list(re.finditer(r"<working_memory>(.*?)</working_memory>", given["text"], re.DOTALL))
        return {
            "removed": without_blocks(given["text"]),
            "extractedTags": [block[0] for block in blocks] or None,
            "firstContent": blocks[0][1] if blocks else None,
        }
    return await (_tool(vector) if "toolName" in given else _hook(vector))


async def _hook(vector: dict[str, Any]) -> Any:
    given, options = vector["input"], without(vector["options"])
    store, context = DictMessages(), given.get("context") or {}
    thread = (context.get("thread") or {}).get("id") or context.get("threadId")
    resource = context.get("resourceId") or thread
    if note := (given.get("threadMetadata") or {}).get("workingMemory"):
        store.notes[resource or "", thread or ""] = note
    if note := given.get("resourceWorkingMemory"):
        store.notes[context.get("resourceId") or "r1", None] = note
    if told := vector["expected"].get("throws"):  # nothing else says that the store fails
        store.fails = ConnectionError(told["message"])
    options.pop("templateProvider", None)
    offered = [
        value for value in given.values() if isinstance(value, dict) and {"format", "content"} <= {*value}
    ]
    provided = offered[0] if "templateProvider" in vector["options"] and offered else None
    kind = _providing(provided) if isinstance(provided, dict) else WorkingMemory
    run = MemoryRun(kind.build(options), store, memory_context(context or None))
    for key in ("systemMessages", "agentSystemMessages", "instructions"):
        if given.get(key):
            run.list.add_system(given[key])
    error = await run.input()
    told = [message["content"] for message in run.list.get_system_messages("memory")]
    observed: dict[str, Any] = {
        "systemMessagesTaggedMemory": len(told),
        "untaggedSystemMessages": len(run.list.get_system_messages()),
    }
    if error:
        observed["throws"] = thrown(error)
    return observed | ({"facts": _facts(told[0])} if told else {})


def _providing(template: dict[str, Any]) -> type[WorkingMemory]:
    class Provided(WorkingMemory):
        def template(self, args: Any) -> Any:
            return template_of(template)

    return Provided


def _facts(told: str) -> dict[str, Any]:
    """What the system message says."""
    data = _between(told, "working_memory_data")
    empty = re.search(r"^Empty, it is this object:\n(.*)$", told, re.MULTILINE)
    written = re.search(r"Write (Markdown|JSON)\b", told)
    return {
        "readOnlyForm": "cannot be changed" in told,
        "mentionsUpdateTool": "updateWorkingMemory" in told,
        "templateBlock": _between(told, "working_memory_template"),
        "dataBlock": data,
        "formatWord": written and written[1],
        "emptyJsonTemplate": json.loads(empty[1]) if empty else None,
        "saysStoreOnlyTemplateFields": "Store only what the template has" in told,
        "saysStoreWhenUnsure": "unsure whether something matters, store it" in told,
    }


def _between(told: str, tag: str) -> str | None:
    found = re.search(rf"<{tag}>\n(.*)\n</{tag}>", told, re.DOTALL)
    return found[1] if found else None


async def _tool(vector: dict[str, Any]) -> Any:
    """Calls what the tool asks the memory service for; the thread `t1` belongs to the resource `r1`."""
    given, config = vector["input"], dict(vector["options"].get("workingMemory") or {})
    signals = config.pop("useStateSignals", False)
    vnext = "vnext" in (config.pop("version", None), vector["options"].get("version"))
    config.pop("enabled", None)
    if config.get("schema") == "<schema>":
        config["schema"] = SCHEMA
    tool = _TOOLS[given["toolName"]]({**config, "vnext": vnext})
    assert signals == (tool.id == "setWorkingMemory")
    here = place(memory_context({"threadId": given.get("threadId"), "resourceId": given.get("resourceId")}))
    store = DictMessages()
    home = ("r1", "t1") if config.get("scope") == "thread" else ("r1", None)
    if given.get("existing") is not None:
        store.notes[home] = given["existing"]
    observed: dict[str, Any] = {}
    try:
        options = NoteToolOptions.model_validate(tool.options.model_dump(by_alias=True, exclude_unset=True))
        observed["result"] = await update_note(
            store, TENANT, options, given.get("toolInput") or {}, resource=here.resource, thread=here.thread
        )
    except InvalidUpdateError as error:
        observed["throws"] = thrown(error)
    return observed | {"storedAfter": store.notes.get(home)}


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """D-16: a JSON template that is no schema is shown; D-86: a thread is one of its resource, whoever names it."""
    given, expected = vector["input"], vector["expected"]
    if "facts" in observed and "facts" in expected:
        template = vector["options"].get("template") or {}
        shown = observed["facts"].get("emptyJsonTemplate")
        same = {**expected["facts"], "emptyJsonTemplate": shown} == observed["facts"]
        honoured = template.get("format") == "json" and shown == empty_object(template_of(template))
        return "D-16" if same and honoured and expected["facts"]["emptyJsonTemplate"] is None else None
    foreign = given.get("threadId") == "t1" and given.get("resourceId") not in (None, "r1")
    if foreign and "throws" in expected and observed.get("result") == {"success": True}:
        return "D-86" if observed["storedAfter"] == given.get("existing") else None
    return None
