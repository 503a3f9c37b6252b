"""The tools of working memory: what the model is shown, and what is asked of the memory service."""

import orjson
import pytest
from jsonschema import ValidationError, validate

from procession.args import RequestContext
from procession.errors import InvalidOptionsError
from procession.tools import ToolContext
from procession_services.bus import RequestTimeoutError
from procession_services.memory.working import WorkingMemory
from procession_services.memory.working_tool import SetWorkingMemory, UpdateWorkingMemory, WorkingMemoryError

SCHEMA = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "mood": {"enum": ["good", "bad"]},
        "home": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def context(**memory):
    return ToolContext(
        tool_call_id="c",
        tool_name="updateWorkingMemory",
        run_id="run",
        tenant="acme",
        writer=None,  # type: ignore[arg-type]  # it writes nothing
        request_context=RequestContext({"MastraMemory": memory}),
    )


@pytest.mark.parametrize(
    "change",
    [
        {"memory": {"home": {}}},
        {"memory": {"name": None, "mood": None}},
        {"memory": {"home": None}},
        {"name": "Ann"},
    ],
)
def test_a_change_need_not_have_every_field(change):
    """R-WM-10, R-WM-13."""
    validate(change, UpdateWorkingMemory({"schema": SCHEMA}).parameters)


REFERRING = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.org/person",
    "type": "object",
    "properties": {
        "home": {"$ref": "#/$defs/address"},
        "work": {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]},
        "second": {"$ref": "#/properties/home"},
        "friends": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["home"],
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "near": {"$ref": "#/$defs/address"}},
            "required": ["city"],
        },
        "anything": True,
    },
}


def test_references_of_a_schema_still_lead_somewhere():
    """As Pydantic and Zod write them."""
    parameters = UpdateWorkingMemory({"schema": REFERRING}).parameters
    near = {"near": {"near": None}}
    validate(
        {"memory": {"home": near, "work": near, "second": near, "friends": [{"home": near}]}}, parameters
    )
    for wrong in (
        {"home": {"city": 1}},
        {"second": {"city": 1}},
        {"friends": [{"home": {"near": {"city": 1}}}]},
    ):
        with pytest.raises(ValidationError):
            validate({"memory": wrong}, parameters)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "object", "properties": [1]}, "schema.properties"),
        ({"type": "object", "required": 5}, "schema.required"),
        ({"properties": {"a": {"enum": 5}}}, "schema.properties.a.enum"),
    ],
)
def test_what_is_no_schema_is_refused_when_it_is_built(schema, place):
    for kind in (WorkingMemory.build, UpdateWorkingMemory):
        with pytest.raises(InvalidOptionsError) as caught:
            kind({"schema": schema})
        assert f"{place} is not a valid JSON Schema" in str(caught.value)


def test_the_forms():
    assert UpdateWorkingMemory().parameters["required"] == ["memory"]
    assert UpdateWorkingMemory({"vnext": True}).parameters["required"] == ["newMemory"]
    assert (UpdateWorkingMemory.id, SetWorkingMemory.id) == ("updateWorkingMemory", "setWorkingMemory")


async def test_ids_come_from_the_run_and_never_from_the_model():
    asked = []

    async def request(subject, body, _seconds):
        asked.append((subject, orjson.loads(body)))
        return orjson.dumps({"result": {"success": True}})

    tool = SetWorkingMemory.connected(request)({"scope": "thread", "template": "# Me"})
    given = {"memory": "x", "resource": "victim", "thread": "theirs"}
    told = await tool.execute(given, context(thread={"id": "t"}, resourceId="r"))
    assert told == {"success": True}
    [(subject, body)] = asked
    assert subject == "procession.v1.api.memory.acme.update-note"
    assert (body["thread"], body["resource"], body["options"]["scope"]) == ("t", "r", "thread")


async def test_a_memory_service_that_does_not_answer_is_told_to_the_model():
    async def silent(subject, _body, _seconds):
        raise RequestTimeoutError(subject)

    with pytest.raises(WorkingMemoryError, match="the memory service gave no answer within 10 s"):
        await UpdateWorkingMemory.connected(silent)().execute({"memory": "x"}, context())


async def test_refusals_reach_the_model():
    async def refuse(_subject, _body, _seconds):
        return orjson.dumps({"error": {"code": "INVALID_UPDATE", "message": "no thread id"}})

    with pytest.raises(WorkingMemoryError, match="no thread id"):
        await UpdateWorkingMemory.connected(refuse)().execute({"memory": "x"}, context())
    with pytest.raises(WorkingMemoryError, match="read-only"):
        await UpdateWorkingMemory.connected(refuse)().execute(
            {"memory": "x"}, context(memoryConfig={"readOnly": True})
        )
    with pytest.raises(WorkingMemoryError, match="connected to the bus"):
        await UpdateWorkingMemory().execute({"memory": "x"}, context())
