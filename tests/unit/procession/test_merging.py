import pytest

from procession.merging import calls_in


def message(*calls):
    parts = [
        {"type": "tool-invocation", "toolInvocation": {"toolCallId": call, "state": state}}
        for call, state in calls
    ]
    return {"content": {"parts": [{"type": "text", "text": "so"}, *parts]}}


OPEN = message(("a", "call"))
DONE = message(("a", "result"))
FAILED = message(("a", "output-error"))


@pytest.mark.parametrize(
    ("messages", "shared"),
    [
        ([OPEN, message(), DONE], {(0, 2)}),
        ([OPEN, FAILED, DONE], {(0, 1), (0, 2), (1, 2)}),
        ([DONE, DONE, FAILED], set()),
        ([message(("a", "call"), ("b", "result")), message(("b", "result")), DONE], {(0, 2)}),
    ],
)
def test_a_call_links_its_message_to_that_of_its_result_and_whole_calls_link_none(messages, shared):
    calls = calls_in(messages)
    places = range(len(calls))
    assert {(i, j) for i in places for j in places[i + 1 :] if calls[i] & calls[j]} == shared
