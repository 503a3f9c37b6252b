"""The conversation of a run, rule by rule (core.md 7.3 to 7.5, 13.3, better.md D-18)."""

import copy
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.message_list import MessageList
from procession.messages import InvalidMessageError, map_text, texts_of
from procession.prompt import to_prompt
from tests.support.cost import growth

NOW = "2026-01-31T12:00:00.000Z"
LATER = "2026-01-31T12:00:01.000Z"
EARLIER = "2026-01-31T11:00:00.000Z"
STEP: Any = {"type": "step-start"}


def empty(**options: Any) -> MessageList:
    ids = (f"id-{n}" for n in itertools.count())
    return MessageList(new_id=lambda: next(ids), now=lambda: NOW, **options)


def reloaded(messages: Any) -> MessageList:
    data = json.loads(json.dumps(messages.serialize()))
    return MessageList.deserialize(data, new_id=messages._new_id, now=lambda: NOW)


def text(value: Any) -> Any:
    return {"type": "text", "text": value}


def tool(call_id: Any = "c1", state: Any = "call", **rest: Any) -> Any:
    invocation = {
        "state": state,
        "toolCallId": call_id,
        "toolName": "weather",
        "args": {"city": "Oslo"},
        **rest,
    }
    return {"type": "tool-invocation", "toolInvocation": invocation}


def message(message_id: Any, *parts: Any, role: Any = "user", at: Any = NOW, **content: Any) -> Any:
    made = {"id": message_id, "role": role, "createdAt": at}
    return made | {
        "content": {"format": 2, "parts": [text(p) if isinstance(p, str) else p for p in parts], **content}
    }


def reply(message_id: Any, *parts: Any, **rest: Any) -> Any:
    return message(message_id, *parts, role="assistant", **rest)


def ids(messages: Any) -> Any:
    return [m["id"] for m in messages]


def part_of(messages: Any, call_id: Any = "c1") -> Any:
    found = [
        p["toolInvocation"]
        for m in messages.get.all.db()
        for p in m["content"]["parts"]
        if p.get("toolInvocation", {}).get("toolCallId") == call_id
    ]
    return found[0]


class TestAdd:
    def test_it_returns_the_list_and_takes_one_or_many(self) -> None:
        messages = empty()
        assert messages.add("one", "input") is messages
        messages.add(["two", {"role": "user", "content": "three"}], "input")
        assert texts_of(messages.get.all.db()) == ["one", "two", "three"]

    def test_sources_and_the_alias_user(self) -> None:
        messages = empty()
        for source in ("memory", "input", "user", "response", "context"):
            messages.add(message(source, source), source)
        assert ids(messages.get.remembered.db()) == ["memory"]
        assert ids(messages.get.input.db()) == ["input", "user"]
        assert ids(messages.get.response.db()) == ["response"]
        assert ids(messages.get.context.db()) == ["context"]
        assert messages.source_of("user") == "input"
        assert messages.source_of("nobody") is None

    def test_an_unknown_source_is_refused(self) -> None:
        with pytest.raises(ValueError, match="unknown source 'somewhere'; use one of memory"):
            empty().add("x", "somewhere")

    def test_thread_and_resource_are_filled_in(self) -> None:
        messages = empty(thread_id="t", resource_id="r").add(
            ["a", message("b", "b") | {"threadId": "own"}], "input"
        )
        first, second = messages.get.all.db()
        assert (first["threadId"], first["resourceId"]) == ("t", "r")
        assert (second["threadId"], second["resourceId"]) == ("own", "r")

    def test_what_goes_in_is_copied(self) -> None:
        given_message = message("a", "text")
        messages = empty().add(given_message, "input")
        given_message["content"]["parts"][0]["text"] = "changed"
        assert texts_of(messages.get.all.db()) == ["text"]

    def test_one_bad_message_leaves_the_list_as_it_was(self) -> None:
        messages = empty().add("one", "input")
        with pytest.raises(InvalidMessageError) as caught:
            messages.add(["two", {"role": "user", "content": None}], "input")
        assert caught.value.field == "messages.1.content"
        assert texts_of(messages.get.all.db()) == ["one"]

    def test_an_empty_text_is_no_message_but_may_be_that_of_one(self) -> None:
        messages = empty().add("", "input")
        assert messages.get.all.db() == []
        messages.add(["", {"role": "user", "content": ""}], "input")
        assert texts_of(messages.get.all.db()) == ["", ""]

    def test_something_that_is_no_message_is_refused(self) -> None:
        with pytest.raises(InvalidMessageError, match="messages is of type int"):
            empty().add(7, "input")
        with pytest.raises(InvalidMessageError, match=r"messages\.0\.id"):
            empty().add({"id": ["x"], "role": "user", "content": "x"}, "input")

    def test_a_system_message_goes_to_the_system_messages(self) -> None:
        messages = empty().add([{"role": "system", "content": "be kind"}, "hi"], "input")
        assert texts_of(messages.get.all.db()) == ["hi"]
        assert messages.get_system_messages() == [{"role": "system", "content": "be kind"}]

    def test_a_remembered_system_message_is_dropped(self) -> None:
        messages = empty().add({"role": "system", "content": "old"}, "memory")
        assert messages.get_all_system_messages() == []
        assert messages.get.all.db() == []


