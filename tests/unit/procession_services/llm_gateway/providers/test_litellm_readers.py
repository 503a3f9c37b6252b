"""Streams that LiteLLM reads itself, whose readers are mended."""

import json
from typing import Any

import pytest

from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
from tests.unit.procession_services.llm_gateway.loopback import Answer
from tests.unit.procession_services.llm_gateway.providers.replay import ANTHROPIC, outcome, recorded

THINKING = "anthropic-thinking.sse"
COHERE = "cohere_chat/command-a-03-2025"
CHAT, GENERATE = "ollama_chat/llama3", "ollama/llama3"


def lines(*events: dict[str, Any]) -> Answer:
    return Answer([json.dumps(event).encode() + b"\n" for event in events])


def named(*events: dict[str, Any]) -> Answer:
    pieces = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
    return Answer([*pieces, b"data: [DONE]\n\n"])


def content(**said: str) -> dict[str, Any]:
    return {"type": "content-delta", "index": 0, "delta": {"message": {"content": said}}}


def call(kind: str, **told: Any) -> dict[str, Any]:
    return {"type": f"tool-call-{kind}", "index": 0, "delta": {"message": {"tool_calls": told}}}


def end(**told: Any) -> dict[str, Any]:
    usage = {"billed_units": {"input_tokens": 1}, "tokens": {"input_tokens": 70, "output_tokens": 4}}
    return {"type": "message-end", "id": "m", "delta": {"usage": usage, **told}}


async def test_an_answer_of_anthropics_has_its_own_id_and_no_tokens_that_nobody_told(
    direct: LiteLLMProvider, wrapped: LiteLLMProvider
) -> None:
    for way in (direct, wrapped):
        made = await outcome(way, ANTHROPIC, recorded(THINKING))
        assert made.chunks[0]["payload"]["id"].startswith("msg_")
        assert "reasoning-delta" in {each[0] for each in made.brief()}
        assert "reasoningTokens" not in made.end()[1]


async def test_tokens_of_thoughts_that_anthropic_tells_count(direct: LiteLLMProvider) -> None:
    [answer] = recorded(THINKING).pieces
    said = answer.replace(
        b'{"output_tokens":40}', b'{"output_tokens":40,"output_tokens_details":{"thinking_tokens":31}}'
    )
    made = await outcome(direct, ANTHROPIC, Answer([said]))
    assert made.end()[1]["reasoningTokens"] == 31


START = {"type": "message-start", "id": "m", "delta": {"message": {"role": "assistant", "content": []}}}


@pytest.mark.parametrize("form", [lines, named])
async def test_cohere(direct: LiteLLMProvider, form: Any) -> None:
    function = {"name": "weather", "arguments": ""}
    answer = form(
        START,
        content(thinking="hm"),
        content(text="He"),
        call("start", id="w", type="function", function=function),
        call("delta", function={"arguments": '{"city": '}),
        call("delta", function={"arguments": '"P"}'}),
        {"type": "tool-call-end", "index": 0},
        end(finish_reason="TOOL_CALL"),
    )
    made = await outcome(direct, COHERE, answer)
    told = [each for each in made.brief() if each[0] in ("reasoning-delta", "text-delta", "tool-call")]
    assert told == [("reasoning-delta", "hm"), ("text-delta", "He"), ("tool-call", {"city": "P"})]
    usage = {"inputTokens": 70, "outputTokens": 4, "totalTokens": 74}
    assert made.end() == ("tool-calls", usage)
    assert made.failure == {}


async def test_an_answer_of_coheres_that_was_cut_off_says_so(direct: LiteLLMProvider) -> None:
    made = await outcome(direct, COHERE, named(START, content(text="He"), end(finish_reason="MAX_TOKENS")))
    assert made.end()[0] == "length"


@pytest.mark.parametrize(
    "event",
    [{"type": "error", "message": "boom"}, {"message": "boom"}, end(finish_reason="ERROR", error="boom")],
)
async def test_errors_of_cohere(direct: LiteLLMProvider, event: dict[str, Any]) -> None:
    made = await outcome(direct, COHERE, lines(START, content(text="He"), event))
    assert (made.failure["kind"], made.failure["message"]) == ("stream", "boom")
    assert made.brief()[-1] == ("text-delta", "He")


async def test_a_line_of_coheres_that_is_no_event(direct: LiteLLMProvider) -> None:
    made = await outcome(direct, COHERE, Answer([b"upstream gone\n"]))
    assert "upstream gone" in made.failure["message"]


def chat(done: str | None = None, **message: Any) -> dict[str, Any]:
    reason = {} if done is None else {"done_reason": done, "prompt_eval_count": 5, "eval_count": 7}
    return {"model": "llama3", "message": {"content": "", **message}, "done": done is not None, **reason}


def generated(text: str, done: str | None = None) -> dict[str, Any]:
    reason = {} if done is None else {"done_reason": done, "prompt_eval_count": 5, "eval_count": 7}
    return {"model": "llama3", "response": text, "done": done is not None, **reason}


