from typing import Any

from procession_services.memory.core.echo import only_updates, with_updates


def tool(call: str, state: str, **outcome: Any) -> Any:
    told = {"state": state, "toolCallId": call, "toolName": "ask", "args": {}, **outcome}
    return {"type": "tool-invocation", "toolInvocation": told}


def message(*parts: Any, role: str = "assistant") -> Any:
    return {"id": "a", "role": role, "createdAt": "2024-01-01T00:00:00.000Z", "content": {"parts": [*parts]}}


def text(value: str) -> Any:
    return {"type": "text", "text": value}


def test_outcomes_go_to_the_calls_of_the_stored_message():
    stored = message(text("let me ask"), tool("c1", "call"))
    whole = with_updates(stored, message(tool("c1", "result", result="yes")))
    assert whole == message(text("let me ask"), tool("c1", "result", result="yes"))
    assert stored == message(text("let me ask"), tool("c1", "call"))


def test_an_outcome_whose_call_is_not_stored_is_not_lost():
    whole = with_updates(message(text("let me ask")), message(tool("c2", "result", result="yes")))
    assert whole == message(text("let me ask"), tool("c2", "result", result="yes"))


def test_a_copy_that_says_more_is_taken_as_it_is():
    done = tool("c1", "result", result="yes")
    assert only_updates(message(done))
    assert not only_updates(message(text("edited"), done))
    assert not only_updates(message())
    assert not only_updates(message(done, role="user"))