class TestOrder:
    def test_time_decides(self) -> None:
        messages = empty().add([message("b", at=LATER), message("a", at=EARLIER)], "input")
        assert ids(messages.get.all.db()) == ["a", "b"]

    def test_equal_times_keep_their_order(self) -> None:
        assert ids(empty().add([message("b"), message("a"), message("c")], "input").get.all.db()) == [
            "b",
            "a",
            "c",
        ]

    def test_without_a_time_a_message_is_the_last(self) -> None:
        messages = empty().add(message("late", at=LATER), "input").add(["x", "y"], "input")
        times = [m["createdAt"] for m in messages.get.all.db()]
        assert times == [LATER, "2026-01-31T12:00:01.001Z", "2026-01-31T12:00:01.002Z"]

    def test_without_a_time_it_follows_those_of_the_same_call(self) -> None:
        asked = {"role": "user", "content": "from a clock that is ahead", "createdAt": LATER}
        messages = empty().add([asked, {"role": "assistant", "content": "yes"}, "thanks"], "input")
        assert texts_of(messages.get.all.db()) == ["from a clock that is ahead", "yes", "thanks"]

    def test_history_loaded_later_sorts_before(self) -> None:
        messages = empty().add("now", "input").add([message("h", "before", at=EARLIER)], "memory")
        assert texts_of(messages.get.all.db()) == ["before", "now"]

    def test_an_edited_time_counts(self) -> None:
        messages = empty().add([message("a"), message("b")], "input")
        messages.get.all.db()[0]["createdAt"] = LATER
        assert ids(messages.get.all.db()) == ["b", "a"]

    @settings(deadline=None)
    @given(st.lists(st.none() | st.integers(0, 5_000), max_size=12))
    def test_the_order_rule(self, offsets: Any) -> None:
        messages = empty()
        for n, offset in enumerate(offsets):
            like = {"id": str(n), "role": "user", "content": "x"}
            if offset is not None:
                like["createdAt"] = f"2026-01-31T12:00:0{offset // 1000}.{offset % 1000:03}Z"
            known = [m["createdAt"] for m in messages.get.all.db()]
            messages.add(like, "input")
            if offset is None:
                stamp = next(m["createdAt"] for m in messages.get.all.db() if m["id"] == str(n))
                assert all(stamp > time for time in known)
        ordered = messages.get.all.db()
        assert [(m["createdAt"], int(m["id"])) for m in ordered] == sorted(
            (m["createdAt"], int(m["id"])) for m in ordered
        )


class TestMerging:
    def test_an_assistant_message_after_another_becomes_part_of_it(self) -> None:
        messages = empty().add([reply("a", "one"), reply("b", "two")], "response")
        assert ids(messages.get.all.db()) == ["a"]
        assert messages.get.all.db()[0]["content"]["parts"] == [text("one"), text("two")]

    def test_user_messages_never_merge(self) -> None:
        assert len(empty().add(["one", "two"], "input").get.all.db()) == 2

    @pytest.mark.parametrize(
        ("last", "following", "source", "merge"),
        [
            (reply("a", "one"), reply("b", "two"), "memory", True),
            (reply("a", "one"), reply("b", "two"), "response", False),
            (reply("a", "one", metadata={"sealed": True}), reply("b", "two"), "response", True),
            (reply("a", "one", metadata={"mastra": {"sealed": True}}), reply("b", "two"), "response", True),
            (
                reply("a", "one", metadata={"mastra": {"responseBoundary": True}}),
                reply("b", "two"),
                "response",
                True,
            ),
            (reply("a", {"type": "data-x", "data": 1}), reply("b", "two"), "response", True),
            (
                reply("a", "one") | {"threadId": "t1"},
                reply("b", "two") | {"threadId": "t2"},
                "response",
                True,
            ),
            (message("a", "one"), reply("b", "two"), "response", True),
            (reply("a", "one", at=LATER), reply("b", "two"), "response", True),
        ],
        ids=[
            "memory",
            "merge=False",
            "sealed",
            "sealed by the reference",
            "a boundary of the reference",
            "data only",
            "other thread",
            "after a user",
            "older than the last",
        ],
    )
    def test_when_it_does_not(self, last: Any, following: Any, source: Any, merge: Any) -> None:
        messages = empty().add(last, "response").add(following, source, merge=merge)
        assert sorted(ids(messages.get.all.db())) == ["a", "b"]

    def test_the_merged_message_takes_the_source(self) -> None:
        messages = empty().add(reply("a", "one"), "memory").add(reply("b", "two"), "response")
        assert messages.source_of("a") == "response"

    def test_a_tool_result_joins_its_call(self) -> None:
        messages = (
            empty()
            .add(reply("a", tool()), "input")
            .add({"role": "tool", "tool_call_id": "c1", "content": "warm"}, "input")
        )
        assert messages.get.all.db()[0]["content"]["parts"] == [tool(state="result", result="warm")]

    @pytest.mark.parametrize("source", ["input", "response", "memory"])
    def test_context_that_is_merged_leaves_to_be_saved_what_was(self, source: Any) -> None:
        messages = empty().add(reply("a", "one"), source).add(reply("b", "two"), "context")
        assert texts_of(messages.get.all.db()) == ["onetwo"]
        assert messages.source_of("a") == ("context" if source == "memory" else source)

    def test_a_result_brings_arguments_and_metadata_that_its_call_lacks(self) -> None:
        result = tool(state="result", result="warm") | {"providerMetadata": {"q": 2}}
        started = tool(args={}) | {"providerMetadata": {"p": 1}}
        messages = empty().add([reply("a", started), reply("b", result)], "input")
        assert messages.get.all.db()[0]["content"]["parts"] == [
            tool(state="result", result="warm") | {"providerMetadata": {"p": 1, "q": 2}}
        ]

    def test_text_after_a_tool_starts_a_step(self) -> None:
        messages = empty().add([reply("a", tool(state="result", result=1)), reply("b", "so")], "response")
        assert messages.get.all.db()[0]["content"]["parts"] == [
            tool(state="result", result=1),
            STEP,
            text("so"),
        ]

    def test_what_a_message_says_twice_stays_said_twice(self) -> None:
        messages = empty().add([reply("a", "one"), reply("b", "ha", "ha"), reply("c", "ha")], "response")
        assert texts_of(messages.get.all.db()) == ["onehaha"]

    def test_parts_are_not_doubled_and_metadata_is_merged(self) -> None:
        first = reply("a", "one", tool(), metadata={"x": 1, "y": 1})
        second = reply("b", "one", tool(), STEP, "two", metadata={"y": 2})
        content = empty().add([first, second], "response").get.all.db()[0]["content"]
        assert content["parts"] == [text("one"), tool(), STEP, text("two")]
        assert content["metadata"] == {"x": 1, "y": 2}


