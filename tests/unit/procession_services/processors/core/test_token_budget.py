import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession_services.processors.core.token_budget import (
    Item,
    fitting,
    items_of,
    linked,
    weigh_entry,
    weigh_message,
)
from procession_services.processors.core.token_counter import ESTIMATOR, load


def message(*parts, role="assistant"):
    return {"role": role, "content": {"format": 2, "parts": list(parts)}}


def call(name, args, **more):
    return {
        "type": "tool-invocation",
        "toolInvocation": {"state": "call", "toolName": name, "args": args} | more,
    }


def test_a_count_is_never_negative():
    assert weigh_message(message(call("now", {}))).tokens(ESTIMATOR) == 0
    assert weigh_message(message(call("getWeather", {"city": "Paris"}))).tokens(ESTIMATOR) == pytest.approx(
        1.8
    )


def test_a_call_without_arguments_weighs_its_name():
    named = {"type": "tool-call", "toolCallId": "c", "toolName": "now"}
    for weight in (
        weigh_message(message(call("now", None))),
        weigh_entry({"role": "assistant", "content": [named]}),
    ):
        assert weight.tokens(ESTIMATOR) == pytest.approx(2 + 3.8)


def test_a_vocabulary_takes_nothing_off_for_json():
    assert weigh_message(message(call("now", {}))).tokens(load("o200k_base")) == pytest.approx(3 + 3.8)


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ([{"type": "reasoning", "reasoning": "hm"}], 16.8),
        ([{"type": "file", "data": "https://example.com/x.pdf", "mimeType": "application/pdf"}], 263.8),
        ([{"type": "file", "url": "https://example.com/x.png", "mediaType": "image/png"}], 770.8),
        ([{"type": "file", "data": "", "mimeType": "text/plain"}], 6.8),
        ([], 5.8),
    ],
)
def test_other_parts_count_as_json_and_files_as_files(parts, tokens):
    assert weigh_message(message(*parts)).tokens(ESTIMATOR) == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("state", "more", "texts", "results"),
    [
        ("output-error", {"errorText": "no such city"}, ["no such city"], 1),
        ("output-denied", {"approval": {"id": "a", "reason": "too dear"}}, ["too dear"], 1),
        ("output-denied", {}, [], 1),
        ("approval-requested", {}, ["getWeather", "Paris"], 0),
    ],
)
def test_a_tool_call_weighs_what_a_prompt_shows_of_it(state, more, texts, results):
    weight = weigh_message(message(call("getWeather", "Paris", toolCallId="c", state=state, **more)))
    assert (weight.texts, weight.results) == (["assistant", *texts], results)


@pytest.mark.parametrize(
    ("output", "texts", "json_values", "media"),
    [
        ({"type": "text", "value": "ok"}, ["tool", "ok"], 0, 0),
        ({"type": "error-text", "value": "no"}, ["tool", "no"], 0, 0),
        ({"type": "json", "value": {"a": 1}}, ["tool", '{"a":1}'], 1, 0),
        ({"type": "error-json", "value": "no"}, ["tool", '"no"'], 1, 0),
        (
            {
                "type": "content",
                "value": [
                    {"type": "text", "text": "see"},
                    {"type": "media", "data": "AA", "mediaType": "image/png"},
                ],
            },
            ["tool", "see", '{"type":"media","mediaType":"image/png"}'],
            1,
            765,
        ),
    ],
)
def test_outputs_of_a_prompt_count_by_their_kind(output, texts, json_values, media):
    weight = weigh_entry(
        {"role": "tool", "content": [{"type": "tool-result", "toolCallId": "c", "output": output}]}
    )
    assert (weight.texts, weight.json_values, weight.media) == (texts, json_values, media)


@pytest.mark.parametrize(
    ("calls", "groups"),
    [
        ([set(), {"a"}, {"a"}, set()], [[0], [1, 2], [3]]),
        ([{"a"}, {"b"}, {"a"}, {"b"}], [[0, 2], [1, 3]]),
        ([{"a"}, {"b"}, {"a", "b"}, {"c"}], [[0, 1, 2], [3]]),
        ([{"a"}, {"b"}, {"a", "b"}, {"a"}, {"b"}], [[0, 1, 2, 3, 4]]),
        ([], []),
    ],
)
def test_what_shares_a_call_is_one_group(calls, groups):
    assert linked(calls) == groups


@given(st.lists(st.sets(st.sampled_from("abcdef"), max_size=3), max_size=12))
def test_groups_part_no_call_and_lose_no_place(calls):
    groups = linked(calls)
    assert sorted(place for group in groups for place in group) == list(range(len(calls)))
    seen = [set().union(*(calls[place] for place in group)) for group in groups]
    assert all(not (a & b) for i, a in enumerate(seen) for b in seen[:i])


def test_the_newest_question_and_the_last_calls_behind_it_are_needed():
    roles = ["user", "assistant", "user", "assistant", "tool", "assistant", "tool"]
    calls = [set(), set(), set(), {"a"}, {"a"}, {"b"}, {"b"}]
    needed = [item.places for item in items_of(roles, calls, [1.0] * 7) if item.needed]
    assert needed == [[2], [5, 6]]


def test_calls_before_the_question_are_not_needed():
    items = items_of(["user", "assistant", "tool", "user"], [set(), {"a"}, {"a"}, set()], [1.0] * 4)
    assert [item.places for item in items if item.needed] == [[3]]


@pytest.mark.parametrize(
    ("costs", "budget", "contiguous", "kept"),
    [
        ([1, 9, 1, 1], 3, False, {0, 2, 3}),
        ([1, 9, 1, 1], 3, True, {2, 3}),
        ([1, 1], 0.5, False, None),
        ([0.1, 0.2], 0.3, False, {0, 1}),
    ],
)
def test_the_newest_that_fit_stay(costs, budget, contiguous, kept):
    items = [Item([place], cost, needed=False) for place, cost in enumerate(costs)]
    assert fitting(items, budget, contiguous=contiguous) == kept


def test_what_is_needed_stays_before_anything_else_or_nothing_does():
    items = [Item([0], 5, needed=True), Item([1], 5, needed=False), Item([2], 1, needed=False)]
    assert fitting(items, 6, contiguous=False) == {0, 2}
    assert fitting(items, 4, contiguous=False) is None
