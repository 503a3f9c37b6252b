"""`tool-search` over the bus: the helpers run in the tools service, the processor in that of the input side."""

import pytest

from tests.support.system import text_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

CATALOG = {
    "say": {"id": "echo", "description": "Repeats a text to the user"},
    "sum": {"id": "calculator", "description": "Calculates an arithmetic expression"},
}
AGENT = {"inputProcessors": [{"id": "tool-search", "options": {"tools": CATALOG}}]}
DONE = {"chunks": ["done"]}


def call(name, /, **arguments):
    return {"tool_calls": [{"id": f"c-{name}", "name": name, "arguments": arguments}]}


def offered(request):
    return [each["function"]["name"] for each in request.get("tools", [])]


async def test_the_model_searches_loads_and_calls(system):
    model = system.script(
        call("search_tools", query="repeat text"),
        call("load_tool", toolName="echo"),
        call("echo", text="hi"),
        DONE,
    )
    result, chunks = await system.run(agent={**AGENT, "model": model})
    assert (result.status, text_of(chunks)) == ("finished", "done")
    results = {c["payload"]["toolName"]: c["payload"]["result"] for c in chunks if c["type"] == "tool-result"}
    (hit,) = results["search_tools"]["results"]
    assert hit["name"] == "echo"
    assert results["load_tool"] == {
        "success": True,
        "message": results["load_tool"]["message"],
        "toolName": "echo",
    }
    assert results["echo"] == "echo hi"
    helpers = ["search_tools", "load_tool"]
    assert [offered(each) for each in system.requests(model)] == [helpers, helpers, *[[*helpers, "echo"]] * 2]


async def test_a_tool_that_is_not_loaded_cannot_be_called(system):
    _, chunks = await system.run(call("echo", text="hi"), DONE, agent=AGENT)
    (error,) = [chunk for chunk in chunks if chunk["type"] == "tool-error"]
    assert "search_tools" in error["payload"]["error"]["message"]


async def test_a_thread_keeps_what_it_loaded_and_others_have_their_own(system):
    first = call("load_tool", toolNames=["calculator"])

    async def tools(thread):
        model = system.script(DONE)
        context = {"mastra__threadId": thread} if thread else {}
        await system.run(agent={**AGENT, "model": model}, request_context=context)
        return offered(system.requests(model)[0])

    await system.run(first, DONE, agent=AGENT, request_context={"mastra__threadId": "one"})
    await system.run(first, DONE, agent=AGENT)
    assert "calculator" in await tools("one")
    assert "calculator" not in await tools("two")
    assert "calculator" not in await tools(None)