class TestKnownIds:
    def test_other_content_replaces_in_place(self) -> None:
        messages = empty().add([message("a", "old"), message("b", "b", at=LATER)], "input")
        messages.add({"id": "a", "role": "user", "content": "new"}, "input")
        assert texts_of(messages.get.all.db()) == ["new", "b"]
        assert messages.get.all.db()[0]["createdAt"] == NOW

    def test_the_same_content_changes_nothing(self) -> None:
        messages = empty().add(message("a", "same"), "memory")
        live = messages.get.all.db()[0]
        messages.add(message("a", "same"), "input")
        assert messages.get.all.db()[0] is live
        assert messages.source_of("a") == "memory"

    @pytest.mark.parametrize("source", ["input", "response", "context"])
    def test_an_incoming_copy_beats_a_stored_one_whichever_came_first(self, source: Any) -> None:
        before = empty().add(message("a", "new"), source).add(message("a", "stored"), "memory")
        after = empty().add(message("a", "stored"), "memory").add(message("a", "new"), source)
        for messages in (before, after):
            assert texts_of(messages.get.all.db()) == ["new"]
            assert messages.source_of("a") == source

    def test_a_stored_copy_never_overwrites_a_fresher_outcome(self) -> None:
        messages = empty().add(reply("a", tool(state="result", result="fresh")), "response")
        messages.add(reply("a", tool(state="result", result="stale")), "memory")
        messages.add(reply("a", tool()), "memory")
        assert part_of(messages) == tool(state="result", result="fresh")["toolInvocation"]

    def test_an_incoming_copy_does_not_lose_a_stored_outcome(self) -> None:
        stored, incoming = reply("a", tool(state="result", result="warm")), reply("a", tool(), "edited")
        for first, second in (
            ((stored, "memory"), (incoming, "input")),
            ((incoming, "input"), (stored, "memory")),
        ):
            messages = empty().add(*first).add(*second)
            assert part_of(messages)["result"] == "warm"
            assert texts_of(messages.get.all.db()) == ["edited"]

    def test_results_with_the_id_of_their_call_complete_it(self) -> None:
        messages = empty().add([reply("a", "let me see", tool()), message("b", "and?")], "input")
        result = {"type": "tool-result", "toolCallId": "c1", "toolName": "weather", "output": "warm"}
        messages.add({"id": "a", "role": "tool", "content": [result]}, "input")
        assert messages.get.all.db()[0]["content"]["parts"] == [
            text("let me see"),
            tool(state="result", result="warm"),
        ]

    def test_a_changed_copy_is_unsaved_again(self) -> None:
        messages = empty().add(message("a", "old"), "input")
        messages.drain_unsaved_messages()
        messages.add(message("a", "new"), "input")
        assert texts_of(messages.drain_unsaved_messages()) == ["new"]


class TestViews:
    def test_the_container_is_new_and_the_messages_are_live(self) -> None:
        messages = empty().add("hi", "input")
        view = messages.get.all.db()
        view[0]["content"]["parts"][0]["text"] = "edited"
        view.clear()
        assert texts_of(messages.get.input.db()) == ["edited"]
        assert to_prompt(messages)[0]["content"] == [text("edited")]

    def test_ui_messages_can_be_read_back(self) -> None:
        given_message = reply(
            "a",
            "one",
            tool(state="result", result={"t": 21}),
            tool("c2") | {"providerMetadata": {"google": {"thoughtSignature": "s"}}},
            tool("c3", "output-error", errorText="no"),
            {
                "type": "file",
                "data": "data:image/png;base64,QUJD",
                "mimeType": "image/png",
                "filename": "a.png",
            },
            {"type": "reasoning", "reasoning": "hm", "details": [{"type": "text", "text": "hm"}]},
            {"type": "source", "source": {"sourceType": "url", "id": "s", "url": "https://x", "title": "X"}},
            STEP,
            {"type": "data-x", "data": {"a": 1}},
            metadata={"k": 1},
        )
        ui = empty().add(given_message, "response").get.all.ui()
        assert [p["type"] for p in ui[0]["parts"]] == [
            "text", "tool-weather", "tool-weather", "tool-weather", "file", "reasoning", "source-url",
            "step-start", "data-x",
        ]  # fmt: skip
        assert ui[0]["parts"][1] == {
            "type": "tool-weather",
            "toolCallId": "c1",
            "state": "output-available",
            "input": {"city": "Oslo"},
            "output": {"t": 21},
        }
        assert ui[0]["parts"][2]["callProviderMetadata"] == {"google": {"thoughtSignature": "s"}}
        assert ui[0]["parts"][4]["filename"] == "a.png"
        assert empty().add(ui, "response").get.all.db() == [given_message]

    def test_a_ui_file_of_plain_base64_is_a_data_uri(self) -> None:
        part = {"type": "file", "data": "QUJD", "mimeType": "image/png"}
        ui = empty().add(message("a", part), "input").get.input.ui()
        assert ui[0]["parts"] == [
            {"type": "file", "url": "data:image/png;base64,QUJD", "mediaType": "image/png"}
        ]

    def test_an_edit_in_place_reaches_the_flat_copy(self) -> None:
        messages = empty().add(message("a", "secret", content="secret"), "input")
        messages.get.all.db()[0]["content"]["parts"][0]["text"] = "[x]"
        assert messages.get.all.db()[0]["content"]["content"] == "[x]"
        messages.get.all.db()[0]["content"]["parts"].clear()
        assert "secret" not in json.dumps(messages.get.all.db())


