import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from procession_services.demo_model.demo import LABEL, demo_reply

Ask = Callable[..., Awaitable[list[Any]]]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "the weather now", "parameters": CITY},
}
ADD = {
    "type": "function",
    "function": {
        "name": "add_note",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def called(question: str, *tools: Any, **body: Any) -> list[Any]:
    reply = demo_reply({"messages": [user(question)], "tools": list(tools), **body})
    return [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]


def test_a_plain_answer_says_what_it_is_and_echoes_the_question() -> None:
    reply = demo_reply({"messages": [user("why is the sky blue?")]}, 0.015)
    text = "".join(reply.text)
    assert LABEL in text
    assert "why is the sky blue?" in text
    assert reply.finish_reason == "stop"
    assert reply.chunk_delay == 0.015
    assert reply.usage.prompt_tokens == 5
    assert reply.usage.completion_tokens == (len(text) + 3) // 4
    assert demo_reply({"messages": [user("why is the sky blue?")]}, 0.015) == reply


@pytest.mark.parametrize("length", [0, 1, 80, 400, 5000])
def test_answers_come_in_thirty_to_sixty_chunks(length: int) -> None:
    assert 30 <= len(demo_reply({"messages": [user("q" * length)]}).text) <= 60


@pytest.mark.parametrize(
    ("question", "city"),
    [
        ("What is the weather in Paris?", "Paris"),
        ("what's the temperature in new delhi today", "New Delhi"),
        ("Forecast in New York, please, flaky", "New York"),
        ("How is the weather in the morning in São Paulo today?", "São Paulo"),
        ("weather in rome please", "Rome"),
    ],
)
def test_the_weather_tool_is_called_with_the_city(question: str, city: str) -> None:
    assert called(question, ADD, WEATHER) == [("weather", {"city": city})]


@pytest.mark.parametrize(
    "question", ["What is the weather?", "I live in Paris", "weather in general", "Tell me a joke"]
)
def test_other_questions_call_nothing(question: str) -> None:
    assert called(question, WEATHER, ADD) == []


def test_a_tool_is_called_when_it_is_named_forced_or_required() -> None:
    assert called('please add a note: "buy milk"', ADD) == [("add_note", {"text": "buy milk"})]
    assert called("hello", WEATHER, ADD, tool_choice="required") == [("weather", {"city": "hello"})]
    forced = {"type": "function", "function": {"name": "add_note"}}
    assert called("hello", WEATHER, ADD, tool_choice=forced) == [("add_note", {"text": "hello"})]
    assert called("weather in Paris", WEATHER, tool_choice="none") == []


@pytest.mark.parametrize("result", ['{"city": "Paris", "celsius": 21}', "city Paris, celsius 21.", '"mild"'])
def test_the_answer_after_a_tool_tells_its_result_and_whom_to_ask(result: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        user("weather in Paris?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": result},
    ]
    reply = demo_reply({"messages": messages, "tools": [WEATHER]})
    text = "".join(reply.text)
    told = "mild" if result == '"mild"' else "city Paris, celsius 21"
    assert f"The tool weather says: {told}." in text
    assert LABEL in text
    assert "demo.desk@example.com" in text
    assert "+1 202-555-0143" in text
    assert not any("demo.desk@example.com" in chunk for chunk in reply.text)
    assert 30 <= len(reply.text) <= 60
    assert reply.tool_calls == ()


def test_a_structured_answer_fits_its_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "flagged": {"type": "boolean"},
            "score": {"type": "number"},
            "why": {"type": "string"},
        },
        "required": ["flagged", "score", "why"],
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema}}
    reply = demo_reply({"messages": [user("is 99 bad?")], "response_format": wanted})
    assert json.loads("".join(reply.text)) == {"flagged": False, "score": 0, "why": LABEL}
    free = demo_reply({"messages": [user("hi")], "response_format": {"type": "json_object"}})
    assert json.loads("".join(free.text)) == {"model": LABEL, "question": "hi"}


async def test_a_flaky_conversation_fails_once(http: httpx.AsyncClient, ask: Ask) -> None:
    async def status(*messages: Any, model: str = "demo") -> int:
        body = {"model": model, "messages": messages}
        return (await http.post("/v1/chat/completions", json=body)).status_code

    assert [await status(user("a Flaky day")) for _ in range(3)] == [503, 200, 200]
    assert await status({"role": "system", "content": "be brief"}, user("a Flaky day")) == 503
    assert await status(user("flaky"), {"role": "tool", "content": "r"}) == 200
    assert await status(user("flaky"), {"role": "assistant", "content": "a"}, user("thanks")) == 200
    assert await status(user("a blocked day")) == 200
    assert await status(user("flaky"), model="mock:chunks=1") == 200
    await http.post("/mock/reset")
    assert await status(user("a Flaky day")) == 503


async def test_any_unknown_model_is_the_demo(ask: Ask) -> None:
    events = await ask("openai/gpt-9", "what is it?")
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-2])
    assert text == "".join(demo_reply({"messages": [user("what is it?")]}).text)
    assert events[-2]["usage"]["completion_tokens"] == (len(text) + 3) // 4


async def test_the_tool_call_streams_its_arguments(ask: Ask) -> None:
    events = await ask("demo", "weather in Oslo", tools=[WEATHER])
    calls = [c for event in events[:-2] for c in event["choices"][0]["delta"].get("tool_calls", ())]
    assert calls[0]["function"]["name"] == "weather"
    assert len(calls) == 3
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"city": "Oslo"}
    assert events[-3]["choices"][0]["finish_reason"] == "tool_calls"
