"""Ranking, finding and loading tools (R-TS-4, R-TS-5, R-TS-8)."""

from typing import Any

import pytest

from procession_schemas.agent import ToolRef
from procession_services.processors.core.tool_catalog import (
    Catalog,
    Entry,
    SearchOptions,
    ToolRule,
    entries,
    load,
    shortened,
    similar,
    visible_loads,
)

LISTED = [
    Entry(key="weather", name="get_weather", description="Get the weather of a city"),
    Entry(key="mail", name="send_email", description="Send the message to a city"),
    Entry(key="plain", name="plain", description=""),
]


def loading(args, have=(), refused=(), filtered=False):
    return load(args, Catalog(LISTED), have, filtered=filtered, refused=refused)


def rank(query, filtered=False, hidden=(), **options):
    hits = Catalog(LISTED).rank(query, SearchOptions(**options), filtered=filtered, hidden=hidden)
    return [entry.key for entry, _ in hits]


def test_names_of_configured_tools():
    tools = {
        "a": ToolRef(id="one"),
        "b": ToolRef(id="remote"),
        "c": ToolRef(id="remote"),
        "d": ToolRef(id="remote", as_="search"),
    }
    resolved = {"a": {"id": "other"}, "e": {"id": "calculator", "description": "sums"}}
    made = entries(tools, resolved)
    assert [(e.key, e.name) for e in made] == [
        ("a", "one"),
        ("b", "b"),
        ("c", "c"),
        ("d", "search"),
        ("e", "e"),
    ]
    assert made[-1].description == "sums"


def test_ranking_prefers_a_name_that_has_the_words():
    assert rank("city") == ["weather", "mail"]
    assert rank("city email") == ["mail", "weather"]


def test_as_many_as_asked_and_good_enough():
    assert rank("city", top_k=1) == ["weather"]
    assert rank("city", min_score=100) == []
    exact = Catalog(LISTED).rank("plain", SearchOptions(), filtered=False)[0][1]
    assert rank("plain", min_score=exact) == []  # strictly greater


def test_hidden_tools_leave_room_for_others():
    """With a filter all are candidates, so that what is denied does not use up the places."""
    many = [Entry(key=f"k{i}", name=f"n{i}", description="same") for i in range(6)]
    hits = Catalog(many).rank("same", SearchOptions(top_k=2), filtered=True, hidden=["k0", "k1", "k2", "k3"])
    assert [entry.key for entry, _ in hits] == ["k4", "k5"]


def test_key_first_and_with_a_filter_name_first():
    listed = [Entry(key="a", name="b"), Entry(key="b", name="c")]
    found = [Catalog(listed).find("b", filtered=filtered) for filtered in (False, True)]
    assert [entry.key for entry in found if entry] == ["b", "a"]


@pytest.mark.parametrize("args", [{}, {"toolNames": []}, {"toolName": ""}])
def test_nothing_to_load(args):
    done = loading(args)
    assert done.answer["success"] is False
    assert done.added == []


def test_one_tool_under_the_name_that_was_asked():
    assert loading({"toolName": "weather"}).added == ["weather"]
    assert loading({"toolName": "get_weather"}).added == ["get_weather"]
    again = loading({"toolName": "weather"}, have=["weather"])
    assert (again.answer["success"], again.added) == (True, [])


def test_several_by_groups():
    done = loading({"toolName": "weather", "toolNames": ["mail", "nope", "plain", "mail"]}, have=["plain"])
    assert done.added == ["mail", "weather"]
    assert done.answer == {
        "success": False,
        "message": done.answer["message"],
        "loadedCount": 2,
        "loaded": ["mail", "weather"],
        "notFound": ["nope"],
        "alreadyLoaded": ["plain"],
    }


def test_a_refused_tool_is_not_there_and_not_suggested():
    done = loading({"toolName": "mail"}, refused=["mail"], filtered=True)
    assert (done.answer["success"], done.added) == (False, [])
    assert "send_email" not in loading({"toolName": "email"}, refused=["mail"]).answer["message"]
    assert "send_email" in loading({"toolName": "email"}).answer["message"]


def test_suggestions_are_three_at_the_most_and_go_both_ways():
    assert similar("mailer", ["mail", "e", "x"]) == ["mail", "e"]
    assert similar("A", ["xa", "ya", "za", "wa"]) == ["xa", "ya", "za"]
    assert similar("", ["a"]) == []


def test_descriptions_are_cut():
    assert shortened("x" * 150) == "x" * 150
    assert shortened("x" * 151) == "x" * 147 + "..."


@pytest.mark.parametrize(
    ("rule", "permitted"),
    [
        ({"deny": ["mail"]}, False),
        ({"deny": ["send_*"]}, False),
        ({"allow": ["mail"]}, True),
        ({"allow": ["other"]}, False),
        ({"allow": []}, False),
        ({"deny": ["mail"], "phases": ["load"]}, True),
        ({"deny": ["mail"], "when": {"plan": "free"}}, False),
        ({"deny": ["mail"], "when": {"plan": ["paid", "free"], "beta": None}}, False),
        ({"deny": ["mail"], "when": {"plan": "free", "region": "eu"}}, True),
    ],
)
def test_rules(rule, permitted):
    made = ToolRule.model_validate(rule)
    assert made.permits(["mail", "send_email"], {"plan": "free"}, "search") is permitted


def call(tool, result, state="result"):
    invocation = {"toolName": tool, "state": state, "toolCallId": "c", "args": {}, "result": result}
    return {"type": "tool-invocation", "toolInvocation": invocation}


def visible(*parts):
    message: Any = {"content": {"parts": [{"type": "text", "text": "x"}, *parts]}}
    return visible_loads([message])


def test_what_messages_show_as_loaded():
    assert visible(
        call("search_tools", {"results": [{"name": "a"}, {"score": 1}, "odd"]}),
        call("load_tool", {"success": True, "toolName": "b"}),
        call("load_tool", {"success": False, "toolName": "c"}),
        call("load_tool", {"success": False, "loaded": ["d"], "notFound": ["e"], "alreadyLoaded": ["a"]}),
        call("load_tool", {"success": True, "toolName": "f"}, state="call"),
        call("other", {"success": True, "toolName": "g"}),
        call("load_tool", "text"),
        call("load_tool", {"success": True, "toolName": 1, "loaded": "x"}),
    ) == ["a", "b", "d"]