class TestRemoving:
    def test_by_ids(self) -> None:
        messages = empty().add([message("a"), message("b"), message("c")], "input")
        assert ids(messages.remove_by_ids(["c", "nobody", "a"])) == ["a", "c"]
        assert ids(messages.get.all.db()) == ["b"]
        assert ids(messages.remove_by_ids("b")) == ["b"]

    @pytest.mark.parametrize(("what", "gone"), [("all", "mir"), ("input", "i"), ("response", "r")])
    def test_clear(self, what: Any, gone: Any) -> None:
        messages = (
            empty().add(message("m"), "memory").add(message("i"), "input").add(message("r"), "response")
        )
        assert "".join(ids(getattr(messages.clear, what).db())) == gone
        assert "".join(ids(messages.get.all.db())) == "".join(c for c in "mir" if c not in gone)

    def test_what_was_drained_is_not_cleared_with_its_source(self) -> None:
        messages = empty().add(message("old"), "input")
        messages.drain_unsaved_messages()
        messages.add(message("new"), "input")
        assert ids(messages.clear.input.db()) == ["new"]
        assert ids(messages.get.all.db()) == ["old"]

    def test_what_is_saved_holds_no_text_that_a_processor_took_out(self) -> None:
        messages = empty().add(message("a", "secret", content="secret"), "input")
        messages.get.all.db()[0]["content"]["parts"].clear()
        assert "secret" not in json.dumps(messages.serialize())
        drained = empty().add(message("a", "secret", content="secret"), "input")
        drained.get.all.db()[0]["content"]["parts"].clear()
        assert "secret" not in json.dumps(drained.drain_unsaved_messages())

    def test_draining_empties_the_views_but_not_the_conversation(self) -> None:
        messages = empty().add(message("m"), "memory").add(message("c"), "context")
        messages.add(message("i"), "input").add(message("r"), "response")
        assert ids(messages.drain_unsaved_messages()) == ["i", "r"]
        assert messages.drain_unsaved_messages() == []
        assert messages.get.input.db() == messages.get.response.db() == []
        assert ids(messages.get_persisted.input.db()) == ["i"]
        assert ids(messages.get.all.db()) == ["m", "c", "i", "r"]
        assert ids(messages.add(message("r2"), "response").get.response.db()) == ["r2"]


class TestReconcile:
    def test_what_is_missing_goes(self) -> None:
        messages = empty().add([message("a"), message("b")], "input")
        stage = messages.get.all.db()
        messages.reconcile(stage, [stage[1]], "input")
        assert ids(messages.get.all.db()) == ["b"]

    def test_an_empty_array_removes_the_stage_and_nothing_else(self) -> None:
        messages = empty().add(message("q"), "input").add(reply("r"), "response")
        messages.reconcile(messages.get.response.db(), [], "response")
        assert ids(messages.get.all.db()) == ["q"]

    def test_the_same_objects_change_nothing(self) -> None:
        messages = empty().add([message("a"), message("b")], "input")
        before, stage = copy.deepcopy(messages.serialize()), messages.get.all.db()
        messages.reconcile(stage, list(reversed(stage)), "response")
        assert messages.serialize() == before
        assert messages.get.all.db()[0] is stage[0]

    def test_a_copy_without_changes_leaves_the_live_object(self) -> None:
        messages = empty().add(message("a"), "input")
        (live,) = messages.get.all.db()
        messages.reconcile([live], [copy.deepcopy(live)], "input")
        assert messages.get.all.db()[0] is live

    def test_a_known_id_is_replaced_and_keeps_its_source(self) -> None:
        messages = empty().add(message("h", "old"), "memory").add(message("q", "hi"), "input")
        stage = messages.get.all.db()
        messages.reconcile(stage, [map_text(m, str.upper) for m in stage], "response")
        assert texts_of(messages.get.all.db()) == ["OLD", "HI"]
        assert [messages.source_of(i) for i in "hq"] == ["memory", "input"]

    def test_assistant_messages_are_replaced_never_merged(self) -> None:
        messages = empty().add([reply("a", "one"), reply("b", "two", at=LATER)], "memory")
        stage = messages.get.all.db()
        messages.reconcile(
            stage, [*map(copy.deepcopy, stage), {"role": "assistant", "content": "three"}], "response"
        )
        assert texts_of(messages.get.all.db()) == ["one", "two", "three"]

    def test_a_new_message_gets_the_default_source_and_sorts_last(self) -> None:
        messages = empty().add(message("q", "hi", at=LATER), "input")
        messages.reconcile(messages.get.all.db(), ["new", messages.get.all.db()[0]], "input")
        assert texts_of(messages.get.all.db()) == ["hi", "new"]
        assert len(messages.get.input.db()) == 2

    def test_a_system_entry_becomes_a_system_message(self) -> None:
        messages = empty().add("hi", "input").add_system("first")
        stage = messages.get.all.db()
        parts = [text("line one"), text("line two")]
        system = {"role": "system", "content": {"format": 2, "parts": parts}}
        messages.reconcile(stage, [{"role": "system", "content": "second"}, *stage, system], "input")
        assert [m["content"] for m in messages.get_system_messages()] == [
            "first",
            "second",
            "line one\nline two",
        ]
        assert texts_of(messages.get.all.db()) == ["hi"]

    def test_a_replacement_without_time_or_thread_keeps_them(self) -> None:
        messages = empty(thread_id="t").add([message("a", "x", at=EARLIER), message("b", "y")], "input")
        stage = messages.get.all.db()
        messages.reconcile(stage, [{"id": "a", "role": "user", "content": "new"}, stage[1]], "input")
        assert messages.get.all.db()[0] == message("a", "new", at=EARLIER) | {"threadId": "t"}

    def test_text_that_was_taken_out_does_not_come_back_from_the_flat_copy(self) -> None:
        messages = empty().add(message("a", "secret", content="secret"), "input")
        stage = messages.get.all.db()
        without = copy.deepcopy(stage[0])
        without["content"]["parts"] = []
        messages.reconcile(stage, [without], "input")
        assert "secret" not in json.dumps(messages.serialize())

    def test_a_message_that_cannot_be_read_changes_nothing(self) -> None:
        messages = empty().add([message("a"), message("b")], "input")
        with pytest.raises(InvalidMessageError, match=r"messages\.1\.content is missing"):
            messages.reconcile(messages.get.all.db(), ["x", {"role": "user"}], "input")
        assert ids(messages.get.all.db()) == ["a", "b"]

    @settings(deadline=None)
    @given(st.data())
    def test_its_laws(self, data: Any) -> None:
        names = st.sampled_from("abcdef")
        messages = empty()
        for name in data.draw(st.lists(names, unique=True)):
            messages.add(message(name, name), data.draw(st.sampled_from(["memory", "input", "response"])))
        everything = messages.get.all.db()
        stage = [m for m in everything if data.draw(st.booleans())]
        kept = [m for m in stage if data.draw(st.booleans())]
        changed = [map_text(m, str.upper) if data.draw(st.booleans()) else m for m in kept]
        added = [message(n, n) for n in data.draw(st.lists(st.sampled_from("uvw"), unique=True))]
        sources = {m["id"]: messages.source_of(m["id"]) for m in everything}
        messages.reconcile(stage, data.draw(st.permutations([*changed, *added])), "response")
        now = {m["id"]: m for m in messages.get.all.db()}
        outside = [m for m in everything if m not in stage]
        assert set(now) == set(ids([*outside, *changed, *added]))
        assert all(now[m["id"]] is m for m in outside)
        assert all(now[m["id"]] == m for m in [*changed, *added])
        assert all(messages.source_of(i) == sources.get(i, "response") for i in now)


