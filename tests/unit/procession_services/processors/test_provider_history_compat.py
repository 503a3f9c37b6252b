"""History of one provider, as another one gets it; and conversations that are mended after a refusal."""

import copy
import re

import pytest

from procession.messages import new_message
from procession.testing import ProcessorKit, check_processor
from procession_services.processors.core.history_repair import REPAIRS
from procession_services.processors.provider_history_compat import CompatRule, ProviderHistoryCompat
from tests.support.cost import growth

ASKED = {"role": "user", "content": [{"type": "text", "text": "q"}]}
CALL = {"type": "tool-call", "toolCallId": "c", "toolName": "web", "input": {}, "providerExecuted": True}
RESULT = {
    "type": "tool-result",
    "toolCallId": "c",
    "toolName": "web",
    "output": {"type": "text", "value": "x"},
}
BAD_IDS = "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"


def says(*parts):
    return {"role": "assistant", "content": [*parts]}


def thinks(text, **fields):
    return {"type": "reasoning", "text": text, **fields}


def text(value="a"):
    return {"type": "text", "text": value}


async def sent(prompt, model, stored=()):
    kit = ProcessorKit(ProviderHistoryCompat, model=model)
    kit.message_list.add(list(stored), "memory")
    before = copy.deepcopy(prompt)
    out = await kit.llm_request(prompt)
    assert prompt == before  # what is given is never changed
    return out.prompt


class TestPrompt:
    async def test_nothing_to_do_leaves_the_prompt(self):
        prompt = [ASKED, says(thinks("t"), text())]
        assert await sent(prompt, "openai/gpt-5") == prompt

    async def test_the_result_of_a_foreign_call_goes_wherever_it_stands(self):
        """D-76: the reference leaves one that stands in the assistant's own turn."""
        call = {**CALL, "providerOptions": {"anthropic": {}}}
        assert await sent([ASKED, says(text(), call, RESULT)], "openai/gpt-5") == [ASKED, says(text())]
        apart = [ASKED, says(call), {"role": "tool", "content": [RESULT]}]
        assert await sent(apart, "gemini/gemini-2.5-pro") == [ASKED]

    async def test_no_call_is_left_without_the_result_that_went_with_its_id(self):
        foreign = {**CALL, "providerOptions": {"anthropic": {}}}
        again = {**CALL, "providerExecuted": False}
        prompt = [ASKED, says(foreign), says(text(), again), {"role": "tool", "content": [RESULT]}]
        assert await sent(prompt, "openai/gpt-5") == [ASKED, says(text())]

    async def test_calls_of_our_own_tools_stay(self):
        call = {**CALL, "providerExecuted": False, "providerOptions": {"anthropic": {}}}
        prompt = [ASKED, says(call), {"role": "tool", "content": [RESULT]}]
        assert await sent(prompt, "openai/gpt-5") == prompt

    @pytest.mark.parametrize("provider", ["openai", "azure"])
    async def test_a_provider_of_the_same_family_keeps_its_calls(self, provider):
        prompt = [ASKED, says({**CALL, "providerOptions": {"openai": {}}})]
        assert await sent(prompt, f"{provider}/gpt-5") == prompt

    async def test_a_turn_of_reasoning_alone_is_dropped_for_cerebras(self):
        """D-76: the reference leaves an assistant turn without content."""
        assert await sent([ASKED, says(thinks("t")), ASKED], "cerebras/llama") == [ASKED, ASKED]

    async def test_anthropic_keeps_reasoning_that_our_gateway_noted_as_signed(self):
        prompt = [ASKED, says(thinks("t", signature="s"), thinks("", redactedData="d"), text()), ASKED]
        assert await sent(prompt, "anthropic/claude-sonnet-4-5") == prompt

    async def test_a_blank_thought_that_anthropic_signed_is_one(self):
        """R-PHC-2: only a signature without any text goes; it signs blanks like every other text."""
        blank = thinks(" ", providerOptions={"anthropic": {"signature": "s"}})
        empty = thinks("", providerOptions={"anthropic": {"signature": "s"}})
        out = await sent([ASKED, says(blank, empty, text()), ASKED], "anthropic/claude-sonnet-4-5")
        assert out == [ASKED, says(blank, text()), ASKED]

    async def test_the_turn_under_way_keeps_mixed_reasoning_also_behind_tool_results(self):
        turn = says(thinks("foreign"), thinks("own", signature="s"), {**CALL, "providerExecuted": False})
        prompt = [ASKED, turn, {"role": "tool", "content": [RESULT]}]
        assert await sent(prompt, "anthropic/claude-sonnet-4-5") == prompt
        assert await sent([*prompt, ASKED], "anthropic/claude-sonnet-4-5") != [*prompt, ASKED]

    async def test_what_another_provider_signed_goes_as_the_conversation_tells(self):
        part = {
            "type": "reasoning",
            "reasoning": "t",
            "details": [{"type": "text", "text": "t", "signature": "S"}],
        }
        stored = new_message("assistant", [part, text()], id="a")
        stored["content"]["metadata"] = {"provider": "bedrock", "modelId": "m"}
        prompt = [ASKED, says(thinks("t", signature="S"), text()), ASKED]
        assert await sent(prompt, "anthropic/claude-sonnet-4-5", [stored]) == [ASKED, says(text()), ASKED]
        assert await sent(prompt, "bedrock/claude", [stored]) == prompt

    async def test_reminders_have_another_name_at_azure(self):
        prompt = [
            {"role": "system", "content": "<system-reminder a='b'>x</system-reminder> <system-reminders>"}
        ]
        (entry,) = await sent(prompt, "azure/gpt-5")
        assert entry["content"] == "<memory-context a='b'>x</memory-context> <system-reminders>"

    async def test_own_rules_come_last(self):
        seen = []

        class Own(ProviderHistoryCompat):
            def additional_rules(self):
                def note(prompt, args):
                    seen.append((prompt, args.model.id))
                    return [*prompt, ASKED]

                return [
                    CompatRule("note", apply_to_prompt=note),
                    CompatRule("nothing", apply_to_prompt=lambda *_: None),
                ]

        kit = ProcessorKit(Own, model="cerebras/m")
        out = await kit.llm_request([ASKED, says(thinks("t"), text())])
        assert out.prompt == [ASKED, says(text()), ASKED]
        assert seen == [([ASKED, says(text())], "cerebras/m")]