@pytest.mark.parametrize(
    ("pieces", "thought", "text"),
    [
        (["<think>", "hm", " well", "</think>", "A", "B"], "hm well", "AB"),
        (["\n", "<think>hm", " well</think>AB"], "hm well", "\nAB"),
        (["<think>hm</think>", "A ", "<think>", " B"], "hm", "A <think> B"),
        (
            ["A tag, ", "<think>", ", is closed by </think>", "."],
            "",
            "A tag, <think>, is closed by </think>.",
        ),
    ],
)
async def test_thoughts_of_ollama_in_tags_are_no_text(
    direct: LiteLLMProvider, pieces: list[str], thought: str, text: str
) -> None:
    made = await outcome(direct, CHAT, lines(*(chat(content=piece) for piece in pieces), chat("stop")))
    told = {
        kind: "".join(each[1] for each in made.brief() if each[0] == f"{kind}-delta")
        for kind in ("reasoning", "text")
    }
    assert told == {"reasoning": thought, "text": text}


@pytest.mark.parametrize(("said", "reason"), [("length", "length"), ("stop", "stop")])
async def test_why_ollama_ended(direct: LiteLLMProvider, said: str, reason: str) -> None:
    made = await outcome(direct, GENERATE, lines(generated("He"), generated("", said)))
    assert made.end() == (reason, {"inputTokens": 5, "outputTokens": 7, "totalTokens": 12})
    made = await outcome(direct, GENERATE, lines(generated('{"a": 1'), generated("", said)))
    assert (made.brief()[1][1], made.end()[0]) == ('{"a": 1', reason)


@pytest.mark.parametrize("model", [CHAT, GENERATE])
@pytest.mark.parametrize("own", [{"num_ctx": 9}, {"options": {"num_ctx": 9}}])
async def test_options_of_ollamas_go_beside_the_settings(
    direct: LiteLLMProvider, model: str, own: dict[str, Any]
) -> None:
    options = {model.partition("/")[0]: own}
    settings = {"temperature": 0.5, "maxOutputTokens": 5, "frequencyPenalty": 0}
    asked = {"provider_options": options, "model_settings": settings}
    made = await outcome(direct, model, lines(chat("stop"), generated("", "stop")), **asked)
    sent = {"temperature": 0.5, "num_predict": 5, "frequency_penalty": 0, "num_ctx": 9}
    assert made.request.body["options"] == sent
    assert not made.request.body.keys() & sent.keys()


@pytest.mark.parametrize(("model", "first"), [(CHAT, chat(content="He")), (GENERATE, generated("He"))])
async def test_errors_of_ollama(direct: LiteLLMProvider, model: str, first: dict[str, Any]) -> None:
    for begin in ([], [first]):
        made = await outcome(direct, model, lines(*begin, {"error": "boom"}))
        assert made.failure["message"] == "boom"
        assert made.failure["kind"] == ("stream" if begin else "api")


RESPONSES = "openai/responses/gpt-5.2"
HEAD: dict[str, Any] = {"id": "r", "object": "response", "created_at": 0, "model": "m", "output": []}
CREATED = {"type": "response.created", "response": HEAD}
COMPLETED = {"type": "response.completed", "response": HEAD}


def part(kind: str, **told: Any) -> dict[str, Any]:
    place = {"item_id": "m", "output_index": 0, "content_index": 0}
    return {"type": f"response.{kind}", **place, **told}


async def test_a_refusal_by_the_responses_api_is_the_text(direct: LiteLLMProvider) -> None:
    said = [part("refusal.delta", delta=piece) for piece in ("I ", "can't")]
    done = part("refusal.done", refusal="I can't")
    made = await outcome(direct, RESPONSES, named(CREATED, *said, done, COMPLETED))
    assert made.brief() == [
        ("text-start",),
        ("text-delta", "I "),
        ("text-delta", "can't"),
        ("text-end",),
    ]


async def test_pages_that_the_responses_api_cites_are_sources(direct: LiteLLMProvider) -> None:
    cited = {"type": "url_citation", "url": "http://x/y", "title": "T", "start_index": 0, "end_index": 2}
    events = [
        part("output_text.delta", delta="He"),
        part("output_text.annotation.added", annotation_index=0, annotation=cited),
        part("output_text.delta", delta="llo"),
    ]
    made = await outcome(direct, RESPONSES, named(CREATED, *events, COMPLETED))
    [source] = [chunk["payload"] for chunk in made.chunks if chunk["type"] == "source"]
    assert (source["url"], source["title"]) == ("http://x/y", "T")
    assert [each[0] for each in made.brief()].count("text-start") == 1


@pytest.mark.parametrize(
    "event",
    [
        {
            "type": "response.failed",
            "response": {**HEAD, "error": {"code": "server_error", "message": "boom"}},
        },
        {"type": "error", "code": "server_error", "message": "boom", "param": None},
        {"type": "error", "error": {"code": "server_error", "type": "server_error", "message": "boom"}},
    ],
)
async def test_errors_of_the_responses_api(direct: LiteLLMProvider, event: dict[str, Any]) -> None:
    made = await outcome(direct, RESPONSES, named(CREATED, part("output_text.delta", delta="He"), event))
    told = {name: made.failure[name] for name in ("kind", "message", "code")}
    assert told == {"kind": "stream", "message": "boom", "code": "server_error"}
    made = await outcome(direct, RESPONSES, named(event))
    assert (made.failure["statusCode"], made.failure["isRetryable"]) == (500, True)


async def test_a_failure_of_the_responses_api_without_a_reason(direct: LiteLLMProvider) -> None:
    event = {"type": "response.failed", "response": {**HEAD, "error": None}}
    made = await outcome(direct, RESPONSES, named(CREATED, event))
    assert made.failure["message"] == "the provider reported an error"
