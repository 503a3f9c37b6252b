"""`structured-output.json`: a whole run with a model that answers and one that structures.

The run is `ProcessorKit`'s: attempts, retries within the budget, state and hooks are those of the services. How a run
ends after an abort or a failure is the orchestrator's matter; that is told here as it decides (A-7, A-13, D-30), and
tests/integration/test_structured_output.py holds it against the running system.
"""

import json
import re
from typing import Any

from procession.errors import InvalidOptionsError, ProcessorError
from procession.services import ModelCallError
from procession.testing import ProcessorKit, ScriptedModels, environment
from procession_schemas.chunks import Chunk
from procession_services.processors.structured_output import StructuredOutput

_FIELD = re.compile(r"(\w+)(\??):\s*(\w+)")
_TITLES = re.compile(r"^# (.+)$", re.MULTILINE)
_CODE = re.compile(r"[A-Z]+(?:_[A-Z]+){2,}")
_KINDS = {"string": "string", "number": "number", "boolean": "boolean", "object": "object", "array": "array"}
_ID = StructuredOutput.id


async def observe(vector: dict[str, Any]) -> Any:
    """Builds the processor, or plays the run."""
    options = _options(vector["options"])
    if vector["input"].get("hook") == "constructor":
        return _built(options)
    return await _played(vector["input"], {"model": "test/structurer", **options})


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Options as our build takes them: a schema that vectors tell in words becomes JSON Schema."""
    known = {key: value for key, value in given.items() if value != "<undefined>" and key != "logger"}
    if isinstance(known.get("schema"), str):
        known["schema"] = _schema(known["schema"])
    return known


def _schema(told: str) -> dict[str, Any]:
    fields = {name: (_KINDS.get(kind), mark) for name, mark, kind in _FIELD.findall(told)}
    properties = {name: {"type": kind} if kind else {} for name, (kind, _) in fields.items()}
    required = [name for name, (_, mark) in fields.items() if not mark]
    return {"type": "object", "properties": properties, "required": required}


def _built(options: dict[str, Any]) -> dict[str, Any]:
    try:
        StructuredOutput.build(options)
    except InvalidOptionsError as error:
        code = _CODE.search(str(error))
        return {"throws": str(error), **({"id": code[0]} if code else {})}
    return {"built": True}


def _reply(reply: Any) -> Any:
    if isinstance(reply, dict) and "modelThrows" in reply:
        return ModelCallError(str(reply["modelThrows"]))
    return reply if isinstance(reply, str) else json.dumps(reply)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


async def _played(given: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    models = ScriptedModels([_reply(each) for each in _listed(given.get("structuringReply"))])
    kit = ProcessorKit(StructuredOutput, options, environment=environment(models))
    texts = _listed(given.get("mainText", ""))
    budget = given.get("maxProcessorRetries") or 0
    chunks: list[Chunk] = []
    calls = 0
    while True:
        answer = await kit.stream(_answer(given, str(texts[min(calls, len(texts) - 1)])))
        calls += 1
        chunks += answer.chunks
        try:
            tripwire = (await kit.output_step()).tripwire
        except ProcessorError as error:
            made = {"type": "error", "payload": {"error": {"processorId": error.processor_id}}}
            told = _told(answer.text, [*chunks, made], kit, models, calls)  # type: ignore[list-item]
            return told | {"text": "", "finishReason": "error", "object": f"ERR {error}"}
        if tripwire is None:
            return _told(answer.text, chunks, kit, models, calls)
        if calls > budget or not tripwire.retry:
            told = _told("", chunks, kit, models, calls) | {"finishReason": "other"}
            trip = {"reason": tripwire.reason, "retry": tripwire.retry, "metadata": tripwire.metadata}
            return told | {"tripwire": {**trip, "processorId": tripwire.processor_id}}


def _answer(given: dict[str, Any], text: str) -> list[str | Chunk]:
    """The chunks of an answer, with reasoning and tools in front where the vector has some."""
    chunks: list[Any] = [{"type": "step-start", "payload": {}}]
    thoughts = _listed(given.get("reasoning") or [])
    chunks += [{"type": "reasoning-delta", "payload": {"id": "r", "text": piece}} for piece in thoughts]
    tools = _listed(given.get("toolCalls") or given.get("tools") or [])
    for number, call in enumerate(tools):
        payload = {
            "toolCallId": f"c{number}",
            "toolName": call.get("toolName") or call.get("name"),
            "args": call.get("args"),
        }
        chunks += [{"type": "tool-call", "payload": payload}]
        chunks += [{"type": "tool-result", "payload": {**payload, "result": call.get("result")}}]
    if tools:
        finish = {"stepResult": {"reason": "tool-calls"}}
        chunks += [{"type": "step-finish", "payload": finish}, {"type": "step-start", "payload": {}}]
    end: dict[str, Any] = {"stepResult": {"reason": "stop"}, "output": {"usage": {}}}
    return [*chunks, text, {"type": "finish", "payload": end}]


def _told(
    text: str, chunks: list[Chunk], kit: ProcessorKit, models: ScriptedModels, calls: int
) -> dict[str, Any]:
    made = (kit.context.response or {}).get("object")
    return {
        **({"object": made["object"]} if made else {}),
        "text": text,
        "finishReason": "stop",
        "mainModelCalls": calls,
        "structuringModelCalls": len(models.requests),
        "structuredChunkTypes": [told for chunk in chunks if (told := _kind(chunk))],
        "sectionsSentToStructurer": _TITLES.findall(models.requests[-1].prompt[-1]["content"]),
    }


def _kind(chunk: Any) -> str | None:
    """A chunk of the structurer by type and origin; an error names its processor in its payload (D-30)."""
    metadata = chunk.get("metadata") or {}
    origin = metadata.get("from") or ((chunk.get("payload") or {}).get("error") or {}).get("processorId")
    if origin != _ID or not chunk["type"].startswith(("object", "error")):
        return None
    return f"{chunk['type']}@{origin}{'/fallback' if metadata.get('fallback') else ''}"


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """A-7 and A-13 for a run that was blocked, D-30 for one that failed, A-25 for text that was taken back."""
    expected = vector["expected"]
    paths = {each.partition(":")[0] for each in differences}
    if observed.get("tripwire") and expected.get("tripwire"):
        as_ruled = observed["finishReason"] == "other" and not observed["text"]
        return (
            ("A-7" if "finishReason" in paths else "A-13")
            if as_ruled and paths <= {"finishReason", "text"}
            else None
        )
    if observed.get("finishReason") == "error" == expected.get("finishReason"):
        return "D-30" if paths == {"text"} and not observed["text"] else None
    texts = [str(each) for each in _listed(vector["input"].get("mainText", ""))]
    tries = [texts[min(at, len(texts) - 1)] for at in range(observed.get("mainModelCalls", 0))]
    repeated = len(tries) > 1 and observed["text"] == tries[-1] and expected.get("text") == "".join(tries)
    return "A-25" if paths == {"text"} and repeated else None
