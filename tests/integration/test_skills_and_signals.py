"""Skills and signals over the bus: what one service adds, the others show and run."""

import pytest

from procession_services.processors.workspace import ROOTS
from tests.support.system import text_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

DONE = {"chunks": ["done"]}
REFUSAL = (
    "This model does not support assistant message prefill. The conversation must end with a user message."
)


def call(name, /, **arguments):
    return {"tool_calls": [{"id": f"c-{name}", "name": name, "arguments": arguments}]}


def results(chunks):
    return {c["payload"]["toolName"]: c["payload"]["result"] for c in chunks if c["type"] == "tool-result"}


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.setenv(ROOTS, str(tmp_path))
    directory = tmp_path / "skills" / "forms"
    directory.mkdir(parents=True)
    (directory / "SKILL.md").write_text(
        "---\nname: forms\ndescription: Fills forms\n---\nRead fields.md first."
    )
    (directory / "fields.md").write_text("name, date")
    return str(tmp_path)


async def test_a_skill_of_a_directory_is_activated_and_its_file_read(system, workspace):
    model = system.script(
        call("skill", name="forms"), call("skill_read", name="forms", path="fields.md"), DONE
    )
    processor = {"id": "skills-processor", "options": {"workspace": workspace, "blockingRefresh": True}}
    result, chunks = await system.run(agent={"model": model, "inputProcessors": [processor]})
    assert (result.status, text_of(chunks)) == ("finished", "done")
    assert results(chunks)["skill"]["instructions"] == "Read fields.md first."
    assert results(chunks)["skill_read"]["content"] == "name, date"
    assert "skills/forms/SKILL.md" in str(system.requests(model)[0]["messages"][0])


async def test_a_searched_skill_becomes_part_of_the_context(system, workspace):
    model = system.script(call("search_skills", query="form"), call("load_skill", skillName="forms"), DONE)
    processor = {"id": "skill-search", "options": {"workspace": workspace, "blockingRefresh": True}}
    result, chunks = await system.run(agent={"model": model, "inputProcessors": [processor]})
    assert result.status == "finished"
    assert results(chunks)["load_skill"]["success"] is True
    shown = ["[Skill: forms]" in str(each["messages"]) for each in system.requests(model)]
    assert shown == [False, False, True]


async def test_a_signal_of_an_error_processor_is_in_the_next_prompt_and_told_to_the_client(system):
    refusal = {"error": {"status": 400, "message": REFUSAL}}
    model = system.script(refusal, DONE)
    agent = {"model": model, "errorProcessors": ["prefill-error-handler"]}
    result, chunks = await system.run(agent=agent)
    assert (result.status, result.text) == ("finished", "done")
    (told,) = [chunk for chunk in chunks if chunk["type"] == "data-signal"]
    assert (told["transient"], told["data"]["contents"]) == (True, "continue")
    last = system.requests(model)[-1]["messages"][-1]
    assert last["role"] == "user"
    assert str(last["content"]).count("<system-reminder ") == 1
