"""Questions about texts, and what their answers do."""

import json

import pytest

from procession.errors import InvalidOptionsError, ProcessorError
from procession.processor import Hook
from procession.services import ModelCallError
from procession.testing import check_processor
from procession_services.processors.classifier import Classifier
from tests.support.detectors import ScriptedKit

UNSAFE = {"type": "boolean", "question": "Is it unsafe?"}
TOPIC = {
    "type": "choice",
    "question": "What is it about?",
    "choices": {"law": "legal advice", "other": "the rest"},
}
BASE = {"model": "openai/judge", "questions": {"unsafe": UNSAFE, "topic": TOPIC}}


def reply(unsafe=0.0, topic="other", **probabilities):
    return json.dumps(
        {
            "unsafe": {"probability": unsafe},
            "topic": {"choice": topic, "probabilities": probabilities or None},
        }
    )


def kit(replies, *actions, processor=Classifier, **options):
    return ScriptedKit(processor, replies, {**BASE, "actions": list(actions), **options})


def action(do, question="unsafe", reason="", **when):
    return {"when": {"question": question, **when}, "do": do, "reason": reason}


async def test_a_boolean_counts_from_its_least_probability_on():
    assert (await kit([reply(0.5)], action("block")).input("x")).blocked.reason == "unsafe: yes"
    assert not (await kit([reply(0.49)], action("block")).input("x")).tripwire
    assert not (await kit([reply(0.9)], action("block", atLeast=0.95)).input("x")).tripwire


async def test_a_choice_counts_when_it_was_made_and_likely_enough():
    law = action("block", "topic", "No legal advice.", **{"is": "law"})
    out = await kit([reply(topic="law")], law).input("x")
    assert out.blocked.reason == "No legal advice."
    assert out.blocked.metadata == {"question": "topic", "answer": {"type": "choice", "choice": "law"}}
    assert not (await kit([reply(topic="other")], law).input("x")).tripwire
    sure = action("block", "topic", atLeast=0.8, **{"is": "law"})
    assert (await kit([reply(topic="law", law=0.8, other=0.2)], sure).input("x")).tripwire
    assert not (await kit([reply(topic="law", law=0.7, other=0.3)], sure).input("x")).tripwire
    assert not (await kit([reply(topic="law")], sure).input("x")).tripwire


async def test_actions_filter_and_warn_and_a_block_wins():
    run = kit([reply(1), reply(0)], action("filter"))
    assert (await run.input(["bad", "good"])).texts == ["good"]
    run = kit([reply(1)], action("warn", reason="Look at this."))
    assert (await run.input("bad")).texts == ["bad"]
    assert [each.message for each in run.violations] == ["Look at this."]
    assert (await kit([reply(1)], action("filter"), action("block")).input("bad")).tripwire


async def test_a_retry_has_the_answer_made_again():
    out = await kit([reply(1)], action("retry", reason="Be kind.")).stream(["bad"])
    assert out.blocked.retry
    assert out.deltas == []


async def test_the_answer_is_asked_about_as_a_whole_too():
    assert (await kit([reply(1)], action("filter")).output_result("bad")).texts == []


def asked(run):
    """The texts that were asked about."""
    return [request.prompt[1]["content"][0]["text"].split("\n")[1] for request in run.models.requests]


async def test_a_long_text_is_cut_at_its_end_and_a_stream_at_its_beginning():
    run = kit([reply()], maxInputLength=3)
    await run.input("abcdef")
    assert asked(run) == ["abc"]
    run = kit([reply(), reply()], maxInputLength=6, chunkWindow=1, pieceSize=1)
    await run.stream(["One. ", "Two."])
    assert asked(run) == ["One. ", ". Two."]


async def test_of_a_long_piece_of_a_stream_nothing_goes_unread():
    def judge(request):
        return reply(1 if "bad" in request.prompt[1]["content"][0]["text"] else 0)

    for text in ("bad and much more behind it", "much before it, bad and more", "at its end bad"):
        assert (await kit(judge, action("block"), maxInputLength=5).stream([text])).deltas == []
        assert (await kit(judge, action("filter"), maxInputLength=5).stream([text])).deltas == []
    run = kit([reply()] * 3, maxInputLength=3)
    assert (await run.stream(["abcdefgh"])).deltas == ["abcdefgh"]
    assert asked(run) == ["abc", "def", "fgh"]


