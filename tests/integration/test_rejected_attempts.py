"""What a rejected attempt leaves behind: nothing, whatever processors made of the conversation in it (R-AB-28, 35)."""

import itertools

import pytest
import pytest_asyncio

from tests.support.rewriting import WAYS
from tests.support.system import SERVICES, running_system

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

LOOK = {"chunks": ["let me look"], "tool_calls": [{"id": "a", "name": "echo", "arguments": {"text": "it"}}]}
WRONG = {"chunks": ["WRONG answer"]}  # a word that no id can have
DONE = {"chunks": ["done"]}
PLUGINS = ("tests.support.plugin", "tests.support.rewriting")
_numbers = itertools.count()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "unused")
        async with (
            running_system(servers, tmp_path_factory.mktemp("logs")) as system,
            system.inside(*SERVICES, plugins=PLUGINS),
        ):
            yield system


async def run(system, *calls, way, reject="reject", retry=True):
    """The result of a run, what its model was asked, and what is remembered of it."""
    model, resource = system.script(*calls), f"u{next(_numbers)}"
    output = [
        {"id": "rewrite", "options": {"way": way}},
        {"id": reject, "options": {"retry": retry}},
    ]
    agent = {
        "model": model,
        "outputProcessors": output,
        "tools": ["echo"],
        "maxProcessorRetries": 1,
        "memory": {},
    }
    result, _ = await system.run(agent=agent, memory={"thread": resource, "resource": resource})
    prompts = [request["messages"] for request in system.requests(model)]
    if result.status == "blocked":
        return result, prompts, ""
    page = await system.client.memory.messages(resource, resource)
    return result, prompts, str(page["messages"])


def said_wrong(*places):
    """Which of them have the rejected answer, or what it was rewritten to."""
    return ["WRONG" in str(place).upper() for place in places]


@pytest.mark.parametrize("reject", ["reject", "memory-reject"])
@pytest.mark.parametrize("way", WAYS)
async def test_the_answer_goes_and_accepted_steps_stay(system, way, reject):
    result, prompts, remembered = await run(system, LOOK, WRONG, DONE, way=way, reject=reject)
    assert (result.status, result.retries, len(prompts)) == ("finished", 1, 3)
    assert [message["role"] for message in prompts[2]] == ["system", "user", "assistant", "tool"]
    assert said_wrong(prompts[2], result.messages, remembered) == [False] * 3
    assert prompts[2][3]["content"] == "echo it"
    assert ("echo it" in remembered, "done" in remembered) == (True, True)
    edited = {"drop-earlier": "done", "edit": "LET ME LOOKdone", "edit-in-place": "let me look, editeddone"}
    assert result.text == edited.get(way, "let me lookdone")


@pytest.mark.parametrize("way", WAYS)
async def test_a_first_answer_leaves_nothing(system, way):
    result, prompts, remembered = await run(system, WRONG, DONE, way=way)
    assert (result.text, [message["role"] for message in prompts[1]]) == ("done", ["system", "user"])
    assert said_wrong(prompts[1], result.messages, remembered) == [False] * 3


@pytest.mark.parametrize("way", WAYS)
async def test_a_blocked_answer_is_in_no_result(system, way):
    result, prompts, _ = await run(system, LOOK, WRONG, way=way, retry=False)
    assert (result.status, len(prompts)) == ("blocked", 2)
    assert "WRONG" not in result.model_dump_json().upper()
    assert "echo it" in str(result.messages)


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_whose_result_is_rejected_goes_too(system, way):
    again = {
        "chunks": ["WRONG idea"],
        "tool_calls": [{"id": "b", "name": "echo", "arguments": {"text": "WRONG"}}],
    }
    result, prompts, remembered = await run(system, LOOK, again, DONE, way=way, reject="reject-result")
    assert [message["role"] for message in prompts[2]] == ["system", "user", "assistant", "tool"]
    assert said_wrong(prompts[2], result.messages, remembered) == [False] * 3


@pytest.mark.parametrize(
    ("answers", "status", "retries"),
    [([WRONG, DONE], "finished", 1), ([WRONG, WRONG, DONE], "finished", 2), ([WRONG] * 4, "blocked", 2)],
)
async def test_a_guard_of_all_that_has_come_rejects_an_answer_once(system, answers, status, retries):
    """R-AB-23: it rejects `step-finish` of the rejected answer, too, which is told all the same."""
    model = system.script(*answers)
    agent = {"model": model, "outputProcessors": [{"id": "reject-so-far"}], "maxProcessorRetries": 2}
    result, chunks = await system.run(agent=agent)
    assert (result.status, result.retries, len(system.requests(model))) == (status, retries, retries + 1)
    ends = [chunk["payload"] for chunk in chunks if chunk["type"] == "step-finish"]
    assert [end["stepResult"]["reason"] for end in ends].count("retry") == retries
    assert said_wrong(ends) == [False]
