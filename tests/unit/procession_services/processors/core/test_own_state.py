"""Processors that share an id, and so a state (R-PR-6): each does what it does alone."""

import json

import pytest

from procession.testing import DictStore, DictUsage, ProcessorKit, ScriptedModels, environment
from procession_services.processors.model_selection import ModelSelection
from procession_services.processors.moderation import Moderation
from procession_services.processors.pii_detector import PIIDetector
from procession_services.processors.response_cache import ResponseCache
from procession_services.processors.structured_output import StructuredOutput
from procession_services.processors.system_prompt_scrubber import SystemPromptScrubber
from procession_services.processors.token_cost_control import TokenCostControl
from procession_services.processors.token_limiter import TokenLimiter

LONG = "".join(f"Sentence number {n}. " for n in range(60))
QUIET = json.dumps(
    {"category_scores": [], "reason": None, "categories": [], "detections": [], "redacted_content": None}
)


def two(kind, *options, **services):
    first, second = (kind.build(each) for each in options)
    return ProcessorKit(first, then=[second], environment=environment(**services))


def hates(request):
    system, text = request.prompt[0]["content"], request.prompt[1]["content"][0]["text"]
    found = [{"category": "hate", "score": 1.0}] if "- hate" in system and "ATTACK" in text else []
    return json.dumps({"category_scores": found, "reason": None})


async def test_what_one_moderation_blocks_does_not_get_out_because_another_one_stands_behind_it():
    options = [{"model": "m/x", "categories": [each]} for each in ("hate", "violence")]
    kit = two(Moderation, *options, models=ScriptedModels(hates))
    out = await kit.stream(["Fine words here. " * 12 + "ATTACK them. " + "More of it. " * 8])
    assert out.tripwire is not None
    assert "ATTACK" not in "".join(out.deltas)


@pytest.mark.parametrize("kind", [Moderation, PIIDetector, SystemPromptScrubber])
@pytest.mark.parametrize("streamed", [[LONG], list(LONG)], ids=["whole", "letters"])
async def test_two_of_one_id_leave_the_text_in_order(kind, streamed):
    out = await two(kind, *[{"model": "m/x"}] * 2, models=ScriptedModels([QUIET])).stream(streamed)
    assert out.text == LONG


async def test_each_of_two_limits_counts_the_answer_once():
    text = "word " * 40
    alone = ProcessorKit(TokenLimiter, {"limit": 60, "encoding": "estimate"})
    assert (await alone.stream([text[:100], text[100:]])).text == text
    both = two(TokenLimiter, *[{"limit": 60, "encoding": "estimate"}] * 2)
    assert (await both.stream([text[:100], text[100:]])).text == text


async def test_each_of_two_caches_keeps_the_answer_for_its_own_time():
    store, now = DictStore(lambda: now[0]), [0.0]

    async def asked():
        options = [{"agentId": "short", "ttl": 10}, {"agentId": "long", "ttl": 1000}]
        kit = two(ResponseCache, *options, store=store)
        out = await kit.llm_request([{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
        if out.response is None:
            await kit.llm_response(["hey"])
        return out.response

    assert await asked() is None
    now[0] = 100.0
    assert await asked() is not None


async def test_a_selection_stands_in_every_step_where_another_one_abstains():
    def choose(request):
        name = "p/big" if "hard" in request.prompt[0]["content"] else "p/nobody"
        return json.dumps({"model": {"choice": name, "probabilities": {"p/big": 0.9, "p/tiny": 0.1}}})

    easy = [{"model": "p/small", "criteria": "easy"}, {"model": "p/tiny", "criteria": "none"}]
    hard = [{"model": "p/big", "criteria": "hard"}, {"model": "p/tiny", "criteria": "none"}]
    options = [{"model": "m/x", "choices": each} for each in (hard, easy)]
    kit = two(ModelSelection, *options, models=ScriptedModels(choose))
    await kit.input("hello")
    assert [(await kit.input_step()).config.model for _ in range(2)] == ["p/big", "p/big"]


async def test_each_of_two_limits_for_costs_tells_that_it_is_reached():
    books = DictUsage()
    books.add("resource", "me", 1.0)
    books.add("tenant", "test", 3.0)
    options = [
        {"maxCost": most, "scope": scope, "strategy": "warn"}
        for most, scope in [(1, "resource"), (3, "tenant")]
    ]
    kit = two(TokenCostControl, *options, usage=books)
    kit.request_context["mastra__resourceId"] = "me"
    await kit.input_step()
    await kit.input_step()
    assert [violation.detail["scope"] for violation in kit.violations] == ["resource", "tenant"]


async def test_an_answer_that_one_of_two_cannot_structure_is_asked_for_again():
    schemas = [
        {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]} for name in "ab"
    ]
    options = [
        {"schema": each, "model": "m/x", "errorStrategy": how}
        for each, how in zip(schemas, ("strict", "warn"), strict=True)
    ]
    kit = two(StructuredOutput, *options, models=ScriptedModels(['{"c": "1"}']))
    await kit.stream(["the answer"])
    assert (await kit.output_step()).tripwire.retry