def called(*ids):
    parts = [
        {
            "type": "tool-invocation",
            "toolInvocation": {"state": "result", "toolCallId": i, "toolName": "t", "args": {}, "result": i},
        }
        for i in ids
    ]
    return [{"role": "user", "content": "q"}, {"role": "assistant", "content": {"format": 2, "parts": parts}}]


def call_ids(messages):
    return [part["toolInvocation"]["toolCallId"] for part in messages[-1]["content"]["parts"]]


async def refused(messages, error, retries=0, processor=ProviderHistoryCompat):
    kit = ProcessorKit(processor)
    kit.message_list.add(messages, "memory")
    kit.context.retry_count = retries
    return await kit.api_error(error)


class TestRepairs:
    async def test_ids_that_were_different_stay_different(self):
        """D-75: the reference makes one id of two."""
        out = await refused(called("a.b", "a:b", "a_b", "fine"), BAD_IDS)
        assert out.retry
        ids = call_ids(out.messages)
        assert len(set(ids)) == 4
        assert all(re.fullmatch(r"[A-Za-z0-9_-]+", each) for each in ids)
        assert ids[2:] == ["a_b", "fine"]
        results = [part["toolInvocation"]["result"] for part in out.messages[-1]["content"]["parts"]]
        assert results == ["a.b", "a:b", "a_b", "fine"]

    async def test_nothing_to_mend_is_no_reason_to_try_again(self):
        assert not (await refused(called("fine"), BAD_IDS)).retry

    async def test_once(self):
        out = await refused(called("a.b"), BAD_IDS, retries=1)
        assert not out.retry
        assert call_ids(out.messages) == ["a.b"]

    async def test_an_item_whose_reasoning_is_gone_is_sent_as_text(self):
        error = "Item 'msg_1' of type 'message' was provided without its required 'reasoning' item: 'rs_1'."
        metadata = {
            "openai": {"itemId": "msg_1", "resultItemId": "fc_1", "cached": 3},
            "other": {"itemId": "o"},
        }
        orphan = new_message("assistant", [{**text(), "providerMetadata": metadata}], id="a")
        out = await refused([{"role": "user", "content": "q"}, orphan], error)
        assert out.retry
        (part,) = out.messages[-1]["content"]["parts"]
        assert part["providerMetadata"] == {"openai": {"cached": 3}, "other": {"itemId": "o"}}

    def test_a_long_message_takes_linear_time(self):
        def look(size):
            for repair in REPAIRS:
                assert not repair.fits(["tool_use.id tool_call_id item 'x" * size])

        assert growth(look, 30_000) < 12

    async def test_own_repairs_come_last(self):
        class Own(ProviderHistoryCompat):
            def additional_rules(self):
                def fix(messages):
                    messages[0]["content"]["parts"][0]["text"] = "fixed"
                    return True

                return [CompatRule("own", (re.compile("too odd"),), fix)]

        out = await refused([{"role": "user", "content": "q"}], "this is too odd", processor=Own)
        assert out.retry
        assert out.texts == ["fixed"]
        assert not (await refused([{"role": "user", "content": "q"}], "fine", processor=Own)).retry


async def test_conformance():
    await check_processor(ProviderHistoryCompat)
