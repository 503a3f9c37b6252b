"""A second model makes the object of the answer: chunks, result and retries on the running system."""

import pytest

from tests.support.system import text_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "number"}},
    "required": ["name", "age"],
}
ANN = {"name": "Ann", "age": 30}
GOOD = {"chunks": ['{"name": "Ann"', ', "age": 30}']}
BAD = {"chunks": ['{"name": "Ann"}']}
SAID = {"chunks": ["Ann ", "is 30"]}


def structured(second, **fields):
    return {"structuredOutput": {"schema": SCHEMA, "model": second, **fields}}


def shown(chunks):
    return [(c["type"], c["object"], c["metadata"]) for c in chunks if c["type"].startswith("object")]


async def test_the_object_is_made_by_the_second_model_alone(system):
    main, second = system.script(SAID), system.script(GOOD)
    result, chunks = await system.run(agent={"model": main, **structured(second)})
    origin = {"from": "structured-output"}
    assert shown(chunks) == [
        ("object", {"name": "Ann"}, origin),
        ("object", ANN, origin),
        ("object-result", ANN, origin),
    ]
    assert (result.status, result.text, result.object) == ("finished", "Ann is 30", ANN)
    assert result.messages[-1]["content"]["metadata"]["structuredOutput"] == ANN
    assert text_of(chunks) == "Ann is 30"
    assert "response_format" not in str(system.requests(main))
    (report,) = [
        each for each in result.processors if each.processor == "structured-output" and each.model_calls
    ]
    assert report.model_tokens > 0


async def test_a_run_that_is_not_streamed_has_it_too(system):
    agent = {"model": system.script(SAID), **structured(system.script(GOOD))}
    result, _ = await system.run(agent=agent, stream=False)
    assert result.object == ANN


async def test_the_request_may_ask_for_it(system):
    result, _ = await system.run(SAID, **structured(system.script(GOOD)))
    assert result.object == ANN


async def test_strict_has_the_main_model_answer_again(system):
    main, second = system.script(SAID, {"chunks": ["Ann is thirty"]}), system.script(BAD, GOOD)
    agent = {"model": main, "maxProcessorRetries": 1, **structured(second)}
    result, _ = await system.run(agent=agent)
    assert (result.status, result.text, result.object) == ("finished", "Ann is thirty", ANN)
    assert result.retries == 1
    assert "Ann is 30" not in str(system.requests(second)[1])


async def test_strict_without_retries_blocks_the_run(system):
    result, chunks = await system.run(SAID, agent=structured(system.script(BAD)))
    assert (result.status, result.object) == ("blocked", None)
    assert result.tripwire.processor_id == "structured-output"
    assert chunks[-1]["type"] == "tripwire"
    assert "age" in result.tripwire.reason


@pytest.mark.parametrize("second", [BAD, {"error": {"status": 400, "message": "no"}}])
async def test_warn_goes_on_without_an_object(system, second):
    agent = structured(system.script(second), errorStrategy="warn")
    result, _ = await system.run(SAID, agent=agent)
    assert (result.status, result.text, result.object) == ("finished", "Ann is 30", None)


async def test_fallback_gives_the_value(system):
    none = {"name": "none", "age": 0}
    agent = structured(system.script(BAD), errorStrategy="fallback", fallbackValue=none)
    result, chunks = await system.run(SAID, agent=agent)
    assert (result.status, result.object, result.used_fallback_value) == ("finished", none, True)
    assert shown(chunks)[-1][2] == {"from": "structured-output", "fallback": True}


async def test_fallback_without_a_value_fails_the_run(system):
    result, chunks = await system.run(SAID, agent=structured(system.script(BAD), errorStrategy="fallback"))
    assert (result.status, result.finish_reason) == ("failed", "error")
    assert (result.error.code, result.error.processor_id) == ("STRUCTURED_OUTPUT_FAILED", "structured-output")
    assert chunks[-1]["type"] == "error"
    assert text_of(chunks) == "Ann is 30"


async def test_tools_are_used_first_and_told_to_the_second_model(system):
    call = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
    second = system.script(GOOD)
    agent = {"model": system.script(call, SAID), "tools": ["echo"], **structured(second)}
    result, _ = await system.run(agent=agent)
    assert result.object == ANN
    (asked,) = system.requests(second)
    assert all(title in str(asked) for title in ("# Tool Calls", "# Tool Results", "# Assistant Response"))


async def test_the_answer_is_structured_as_it_went_out(system):
    second = system.script(GOOD)
    result, _ = await system.run(SAID, agent={"outputProcessors": ["upper"], **structured(second)})
    assert result.text == "ANN IS 30"
    assert "ANN IS 30" in str(system.requests(second)[0])
