import copy

import pytest

from procession.errors import InvalidOptionsError
from procession.testing import ProcessorKit
from procession_services.processors.core.tool_traffic import output_text
from procession_services.processors.tool_call_filter import ToolCallFilter


def call(call_id, name="search"):
    return {"type": "tool-call", "toolCallId": call_id, "toolName": name, "input": {}}


def result(call_id, name="search", text="found", **more):
    output = {"type": "text", "value": text}
    return {"type": "tool-result", "toolCallId": call_id, "toolName": name, "output": output, **more}


def said(*content, role="assistant"):
    return {"role": role, "content": list(content)}


USER = {"role": "user", "content": [{"type": "text", "text": "q"}]}
OLD = [USER, said(call("a")), said(result("a"), role="tool"), USER]
NEW = [said(call("b")), said(result("b"), role="tool")]


async def filtered(prompt, **options):
    return (await ProcessorKit(ToolCallFilter, options).llm_request(prompt)).prompt


async def test_history_goes_and_the_calls_of_this_run_stay():
    kit = ProcessorKit(ToolCallFilter)
    assert (await kit.llm_request(OLD)).prompt == [USER, USER]
    assert (await kit.llm_request(OLD + NEW)).prompt == [USER, USER, *NEW]


async def test_the_state_of_a_run_is_json():
    kit = ProcessorKit(ToolCallFilter)
    await kit.llm_request(OLD)
    assert kit.state == {"history": ["a"]}


async def test_the_conversation_and_the_prompt_given_stay_as_they_are():
    prompt = OLD + NEW
    before = copy.deepcopy(prompt)
    assert await filtered(prompt, filterAfterToolSteps=0) == [USER, USER]
    assert prompt == before


async def test_where_nothing_is_left_out_nothing_is_returned():
    assert await filtered([USER]) == [USER]
    assert await filtered(OLD, exclude=[]) == OLD
    assert await filtered(OLD, exclude=["mail"]) == OLD


@pytest.mark.parametrize(("steps", "left"), [(0, 0), (-2, 0), (1, 2), (2, 4), (9, 4)])
async def test_the_last_tool_steps_stay(steps, left):
    prompt = [*OLD, *NEW]
    assert len(await filtered(prompt, filterAfterToolSteps=steps)) == 2 + left


async def test_steps_are_counted_over_all_tools_and_parallel_calls_are_one():
    prompt = [
        said(call("a", "x"), call("b", "y")),
        said(result("a", "x"), result("b", "y"), role="tool"),
        said(call("c", "y")),
        said(result("c", "y"), role="tool"),
    ]
    assert await filtered(prompt, exclude=["x"], filterAfterToolSteps=2) == prompt
    assert await filtered(prompt, exclude=["x"], filterAfterToolSteps=1) == [
        said(call("b", "y")),
        said(result("b", "y"), role="tool"),
        *prompt[2:],
    ]


async def test_a_call_and_its_result_go_together_even_with_different_names():
    prompt = [said(call("a", "x")), said(result("a", "y"), role="tool"), USER]
    assert await filtered(prompt, exclude=["y"]) == [USER]


async def test_other_parts_keep_their_place():
    text, approval = {"type": "text", "text": "t"}, {"type": "tool-approval-response", "approvalId": "z"}
    prompt = [said(text, call("a"), text), said(result("a"), approval, role="tool")]
    assert await filtered(prompt) == [said(text, text), said(approval, role="tool")]


async def test_an_output_made_for_the_model_stands_for_the_call():
    marked = result("a", text="short", providerOptions={"mastra": {"modelOutput": "short"}})
    prompt = [said(call("a"), call("b")), said(marked, result("b"), role="tool")]
    assert await filtered(prompt, preserveModelOutput=True) == [
        said({"type": "text", "text": "search result:\nshort"})
    ]
    assert await filtered(prompt) == []


async def test_a_result_of_the_provider_is_replaced_in_its_place():
    marked = result("a", text="short", providerOptions={"mastra": {"modelOutput": True}})
    assert await filtered([said(marked)], preserveModelOutput=True) == [
        said({"type": "text", "text": "search result:\nshort"})
    ]
    assert await filtered([said(marked, role="tool")], preserveModelOutput=True) == []


async def test_calls_that_share_an_id_keep_their_own_outputs():
    def marked(text):
        return said(result("a", text=text, providerOptions={"mastra": {"modelOutput": text}}), role="tool")

    prompt = [said(call("a")), marked("one"), said(call("a")), said(result("a"), role="tool")]
    assert await filtered([*prompt, said(call("a")), marked("two")], preserveModelOutput=True) == [
        said({"type": "text", "text": "search result:\none"}),
        said({"type": "text", "text": "search result:\ntwo"}),
    ]


async def test_the_output_for_the_model_is_found_in_the_conversation():
    kit = ProcessorKit(ToolCallFilter, {"preserveModelOutput": True})
    done = {"state": "result", "toolCallId": "a", "toolName": "search", "args": {}, "result": "long " * 50}
    parts = [
        {
            "type": "tool-invocation",
            "toolInvocation": {**done, "modelOutput": {"type": "text", "value": "short"}},
        },
        {"type": "tool-invocation", "toolInvocation": {**done, "toolCallId": "b"}},
    ]
    kit.message_list.add({"role": "assistant", "content": {"format": 2, "parts": parts}}, "memory")
    kit.message_list.add("next", "input")
    outcome = await kit.llm_request()
    assert "search result:\\nshort" in str(outcome.prompt)
    assert "long" not in str(outcome.prompt)


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (42, "42"),
        (True, "true"),
        (None, None),
        ({"type": "json", "value": None}, None),
        ({"type": "text", "value": "v"}, "v"),
        ({"type": "text", "text": "t"}, "t"),
        ({"type": "json", "value": {"a": [1]}}, '{"a":[1]}'),
        ({"text": "t", "more": 1}, "t"),
        (["a", "", {"text": "b"}, None], "a\nb"),
        ([], "[]"),
        ([None, ""], '[null,""]'),
    ],
)
def test_the_text_of_an_output(output, text):
    assert output_text(output) == text


@pytest.mark.parametrize("wrong", ["search", None, {"search": True}])
def test_an_exclude_that_is_no_list_is_refused(wrong):
    with pytest.raises(InvalidOptionsError, match="exclude"):
        ToolCallFilter.build({"exclude": wrong})
