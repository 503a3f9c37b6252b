"""When a conversation must not end with the model's turn, and when it does."""

from typing import Any, ClassVar

import pytest

from procession.args import ModelInfo
from procession.messages import new_message
from procession.processor import Hook
from procession.registry import Registry
from procession.testing import ProcessorKit, check_processor
from procession_schemas.agent import Agent
from procession_schemas.run import RunRequest
from procession_services.orchestrator.core.plan import make_plan
from procession_services.processors.core.model_names import is_older_claude, is_older_gemini
from procession_services.processors.core.trailing_turn import ends_with_model, refuses
from procession_services.processors.trailing_assistant_guard import TrailingAssistantGuard

SCHEMA = {"structured_output": {"schema": {"type": "object"}}}
TEXT = {"type": "text", "text": "a"}


def tool(state):
    result = {"result": 1} if state == "result" else {}
    call = {"state": state, "toolCallId": state, "toolName": "t", "args": {}, **result}
    return {"type": "tool-invocation", "toolInvocation": call}


def conversation(said: Any) -> Any:
    return [new_message("user", "q", id="u"), new_message("assistant", said, id="a")]


async def guarded(model, *, said=(TEXT,), **config):
    kit = ProcessorKit(TrailingAssistantGuard, model=model)
    kit.message_list.add(conversation(said), "memory")
    await kit.input_step(**config)
    return kit, [m["id"] for m in kit.messages] != ["u", "a"]


async def test_the_turn_is_sent_but_not_saved():
    kit, added = await guarded("gemini/gemini-3-pro")
    assert added
    assert kit.prompt()[-1] == {"role": "user", "content": [{"type": "text", "text": "Continue."}]}
    assert kit.message_list.drain_unsaved_messages() == []
    assert kit.messages[-1]["createdAt"] > kit.messages[-2]["createdAt"]


async def test_it_is_added_once_for_all_attempts():
    kit, _ = await guarded("vertex_ai/gemini-3-flash")
    await kit.input_step()
    assert len(kit.messages) == 3


async def test_a_schema_asks_for_the_structured_response():
    kit, added = await guarded("anthropic/claude-opus-4-6", **SCHEMA)
    assert added
    assert "structured response" in kit.prompt()[-1]["content"][0]["text"]


@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("openai/gpt-5", SCHEMA),
        ("anthropic/claude-opus-4-6", {}),
        ("anthropic/claude-opus-4-6", {"structured_output": {"schema": {}, "json_prompt_injection": True}}),
        ("anthropic/claude-sonnet-4-20250514", SCHEMA),
        ("gemini/gemini-2.5-pro", {}),
    ],
)
async def test_others_are_left_alone(model, config):
    _, added = await guarded(model, **config)
    assert not added


@pytest.mark.parametrize(
    ("said", "ends"),
    [
        ((TEXT,), True),
        ((TEXT, {"type": "step-start"}), True),
        ((TEXT, tool("call")), True),
        ((tool("call"),), False),
        ((TEXT, tool("result")), False),
        ((TEXT, tool("result"), tool("call"), {"type": "step-start"}), False),
        ((), False),
        ((tool("result"), {"type": "data-progress", "data": 1}), False),
        ((TEXT, {"type": "data-progress", "data": 1}), True),
    ],
)
def test_what_ends_with_a_turn_of_the_model(said, ends):
    """D-78: parts that no prompt shows do not count."""
    assert ends_with_model(conversation(said)) is ends


def test_an_empty_conversation_ends_with_nobody():
    assert not ends_with_model([])
    assert not ends_with_model(conversation("a")[:1])


def test_a_model_of_which_nothing_is_known_may_be_any():
    assert refuses(None, native_schema=False)
    assert refuses(ModelInfo("google/learnlm", "google", "learnlm"), native_schema=False)


@pytest.mark.parametrize(
    ("name", "older"),
    [
        ("claude-3-5-sonnet", True),
        ("claude-3-7-sonnet-20250219", True),
        ("claude-sonnet-4-5", True),
        ("claude-opus-4-20250514", True),
        ("claude-opus-4.6", False),
        ("claude-opus-4-6-20260101", False),
        ("claude-sonnet-5", False),
        ("claude-haiku-latest", False),
    ],
)
def test_how_old_a_claude_is(name, older):
    assert is_older_claude(f"anthropic/{name}", (4, 6)) is older


def test_how_old_a_gemini_is():
    assert is_older_gemini("models/gemini-1.5-flash", 3)
    assert not is_older_gemini("gemini/gemini-3-pro", 3)
    assert not is_older_gemini("gemini/gemma-3", 3)


def planned(*models, **fields):
    """The input array of a run of these models."""
    registry = Registry()
    registry.add_processor(TrailingAssistantGuard)
    agent = Agent.model_validate({"name": "a", "model": [{"model": model} for model in models], **fields})
    arrays: Any = {"input": agent.input_processors or [], "output": [], "error": []}
    plan = make_plan(RunRequest(agent=agent, input="q"), agent, arrays, registry, {})
    return [(placed.ref.id, placed.hooks) for placed in plan.input]


class TestPlan:
    """The orchestrator adds the guard by itself, where it may be needed."""

    GUARD = (TrailingAssistantGuard.id, {Hook.INPUT_STEP})
    NATIVE: ClassVar = {"structuredOutput": {"schema": {"type": "object"}}}

    def test_to_agents_whose_model_may_refuse(self):
        assert planned("openai/gpt-5", "gemini/gemini-3-pro") == [self.GUARD]
        assert planned("anthropic/claude-opus-4-6", **self.NATIVE) == [self.GUARD]

    def test_to_no_others(self):
        assert planned("openai/gpt-5", **self.NATIVE) == []
        assert planned("anthropic/claude-opus-4-6", "gemini/gemini-2.5-pro") == []
        injected = {"structuredOutput": {"schema": {}, "jsonPromptInjection": True}}
        assert planned("anthropic/claude-opus-4-6", **injected) == []

    def test_not_twice(self):
        assert planned("gemini/gemini-3-pro", inputProcessors=[TrailingAssistantGuard.id]) == [self.GUARD]


async def test_conformance():
    await check_processor(TrailingAssistantGuard)
