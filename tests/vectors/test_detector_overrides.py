"""What the detectors' adapters may not wave through: a stream that leaks, loses or reorders."""

import asyncio
from typing import Any

import pytest

from procession_services.processors.moderation import Moderation
from tests.vectors.adapters import classifier, moderation, prompt_injection_detector


def delta(text):
    return {"type": "text-delta", "id": "t", "text": text, "runId": "r"}


def scored(score):
    return {"category_scores": [{"category": "hate", "score": score}], "reason": None}


def stream(strategy="block", scores=(0, 1), texts=("fine ", "bad"), **expected):
    told = {"perChunk": [delta("fine ")], "textsJudged": list(texts), **expected}
    return {
        "options": {"categories": ["hate"], "strategy": strategy, "threshold": 0.5},
        "input": {
            "hook": "processOutputStream",
            "chunks": [delta(text) for text in texts],
            "detectorResult": [scored(score) for score in scores],
        },
        "expected": told,
    }


def both(adapter, vector):
    observed = asyncio.run(adapter.observe(vector))
    return observed, adapter.override(vector, observed, ["a difference"])


def test_a_block_of_the_whole_text_is_what_the_rule_demands():
    observed, rule = both(moderation, stream(tripwire={"reason": "bad"}))
    assert (observed["perChunk"], rule) == ([None, None], "D-8")


@pytest.mark.parametrize(
    "told",
    [
        {"perChunk": [delta("fine "), delta("bad")]},
        {"perChunk": [None, delta("fine "), None]},
        {"perChunk": [None, None]},
    ],
)
def test_what_the_processor_does_not_do_is_no_override(told):
    vector = stream(tripwire={"reason": "bad"})
    assert moderation.override(vector, {"textsJudged": [], **told}, ["a difference"]) is None


def test_a_processor_that_lets_text_out_too_early_fails(monkeypatch):
    async def leaks(self, args):
        return [args.part]

    monkeypatch.setattr(Moderation, "process_output_stream", leaks)
    assert both(moderation, stream(tripwire={"reason": "bad"}))[1] is None


def test_a_processor_that_loses_text_fails(monkeypatch):
    async def loses(self, args):
        return []

    monkeypatch.setattr(Moderation, "flush_stream", loses)
    assert both(moderation, stream("warn"))[1] is None


def test_a_failure_left_to_the_default_is_d_1_only_if_the_rest_is_as_expected():
    message = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "x"}]}
    vector: dict[str, Any] = {
        "options": {"categories": ["hate"]},
        "input": {"hook": "processInput", "messages": [message], "detectorResult": {"modelThrows": "down"}},
        "expected": {"messages": [message], "detectorCalls": 1},
    }
    assert both(moderation, vector)[1] == "D-1"
    vector["expected"]["detectorCalls"] = 2
    assert both(moderation, vector)[1] is None


def test_a_rewrite_may_only_keep_other_parts():
    image = {"type": "file", "data": "AA", "mimeType": "image/png"}
    vector = {
        "options": {"strategy": "rewrite", "detectionTypes": ["injection"]},
        "input": {
            "hook": "processInput",
            "messages": [{"id": "u", "role": "user", "parts": [{"type": "text", "text": "bad"}, image]}],
            "detectorResult": {
                "categories": [{"type": "injection", "score": 1}], "reason": None, "rewritten_content": "ok",
            },
        },
        "expected": {
            "messages": [{"id": "u", "role": "user", "parts": [{"type": "text", "text": "ok"}], "content": "ok"}],
            "detectorCalls": 1,
            "schemaFields": ["categories", "reason", "rewritten_content"],
        },
    }  # fmt: skip
    observed, rule = both(prompt_injection_detector, vector)
    assert rule == "D-6"
    wrong = {**observed, "messages": [{**observed["messages"][0], "parts": [image]}]}
    assert prompt_injection_detector.override(vector, wrong, ["a difference"]) is None


def test_a_policy_that_throws_is_an_error_in_a_stream():
    vector = {
        "options": {"policy": "throws"},
        "input": {
            "hook": "processOutputStream",
            "chunks": [delta("a")],
            "answers": {"unsafe": {"type": "boolean", "probability": 0}},
        },
        "expected": {"perChunk": [], "classifiedTexts": ["a"], "throws": "policy bug"},
    }
    observed, rule = both(classifier, vector)
    assert observed["throws"]["message"] == "policy bug"
    assert rule == "D-8"