TEXT = "All fine. Some law. All well. End"


@pytest.mark.parametrize(
    ("do", "window", "left"),
    [
        ("filter", 0, "All fine. All well. End"),
        ("warn", 0, TEXT),
        ("block", 0, "All fine. "),
        ("block", 1, ""),
    ],
)
async def test_a_stream_comes_out_alike_however_it_was_cut(do, window, left):
    def judge(request):
        return reply(topic="law" if "law" in request.prompt[1]["content"][0]["text"] else "other")

    act = action(do, "topic", **{"is": "law"})
    for cut in ([TEXT], [*TEXT], *([TEXT[:at], TEXT[at:]] for at in range(1, len(TEXT)))):
        run = kit(judge, act, pieceSize=1, chunkWindow=window)
        out = await run.stream(cut)
        assert "".join(out.deltas) == left
        assert len(run.violations) == 1


@pytest.mark.parametrize(
    "answer",
    [
        ModelCallError("down"),
        "?",
        '{"unsafe": {"probability": 2}, "topic": {"choice": "law"}}',
        reply(topic="sport"),
    ],
)
async def test_a_failed_call_blocks_unless_the_options_say_warn(answer):
    assert (await kit([answer], action("warn")).input("x")).blocked.reason.startswith("Classification")
    assert (await kit([answer], action("block"), errorStrategy="warn").input("x")).texts == ["x"]


async def test_code_decides_in_a_subclass():
    seen = []

    class Mine(Classifier):
        async def on_result(self, answers, call):
            seen.append((call.phase, call.text, answers["unsafe"]["probability"]))
            call.filter()
            if call.text == "abort":
                call.abort("mine")

    run = kit([reply(0.25)], processor=Mine)
    assert (await run.input("x")).texts == []
    assert (await run.stream(["x"])).deltas == []
    assert (await kit([reply()], processor=Mine).input("abort")).blocked.reason == "mine"
    assert seen[:2] == [("input", "x", 0.25), ("stream", "x", 0.25)]


async def test_an_exception_in_code_is_an_error_and_no_verdict():
    class Broken(Classifier):
        async def on_result(self, answers, call):
            raise ValueError("policy bug")

    for hook in ("input", "stream"):
        with pytest.raises(ProcessorError, match="policy bug"):
            await getattr(kit([reply()], processor=Broken), hook)(["x"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"questions": {}}, "CLASSIFIER_PROCESSOR_QUESTIONS_REQUIRED"),
        ({"chunkWindow": -1}, "CLASSIFIER_PROCESSOR_INVALID_CHUNK_WINDOW"),
        ({"maxInputLength": 1.5}, "CLASSIFIER_PROCESSOR_INVALID_MAX_INPUT_LENGTH"),
        ({"classifier": "by-id"}, "CLASSIFIER_PROCESSOR_MASTRA_NOT_REGISTERED"),
        ({"actions": [action("block", "color")]}, "no question 'color'"),
        ({"actions": [action("block", "topic", **{"is": "sport"})]}, "no choice 'sport'"),
        ({"actions": [action("block", "topic")]}, "no choice None"),
        ({"actions": [action("block", **{"is": "yes"})]}, "is a boolean"),
        ({"actions": [action("hide")]}, "do"),
        ({"actions": [action("block")], "streamMode": "observe"}, "observe"),
        ({"questions": {"q": {"type": "choice", "question": "?", "choices": ["one"]}}}, "choices"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, told):
    with pytest.raises(InvalidOptionsError, match=told):
        Classifier.build({**BASE, **options})


async def test_what_it_warns_of_may_be_observed():
    run = kit([reply(1)], action("warn"), streamMode="observe")
    out = await run.stream(["a", "b"])
    assert out.deltas == ["a", "b"]
    assert len(run.violations) == 1


def test_the_hooks():
    assert Classifier.hooks_for(BASE) == {Hook.INPUT, Hook.OUTPUT_STREAM, Hook.OUTPUT_RESULT}


async def test_it_keeps_the_contract():
    await check_processor(Classifier, {**BASE, "errorStrategy": "warn"}, chunk_safe=True)