class TestSystemMessages:
    def test_untagged_come_first_then_tagged_groups_as_they_appeared(self) -> None:
        messages = empty().add_system("guidance", tag="framework").add_system("instructions")
        messages.add_system("facts", tag="memory").add_system(
            [{"role": "system", "content": "more"}], tag="framework"
        )
        assert [m["content"] for m in messages.get_all_system_messages()] == [
            "instructions", "guidance", "more", "facts",
        ]  # fmt: skip
        assert messages.get_system_messages("memory") == [{"role": "system", "content": "facts"}]
        assert messages.get_system_messages() == [{"role": "system", "content": "instructions"}]
        assert messages.get_system_messages("nothing") == []

    def test_duplicates_within_a_group_are_ignored(self) -> None:
        messages = (
            empty().add_system(["a", "a"]).add_system("a").add_system("a", tag="t").add_system("a", tag="t")
        )
        assert [m["content"] for m in messages.get_all_system_messages()] == ["a", "a"]

    def test_what_comes_out_are_copies(self) -> None:
        messages = empty().add_system("a")
        messages.get_all_system_messages()[0]["content"] = "b"
        assert messages.get_all_system_messages() == [{"role": "system", "content": "a"}]

    def test_clear(self) -> None:
        messages = empty().add_system("a").add_system("b", tag="t")
        messages.clear_system_messages()
        assert messages.get_all_system_messages() == [{"role": "system", "content": "b"}]
        messages.clear_system_messages("t")
        assert messages.get_all_system_messages() == []

    def test_replace_all_system_messages_touches_the_untagged_and_ignores_others(self) -> None:
        messages = empty().add_system("a").add_system("b", tag="t")
        messages.replace_all_system_messages(
            [{"role": "system", "content": "c"}, {"role": "user", "content": "no"}]
        )
        assert [m["content"] for m in messages.get_all_system_messages()] == ["c", "b"]

    def test_replace_system_replaces_everything_in_the_order_given(self) -> None:
        messages = empty().add_system("a").add_system("b", tag="t")
        messages.replace_system(["x", *messages.get_all_system_messages()])
        assert [m["content"] for m in messages.get_all_system_messages()] == ["x", "a", "b"]
        assert messages.get_system_messages("t") == []

    @pytest.mark.parametrize(
        "wrong", [7, {"role": "user", "content": "x"}, {"role": "system"}, ["fine", None]]
    )
    def test_what_is_no_system_message_is_refused(self, wrong: Any) -> None:
        with pytest.raises(InvalidMessageError, match="systemMessages"):
            empty().add_system(wrong)

    def test_reset_goes_back_to_the_baseline_tagged_ones_too(self) -> None:
        messages = empty().add_system("a").add_system("b", tag="t")
        messages.freeze_baseline()
        messages.add_system("step only").add_system("tagged too", tag="t")
        messages.reset_system()
        assert [m["content"] for m in messages.get_all_system_messages()] == ["a", "b"]
        messages.replace_system([])
        messages.reset_system()
        assert messages.get_system_messages("t") == [{"role": "system", "content": "b"}]

    def test_feedback_follows_the_whole_baseline_and_lasts_for_the_attempt(self) -> None:
        messages = empty().add_system("a").add_system("b", tag="t")
        messages.freeze_baseline()
        messages.reset_system(["first reason"])
        messages.reset_system(["first reason", "second reason", "second reason"])
        assert [m["content"] for m in messages.get_all_system_messages()] == [
            "a", "b", "first reason", "second reason",
        ]  # fmt: skip
        messages.reset_system()
        assert [m["content"] for m in messages.get_all_system_messages()] == ["a", "b"]

    def test_a_reset_needs_a_baseline(self) -> None:
        with pytest.raises(RuntimeError, match="freeze_baseline"):
            empty().reset_system()


