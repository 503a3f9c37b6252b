"""The tools of working memory: what the model is shown, and what is asked of the memory service."""

import orjson
import pytest
from jsonschema import validate

from procession.args import RequestContext
from procession.tools import ToolContext
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
