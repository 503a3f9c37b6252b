"""Moderation of messages and of streams, with scripted models."""

import json

import pytest

from procession.errors import InvalidOptionsError
from procession.processor import Hook
from procession.services import ModelCallError
from procession.testing import check_processor
from procession_services.processors.core.detector_text import SLACK
from procession_services.processors.moderation import Moderation
from tests.support.detectors import ScriptedKit

MODEL = {"model": "openai/judge"}
FAILED = ModelCallError("down")


def answer(**scores):
    pairs = [{"category": name, "score": score} for name, score in scores.items()]
    return json.dumps({"category_scores": pairs, "reason": "because" if scores else None})


def by_word(request):
    """Objects to text with the word `bad`."""
    return answer(hate=0.9, violence=0.2) if "bad" in request.prompt[-1]["content"][0]["text"] else answer()


def kit(replies=by_word, processor=Moderation, **options):
    return ScriptedKit(processor, replies, {**MODEL, **options})


async def test_a_block_names_the_categories_and_the_reason():
    out = await kit().input("bad")
    assert out.blocked.reason == "Moderation found unwanted content: hate. Reason: because"
    assert (out.blocked.retry, out.blocked.metadata) == (False, None)
    out = await kit(includeScores=True).input("bad")
    assert out.blocked.reason.endswith("Reason: because. Scores: hate: 0.9, violence: 0.2")


async def test_the_threshold_itself_counts():
    assert (await kit([answer(hate=0.5)]).input("x")).tripwire
    assert not (await kit([answer(hate=0.49)]).input("x")).tripwire
    assert (await kit([answer(hate=0)], threshold=0).input("x")).tripwire


async def test_warn_lets_pass_and_filter_drops_and_both_tell_of_the_violation():
    for strategy, left in (("warn", ["ok", "bad"]), ("filter", ["ok"])):
        run = kit(strategy=strategy)
        out = await run.input(["ok", "bad"])
        assert (out.tripwire, out.texts) == (None, left)
        (violation,) = run.violations
        assert violation.detail == {"categories": ["hate"], "strategy": strategy}
        assert run.report(Hook.INPUT).warnings == 1


async def test_the_result_is_judged_like_the_input():
    assert (await kit().output_result("bad")).blocked.processor_id == "moderation"
    assert (await kit(strategy="filter").output_result("bad")).texts == []


async def test_categories_of_ones_own():
    run = kit(
        [json.dumps({"category_scores": [{"category": "rude", "score": 1}], "reason": None})],
        categories=["rude"],
    )
    assert (await run.input("x")).blocked.reason == "Moderation found unwanted content: rude"
    assert "- rude" in run.models.requests[0].prompt[0]["content"]


SENTENCES = ["This is fine. ", "This is bad! ", "All is well. ", "The end"]
TEXT = "".join(SENTENCES)


@pytest.mark.parametrize(
    ("options", "left", "blocked"),
    [
        ({}, "This is fine. ", True),
        ({"chunkWindow": 1}, "", True),
        ({"chunkWindow": 1, "streamMode": "window"}, "This is fine. ", True),
        ({"strategy": "filter"}, "This is fine. All is well. The end", False),
        ({"strategy": "warn"}, TEXT, False),
        ({"strategy": "warn", "streamMode": "observe"}, TEXT, False),
    ],
)
async def test_a_stream_comes_out_alike_however_it_was_cut(options, left, blocked):
    cuts = [[TEXT], [*TEXT], SENTENCES, *([TEXT[:at], TEXT[at:]] for at in range(1, len(TEXT)))]
    for cut in cuts:
        run = kit(pieceSize=1, **options)
        out = await run.stream(cut)
        told = "".join(out.deltas)
        assert (told, bool(out.tripwire)) == (left, blocked), cut
        assert len(run.violations) == 1


async def test_a_model_that_fails_in_a_stream_lets_nothing_out_unless_the_options_say_warn():
    out = await kit([FAILED]).stream(["a", "b"])
    assert (out.deltas, out.blocked.processor_id) == ([], "moderation")
    out = await kit([FAILED], errorStrategy="warn").stream(["a", "b"])
    assert ("".join(out.deltas), out.tripwire) == ("ab", None)


async def test_a_tool_call_waits_for_the_verdict_on_the_text_before_it():
    out = await kit().stream(["This is bad"], tool_calls=[{"toolName": "delete"}])
    assert out.tripwire
    assert "tool-call" not in [chunk["type"] for chunk in out.chunks]


async def test_calls_per_thousand_characters_are_bounded_and_counted():
    words = "Words make a sentence of some length. " * 300
    run = kit()
    out = await run.stream([*words])
    assert "".join(out.deltas) == words
    calls = run.report(Hook.OUTPUT_STREAM).model_calls
    assert calls == len(run.models.requests)
    assert calls <= len(words) / 200 + 1
    run = kit()
    await run.stream([*("x" * 10_000)])
    assert run.report(Hook.OUTPUT_STREAM).model_calls <= 10_000 / (200 + SLACK) + 1


async def test_what_is_held_is_bounded():
    sent = 0
    held: list[int] = []

    class Watched(Moderation):
        async def process_output_stream(self, args):
            nonlocal sent
            out = await super().process_output_stream(args)
            if args.part["type"] == "text-delta":
                sent += len(args.part["payload"]["text"])
                sent -= sum(len(each["payload"]["text"]) for each in out)
                held.append(sent)
            return out

    run = kit([answer()], Watched, chunkWindow=2)
    await run.stream([*("Some words of a text. " * 200)])

    assert max(held) <= (200 + SLACK) * 3


@pytest.mark.parametrize("strategy", ["filter"])
def test_a_guard_beside_the_model_cannot_change_what_the_model_read(strategy):
    with pytest.raises(InvalidOptionsError, match="parallel"):
        Moderation.build({**MODEL, "parallel": True, "strategy": strategy})


def test_it_runs_beside_the_model_when_asked_to():
    assert Moderation.runs_parallel({**MODEL, "parallel": True})
    assert not Moderation.runs_parallel(MODEL)


async def test_it_keeps_the_contract():
    await check_processor(Moderation, {**MODEL, "errorStrategy": "warn"}, chunk_safe=True)


@pytest.mark.parametrize(("mode", "passes"), [("hold", False), ("observe", True)])
async def test_raw_events_do_not_show_what_is_not_judged_yet(mode, passes):
    """D-89."""
    out = await kit(streamMode=mode, strategy="warn").stream([{"type": "raw", "payload": {}}])
    assert ("raw" in [chunk["type"] for chunk in out.chunks]) is passes