class TestResponse:
    def test_one_message_collects_all_steps(self) -> None:
        messages = empty(thread_id="t").add("q", "input")
        messages.begin_response("run-message")
        messages.append_response_parts([text("looking "), tool()], metadata={"modelId": "m"})
        messages.accept_response()
        messages.set_tool_result("c1", 21)
        messages.begin_response("run-message")
        messages.append_response_parts([text("21 degrees")], metadata={"modelId": "n"})
        (made,) = messages.get.response.db()
        assert (made["id"], made["role"], made["threadId"]) == ("run-message", "assistant", "t")
        assert made["createdAt"] > messages.get.input.db()[0]["createdAt"]
        assert made["content"] == {
            "format": 2,
            "parts": [text("looking "), tool(state="result", result=21), STEP, text("21 degrees")],
            "content": "21 degrees",
            "metadata": {"modelId": "n"},
        }

    def test_parts_of_one_attempt_share_a_step(self) -> None:
        messages = empty().add("q", "input")
        messages.begin_response("r")
        messages.append_response_parts([text("a")])
        messages.append_response_parts([{"type": "data-x", "data": 1}])
        messages.accept_response()
        messages.append_response_parts([{"type": "data-late", "data": 2}])
        assert [p["type"] for p in messages.get.response.db()[0]["content"]["parts"]] == [
            "text",
            "data-x",
            "data-late",
        ]

    def test_an_empty_answer_makes_no_message(self) -> None:
        messages = empty()
        messages.begin_response("r")
        messages.append_response_parts([], metadata={"modelId": "m"})
        assert messages.get.all.db() == []
        assert (messages.response_steps(), messages.attempt_has_parts) == ([], False)

    def test_the_parts_of_each_step(self) -> None:
        """R-DM-2; an attempt without parts makes no step of the message."""
        messages = empty().add("q", "input")
        for parts in ([text("a"), tool()], [], [text("b")]):
            messages.begin_response("r")
            messages.append_response_parts(parts)
            assert messages.attempt_has_parts == bool(parts)
            messages.accept_response()
        assert messages.response_steps() == [[text("a"), tool()], [text("b")]]

    def test_an_attempt_whose_message_is_gone_has_no_parts(self) -> None:
        messages = empty()
        messages.begin_response("r")
        messages.append_response_parts([text("a")])
        messages.remove_by_ids(["r"])
        assert (messages.response_steps(), messages.attempt_has_parts) == ([], False)

    def test_what_is_appended_is_copied(self) -> None:
        part, messages = text("a"), empty()
        messages.begin_response("r")
        messages.append_response_parts([part])
        part["text"] = "b"
        assert texts_of(messages.get.all.db()) == ["a"]

    def test_there_must_be_a_response(self) -> None:
        with pytest.raises(RuntimeError, match="begin_response"):
            empty().append_response_parts([text("a")])

    def test_a_rejected_first_attempt_leaves_no_message(self) -> None:
        messages = empty().add("q", "input")
        before = copy.deepcopy(messages.get.all.db())
        messages.begin_response("r")
        messages.append_response_parts([tool(), STEP, text("no")])
        messages.rollback_response()
        assert messages.get.all.db() == before

    def test_a_rejected_later_attempt_leaves_the_accepted_steps(self) -> None:
        messages = accepted_step()
        before = copy.deepcopy(messages.get.all.db())
        messages.begin_response("r")
        messages.append_response_parts([text("no")], metadata={"modelId": "n", "extra": 1})
        messages.rollback_response()
        assert messages.get.all.db() == before
        messages.rollback_response()
        assert messages.get.all.db() == before

    def test_edits_of_everything_else_survive_a_rollback(self) -> None:
        messages = accepted_step()
        messages.begin_response("r")
        messages.append_response_parts([text("no")])
        question, response = messages.get.all.db()
        question["content"]["parts"][0]["text"] = "edited question"
        response["content"]["parts"][0]["text"] = "edited step"
        response["content"]["metadata"]["mark"] = True
        messages.add(message("new", "added"), "input")
        messages.rollback_response()
        assert [m["id"] for m in messages.get.all.db()] == ["q", "new", "r"]
        assert response["content"] == {
            "format": 2,
            "parts": [text("edited step"), tool(state="result", result=21)],
            "content": "edited step",
            "metadata": {"modelId": "m", "mark": True},
        }

    @pytest.mark.parametrize("keep_separator", [True, False])
    def test_a_rejected_answer_goes_although_a_processor_rewrote_the_message(
        self, keep_separator: Any
    ) -> None:
        messages = accepted_step()
        messages.begin_response("r")
        messages.append_response_parts([text("no")])
        stage = messages.get.all.db()
        edited = map_text(stage[1], str.upper)
        if keep_separator:
            del edited["content"]["parts"][0]
            edited["content"]["parts"].append(text("a note"))
        else:
            edited["content"]["parts"] = [p for p in edited["content"]["parts"] if p != STEP]
        messages.reconcile(stage, [stage[0], edited], "response")
        messages.rollback_response()
        assert "NO" not in json.dumps(messages.get.all.db())
        assert part_of(messages)["result"] == 21

    def test_a_rollback_works_in_another_service(self) -> None:
        messages = accepted_step()
        before = copy.deepcopy(messages.get.all.db())
        messages.begin_response("r")
        messages = reloaded(messages)
        messages.append_response_parts([text("no")], metadata={"modelId": "n"})
        messages = reloaded(messages)
        messages.rollback_response()
        assert messages.get.all.db() == before

    def test_messages_removed_meanwhile_stay_removed(self) -> None:
        messages = accepted_step()
        messages.begin_response("r")
        messages.append_response_parts([text("no")])
        messages.remove_by_ids(["r"])
        messages.rollback_response()
        assert ids(messages.get.all.db()) == ["q"]

    @pytest.mark.parametrize("travels", [False, True])
    @pytest.mark.parametrize("how", ["returned", "in the list", "all anew"])
    def test_what_takes_the_place_of_a_rejected_answer_goes_with_it(self, how: Any, travels: Any) -> None:
        messages = accepted_step()
        before = copy.deepcopy(messages.get.all.db())
        messages.begin_response("r")
        messages.append_response_parts([text("no")], metadata={"modelId": "n"})
        stage, instead = messages.get.all.db(), {"role": "assistant", "content": "NO, rewritten"}
        match how:
            case "returned":
                messages.reconcile(stage, [*stage[:-1], instead], "response")
            case "in the list":
                messages.add(instead, "response", merge=False)
                messages.remove_by_ids(["r"])
            case _:
                messages.clear.response.db()
                messages.add([instead, *stage[1:]], "response")
        messages = reloaded(messages) if travels else messages
        messages.append_response_parts([{"type": "data-x", "data": 1}])
        messages = reloaded(messages) if travels else messages
        messages.rollback_response()
        assert messages.get.all.db() == before
        assert messages.source_of("r") == "response"

    def test_of_what_a_processor_adds_to_a_rejected_answer_the_assistants_messages_go(self) -> None:
        messages = empty().add(message("q", "weather?"), "input")
        messages.begin_response("r")
        messages.add(reply("before", "prefill", at=LATER), "response", merge=False)
        messages.append_response_parts([text("no")])
        stage = messages.get.all.db()
        added = [
            reply("mine", "more of it"),
            message("remark", "cite!"),
            message("system", "s", role="system"),
        ]
        messages.reconcile(stage, [*stage, *added], "response")
        messages.add(reply("recalled", "once"), "memory").add(reply("given", "here"), "context", merge=False)
        messages.rollback_response()
        assert sorted(ids(messages.get.all.db())) == ["before", "given", "q", "recalled", "remark"]
        assert [m["content"] for m in messages.get_system_messages()] == ["s"]

    def test_what_an_error_processor_does_takes_effect(self) -> None:
        messages = accepted_step()
        messages.begin_response("r")
        messages.append_response_parts([text("half an ans")])
        messages.remove_by_ids(["r"])
        messages.add(reply("mine", "I looked it up: 21"), "response")
        messages.rollback_response(failed=True)
        assert ids(messages.get.all.db()) == ["q", "mine"]

    @pytest.mark.parametrize("travels", [False, True])
    @pytest.mark.parametrize("accepted", [False, True])
    def test_what_an_error_processor_adds_behind_half_an_answer_outlives_it(
        self, accepted: bool, travels: bool
    ) -> None:
        messages = accepted_step() if accepted else empty()
        messages.begin_response("r")
        messages.append_response_parts([text("half an ans")])
        messages.add(reply("mine", "I looked it up: 21", at=LATER), "response")
        messages = reloaded(messages) if travels else messages
        messages.rollback_response(failed=True)
        told = "".join(texts_of(messages.get.response.db()))
        assert told.removeprefix("looking ").strip() == "I looked it up: 21"

    def test_what_an_error_processor_removes_again_does_not_come_back(self) -> None:
        messages = empty()
        messages.begin_response("r")
        messages.append_response_parts([text("half an ans")])
        messages.add(reply("mine", "I looked it up: 21", at=LATER), "response")
        messages.remove_by_ids(["r"])
        messages.rollback_response(failed=True)
        assert messages.get.all.db() == []

    def test_what_is_added_to_a_rejected_answer_goes_with_it(self) -> None:
        messages = empty()
        messages.begin_response("r")
        messages.append_response_parts([text("no")])
        messages.add(reply("mine", "more of it", at=LATER), "response")
        messages.rollback_response()
        assert messages.get.all.db() == []

    def test_what_was_put_beside_an_accepted_answer_stays(self) -> None:
        messages = accepted_step()
        messages.begin_response("r")
        messages.append_response_parts([text("yes")])
        stage = messages.get.all.db()
        messages.reconcile(stage, [*stage[:-1], reply("mine", "yes, rewritten", at=LATER)], "response")
        messages.accept_response()
        messages.begin_response("r")
        messages.append_response_parts([text("no")])
        messages.rollback_response()
        assert texts_of(messages.get.all.db()) == ["weather?", "yes, rewritten"]

    def test_beginning_again_accepts(self) -> None:
        messages = accepted_step()
        messages.begin_response("r")
        messages.append_response_parts([text("yes")])
        messages.begin_response("r")
        messages.rollback_response()
        assert texts_of(messages.get.response.db()) == ["looking yes"]

    def test_a_new_part_makes_the_message_unsaved(self) -> None:
        messages = accepted_step()
        messages.drain_unsaved_messages()
        messages.append_response_parts([{"type": "data-x", "data": 1}])
        assert ids(messages.drain_unsaved_messages()) == ["r"]

    def test_the_error_of_a_failed_turn_is_kept(self) -> None:
        messages = empty().add("q", "input")
        messages.begin_response("r")
        messages.append_response_parts([text("partial ")])
        messages.add_error_part("APICallError", "died")
        error = {"type": "error", "error": {"name": "APICallError", "message": "died"}}
        assert messages.get.response.db()[0]["content"]["parts"] == [text("partial "), error]
        silent = empty()
        silent.begin_response("r")
        silent.add_error_part("APICallError", "died")
        assert silent.get.response.db()[0]["content"]["parts"] == [error]


