from typing import Any

import pytest

from examples.processors.quality_guardrail import QualityGuardrail
from procession import MessagesReturn, Options, OutputStepArgs, Processor
from procession.testing import ProcessorKit, check_processor
from tests.unit.examples.vectors import tripwire, vectors


class Scored(QualityGuardrail):
    """Gets its scores from the test; the last one stays."""

    scores: list[float]

    def score(self, text):
        return self.scores.pop(0) if len(self.scores) > 1 else self.scores[0]


async def attempts(scores, budget):
    """A run with a retry budget: the answers, the second prompt, and how it ended."""
    guardrail = Scored.build()
    guardrail.scores = list(scores)
    kit = ProcessorKit(guardrail, instructions="Answer.")
    kit.message_list.add("question", "input")
    prompts = []
    while True:
        prompts.append(kit.prompt())
        out = await kit.output_step(f"answer {len(prompts)}")
        if not (out.tripwire and out.tripwire.retry) or kit.context.retry_count > budget:
            return out, prompts


@vectors("quality-one", "quality-gives", "quality-budget")
async def test_recorded(vector):
    wanted = vector["expected"]
    out, prompts = await attempts(vector["input"]["scores"], vector["options"]["maxProcessorRetries"])
    assert len(prompts) == wanted["modelCalls"]
    assert tripwire(out) == wanted["tripwire"]
    assert [entry["role"] for entry in prompts[1]] == wanted["secondPromptRoles"]
    feedback = prompts[1][1]["content"]
    assert ("Response quality too low. Please provide more detail." in feedback) == wanted[
        "secondPromptMentionsReason"
    ]
    assert ("answer 1" in str(prompts[1])) == wanted["secondPromptContainsRejectedAnswer"]
    if out.tripwire:  # the recording shows the blocked text; here nothing of it is left
        assert out.texts == ["question"]
    else:
        assert out.texts[-1] == wanted["text"]


class EmptyList(Processor[Options]):
    """The idiom of the contract's example."""

    id = "empty-list"

    def process_output_step(self, args: OutputStepArgs) -> MessagesReturn:
        return []


@vectors("quality-returning", "output-step-returning")
@pytest.mark.parametrize("processor", [EmptyList, Scored])
async def test_recorded_return_values(vector, processor):
    made: Any = processor.build()
    made.scores = [1.0]
    kit = ProcessorKit(made)
    kit.message_list.add("u", "input")
    out = await kit.output_step("a")
    assert out.texts == [
        "u",
        "a",
    ]  # an empty list changes nothing; the recording has it delete everything


async def test_the_score_is_a_matter_of_length():
    kit = ProcessorKit(QualityGuardrail, {"words": 4, "threshold": 0.5})
    assert (await kit.output_step("too")).blocked.metadata == {"qualityScore": 0.25}
    assert (await kit.output_step("long enough")).tripwire is None


async def test_the_own_limit_blocks_for_good():
    kit = ProcessorKit(QualityGuardrail, {"attempts": 1})
    assert (await kit.output_step("weak")).blocked.retry
    assert not (await kit.output_step("weak")).blocked.retry


async def test_conformance():
    await check_processor(QualityGuardrail)
