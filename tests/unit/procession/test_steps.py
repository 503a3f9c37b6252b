"""The step results of a run (core.md 7.6)."""

import copy

from procession.response import ResponseCollector
from procession.steps import current_step, for_hooks, with_media
from procession_services.processor_host.answers import take_response
from tests.unit.procession.making import context, delta

SOURCE = {"id": "s", "sourceType": "url", "url": "https://a.example", "title": "A"}
FILE = {"data": "AA==", "mimeType": "image/png"}
CALL = {"toolCallId": "c", "toolName": "t", "args": {"x": 1}}
FINISH = {
    "type": "finish",
    "payload": {
        "stepResult": {"reason": "stop"},
        "output": {"usage": {"totalTokens": 3}},
        "metadata": {"providerMetadata": {"p": {"x": 1}}},
    },
}
RICH = [
    {"type": "response-metadata", "payload": {"id": "r1", "modelId": "m"}},
    {"type": "reasoning-delta", "payload": {"id": "r", "text": "hm"}},
    delta("hello"),
    {"type": "source", "payload": SOURCE},
    {"type": "file", "payload": {**FILE, "base64": "AA=="}},
    FINISH,
]


def step_of(ctx, *chunks):
    """Plays one accepted step; returns what the context keeps of it."""
    ctx.messages.begin_response(ctx.message_id)
    ctx.outcomes = []
    collector = ResponseCollector()
    for chunk in chunks:
        collector.arrived(chunk)
        collector.passed(chunk)
    ctx.messages.append_response_parts(take_response(ctx, collector.to_dict(), collector.parts))
    step = current_step(ctx)
    ctx.steps.append(step)
    ctx.messages.accept_response()
    ctx.step_number += 1
    return step


def test_hooks_get_every_field():
    ctx = context()
    step_of(ctx, *RICH)
    (step,) = for_hooks(ctx, ctx.steps)
    reasoning, said = {"type": "reasoning", "text": "hm"}, {"type": "text", "text": "hello"}
    assert step == {
        "stepNumber": 0,
        "stepType": "initial",
        "text": "hello",
        "toolCalls": [],
        "toolResults": [],
        "finishReason": "stop",
        "usage": {"totalTokens": 3},
        "model": "",
        "warnings": [],
        "request": {},
        "response": {"id": "r1", "modelId": "m"},
        "providerMetadata": {"p": {"x": 1}},
        "reasoning": [reasoning],
        "reasoningText": "hm",
        "sources": [SOURCE],
        "files": [FILE],
        "content": [reasoning, said, {"type": "source", **SOURCE}, {"type": "file", **FILE}],
    }


def test_what_is_not_there_is_empty_for_hooks():
    ctx = context()
    step_of(ctx)
    (step,) = for_hooks(ctx, ctx.steps)
    empty = (
        "content",
        "reasoning",
        "reasoningText",
        "sources",
        "files",
        "request",
        "response",
        "providerMetadata",
    )
    assert not any(step[name] for name in empty)  # type: ignore[literal-required]  # names of a test


def test_calls_and_results_are_content():
    ctx = context()
    step_of(ctx, delta("x"), {"type": "tool-call", "payload": CALL})
    ctx.steps[0]["toolResults"] = [{"toolCallId": "c", "toolName": "t", "output": 2}]
    (step,) = for_hooks(ctx, ctx.steps)
    assert [entry["type"] for entry in step["content"]] == ["text", "tool-call", "tool-result"]


def test_an_ordinary_step_keeps_nothing_more():
    kept = step_of(context(), delta("hello"))
    fields = "stepNumber stepType text toolCalls toolResults finishReason usage model warnings segment"
    assert set(kept) == set(fields.split())


def test_sources_and_files_are_kept_in_the_message_only():
    ctx = context()
    kept = step_of(ctx, *RICH)
    assert not {"sources", "files"} & kept.keys()
    assert str(ctx.to_dict()).count(FILE["data"]) == 1


def test_each_step_has_its_own_sources():
    """Steps without parts, and rejected attempts, are no steps of the message."""
    ctx = context()
    step_of(ctx, delta("none"))
    step_of(ctx)
    step_of(ctx, {"type": "source", "payload": {**SOURCE, "id": "one"}})
    ctx.messages.begin_response(ctx.message_id)
    ctx.messages.append_response_parts([{"type": "source", "source": SOURCE}])
    ctx.messages.rollback_response()
    ctx.steps.append({"text": "", "finishReason": "retry"})
    step_of(ctx, {"type": "source", "payload": {**SOURCE, "id": "two"}})
    told = with_media(ctx, ctx.steps)
    assert [[s["id"] for s in step.get("sources", [])] for step in told] == [[], [], ["one"], [], ["two"]]
    assert all("segment" not in step for step in told)


def test_what_a_processor_takes_out_of_the_message_is_in_no_step():
    ctx = context()
    step_of(ctx, *RICH)
    message = ctx.messages.get.response.db()[0]
    message["content"]["parts"] = [p for p in message["content"]["parts"] if p["type"] != "file"]
    assert for_hooks(ctx, ctx.steps)[0]["files"] == []
    ctx.messages.remove_by_ids([message["id"]])
    assert for_hooks(ctx, ctx.steps)[0]["sources"] == []


def test_telling_changes_nothing():
    ctx = context()
    step_of(ctx, *RICH)
    before = copy.deepcopy(ctx.steps)
    for_hooks(ctx, ctx.steps)[0]["text"] = "x"
    assert ctx.steps == before