def accepted_step() -> MessageList:
    messages = empty().add(message("q", "weather?"), "input")
    messages.begin_response("r")
    messages.append_response_parts([text("looking "), tool()], metadata={"modelId": "m"})
    messages.accept_response()
    messages.set_tool_result("c1", 21)
    return messages


class TestToolCalls:
    @pytest.mark.parametrize(
        ("record", "outcome"),
        [
            (lambda m: m.set_tool_result("c1", {"t": 21}), {"state": "result", "result": {"t": 21}}),
            (
                lambda m: m.set_tool_error("c1", "exploded"),
                {"state": "output-error", "errorText": "exploded"},
            ),
            (
                lambda m: m.set_tool_denied("c1", "too risky"),
                {"state": "output-denied", "approval": {"approved": False, "reason": "too risky"}},
            ),
            (
                lambda m: m.set_tool_denied("c1"),
                {"state": "output-denied", "approval": {"approved": False}},
            ),
            (
                lambda m: m.update_tool_invocation(tool(state="result", result=1, args={"city": "Rome"})),
                {"state": "result", "result": 1},
            ),
        ],
    )
    def test_an_outcome_is_recorded_and_the_arguments_stay(self, record: Any, outcome: Any) -> None:
        messages = empty().add(reply("a", tool()), "memory")
        live = messages.get.all.db()[0]
        assert record(messages) is True
        assert live["content"]["parts"][0] == tool(**outcome)
        assert messages.source_of("a") == "response"

    def test_an_unknown_call_is_told(self) -> None:
        messages = empty().add(reply("a", tool()), "memory")
        assert messages.set_tool_result("nobody", 1) is False
        assert messages.update_tool_invocation(tool("nobody", "result", result=1)) is False
        assert messages.source_of("a") == "memory"

    def test_the_last_call_with_that_id_is_meant(self) -> None:
        messages = empty().add([reply("a", tool()), message("q"), reply("b", tool())], "input")
        messages.set_tool_result("c1", 1)
        assert [
            m["content"]["parts"][0]["toolInvocation"]["state"]
            for m in messages.get.all.db()
            if m["id"] != "q"
        ] == [
            "call",
            "result",
        ]

    def test_states_only_move_forward(self) -> None:
        messages = empty().add(reply("a", tool(state="partial-call")), "response")
        for state in ("call", "approval-requested", "approval-responded", "result"):
            assert messages.update_tool_invocation(tool(state=state)) is True
        for state in ("partial-call", "call", "approval-responded", "output-error", "output-denied"):
            assert messages.update_tool_invocation(tool(state=state)) is False
        assert part_of(messages)["state"] == "result"

    def test_a_result_may_be_rewritten(self) -> None:
        messages = empty().add(reply("a", tool(state="result", result="ssn 1")), "response")
        assert messages.update_tool_invocation(tool(state="result", result="[x]")) is True
        assert part_of(messages)["result"] == "[x]"

    @pytest.mark.parametrize("rejected", [True, False])
    def test_a_call_with_the_id_of_an_earlier_one_takes_its_place_until_it_is_rejected(
        self, rejected: bool
    ) -> None:
        messages = accepted_step()
        messages.begin_response("r")
        messages.begin_again({"toolCallId": "c1", "toolName": "find", "args": {"city": "Rome"}})
        made = part_of(messages)
        assert (made["state"], made["toolName"], "result" in made) == ("call", "find", False)
        assert messages.set_tool_error("c1", "exploded")
        messages = reloaded(messages)
        messages.rollback_response() if rejected else messages.accept_response()
        made = part_of(messages)
        assert made.get("result") == (21 if rejected else None)
        assert made["args"] == {"city": "Oslo" if rejected else "Rome"}

    def test_there_may_be_no_call_to_begin_again(self) -> None:
        messages = empty().add("q", "input")
        messages.begin_again({"toolCallId": "c1", "toolName": "find"})
        assert messages.pending_tool_calls() == []

    @pytest.mark.parametrize("part", [{}, {"toolInvocation": {"state": "result"}}, {"toolInvocation": 7}])
    def test_a_part_must_name_its_call(self, part: Any) -> None:
        with pytest.raises(InvalidMessageError, match="names no tool call"):
            empty().update_tool_invocation(part)

    def test_pending_calls_are_those_of_this_run_without_outcome(self) -> None:
        messages = empty().add(reply("old", tool("from-history")), "memory").add("q", "input")
        messages.begin_response("r")
        messages.append_response_parts([tool("c1"), tool("c2"), tool("c3")])
        messages.set_tool_result("c2", 1)
        assert [c["toolCallId"] for c in messages.pending_tool_calls()] == ["c1", "c3"]
        messages.pending_tool_calls()[0]["args"]["city"] = "Rome"
        assert part_of(messages, "c1")["args"] == {"city": "Oslo"}


def take(messages: MessageList, what: str, value: str) -> None:
    """One step of a random play; steps that need an earlier one do nothing without it."""
    state = messages.serialize()
    match what:
        case "input" | "memory":
            messages.add({"role": "user", "content": value, "id": f"{what}-{value}"}, what)
        case "tagged":
            messages.add_system(value, tag=value)
        case "reset" if state["system"]["baseline"] is not None:
            messages.reset_system([value])
        case "append" if state["responseId"]:
            messages.append_response_parts([text(value), tool(value)], metadata={"m": value})
        case _:
            SIMPLE.get(what, lambda *_: None)(messages, value)


SIMPLE: Any = {
    "reply": lambda messages, value: messages.add({"role": "assistant", "content": value}, "response"),
    "system": lambda messages, value: messages.add_system(value),
    "freeze": lambda messages, _: messages.freeze_baseline(),
    "begin": lambda messages, _: messages.begin_response("r"),
    "rollback": lambda messages, _: messages.rollback_response(),
    "drain": lambda messages, _: messages.drain_unsaved_messages(),
}
kinds = st.sampled_from(["input", "memory", "tagged", "reset", "append", *SIMPLE])
actions = st.lists(st.tuples(kinds, st.text("ab", max_size=2)), max_size=12)


def played(steps: Any, messages: MessageList | None = None) -> MessageList:
    made = messages or empty(thread_id="t")
    for what, value in steps:
        take(made, what, value)
    return made


class TestSerialising:
    @settings(deadline=None)
    @given(actions, actions)
    def test_a_list_goes_on_as_if_it_had_never_travelled(self, before: Any, after: Any) -> None:
        stayed, travelled = played(before), reloaded(played(before))
        assert travelled.serialize() == stayed.serialize()
        assert travelled.get.all.db() == stayed.get.all.db()
        assert played(after, travelled).serialize() == played(after, stayed).serialize()

    def test_the_time_of_a_removed_message_is_not_given_again(self) -> None:
        messages = empty().add(["a", "b"], "input")
        last = messages.remove_by_ids(["id-1"])[0]["createdAt"]
        assert reloaded(messages).add("c", "input").get.all.db()[-1]["createdAt"] > last

    def test_nothing_is_left_behind(self) -> None:
        messages = (
            empty(thread_id="t", resource_id="u").add("q", "input").add(message("h", at=EARLIER), "memory")
        )
        messages.add_system("a").add_system("b", tag="t").freeze_baseline()
        messages.begin_response("r")
        messages.append_response_parts([text("x")])
        messages.drain_unsaved_messages()
        again = reloaded(messages)
        assert (again.thread_id, again.resource_id) == ("t", "u")
        assert ids(again.get.remembered.db()) == ["h"]
        assert again.get.response.db() == []
        again.replace_system([])
        again.reset_system()
        assert again.get_all_system_messages() == messages.get_all_system_messages()
        again.rollback_response()
        assert again.source_of("r") is None


def test_many_messages_cost_no_more_than_each_for_itself() -> None:
    def add(size: int) -> None:
        told = [{"role": ("user", "assistant")[n % 2], "content": "x"} for n in range(size)]
        assert len(empty().add(told, "input").get.all.db()) == size

    assert growth(add, 4_000) < 10


def test_what_is_replaced_may_be_the_newest_from_then_on() -> None:
    """R-ML-7."""
    messages = empty().add([message("a", "x"), reply("b", "x", at=LATER)], "input")
    messages.add([message("a", "y", at="2026-01-31T13:00:00.000Z"), reply("c", "z", at=LATER)], "input")
    assert ids(messages.get.all.db()) == ["b", "c", "a"]


class TestRollbackLaw:
    @settings(deadline=None)
    @given(
        actions,
        st.lists(st.lists(st.sampled_from([text("x"), tool("z"), STEP, {"type": "data-d", "data": 1}]))),
    )
    def test_begin_append_rollback_is_identity_on_everything_else(self, before: Any, appended: Any) -> None:
        messages = played([step for step in before if step[0] not in ("begin", "append", "rollback")])
        if before:
            messages.begin_response("r")
            messages.append_response_parts([text("accepted")], metadata={"m": 1})
            messages.accept_response()
        expected = copy.deepcopy(messages.get.all.db())
        system = messages.get_all_system_messages()
        messages.begin_response("r")
        for n, parts in enumerate(appended):
            messages.append_response_parts(parts, metadata={"m": n, f"k{n}": n})
        messages.rollback_response()
        assert messages.get.all.db() == expected
        assert messages.get_all_system_messages() == system
