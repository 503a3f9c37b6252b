"""From the conversation to the prompt of a provider call (core.md 6.1, R-ML-11, R-RQ-4)."""

import copy
import itertools
from typing import Any

import pytest

from procession.message_list import MessageList
from procession.prompt import conversation_entries, to_prompt

NOW = "2026-01-31T12:00:00.000Z"


def conversation(*messages: Any, system: Any = ()) -> MessageList:
    ids = (f"id-{n}" for n in itertools.count())
    made = MessageList(new_id=lambda: next(ids), now=lambda: NOW)
    for role, content in messages:
        made.add({"role": role, "content": {"format": 2, "parts": content}}, "input", merge=False)
    for message in system:
        made.add_system(message)
    return made


def text(value: Any) -> Any:
    return {"type": "text", "text": value}


def tool(
    call_id: Any = "call_1", name: Any = "weather", args: Any = None, *, part: Any = None, **outcome: Any
) -> Any:
    invocation = {"state": "call", "toolCallId": call_id, "toolName": name, "args": args or {"city": "Oslo"}}
    return {"type": "tool-invocation", "toolInvocation": invocation | outcome, **(part or {})}


def done(result: Any, **kwargs: Any) -> Any:
    return tool(state="result", result=result, **kwargs)


def call(call_id: Any = "call_1", name: Any = "weather", args: Any = None) -> Any:
    return {"type": "tool-call", "toolCallId": call_id, "toolName": name, "input": args or {"city": "Oslo"}}


def answer(output: Any, call_id: Any = "call_1", name: Any = "weather") -> Any:
    return {"type": "tool-result", "toolCallId": call_id, "toolName": name, "output": output}


def turns(*parts: Any) -> Any:
    """What comes of one assistant message after a question."""
    return to_prompt(conversation(("user", [text("q")]), ("assistant", list(parts))))[1:]


STEP = {"type": "step-start"}
SUNNY = {"temp": 21, "sky": "clear"}


class TestLayout:
    def test_system_entries_come_first_tagged_ones_last(self) -> None:
        made = conversation(("user", [text("hi")]))
        made.add_system("memory", tag="memory").add_system("instructions").add_system("from the caller")
        assert to_prompt(made) == [
            {"role": "system", "content": "instructions"},
            {"role": "system", "content": "from the caller"},
            {"role": "system", "content": "memory"},
            {"role": "user", "content": [text("hi")]},
        ]

    def test_an_empty_conversation_leaves_the_system_entries(self) -> None:
        assert to_prompt(conversation(system=["only me"])) == [{"role": "system", "content": "only me"}]
        assert to_prompt(conversation()) == []

    def test_user_messages_in_a_row_stay_apart(self) -> None:
        assert to_prompt(conversation(("user", [text("one")]), ("user", [text("two")]))) == [
            {"role": "user", "content": [text("one")]},
            {"role": "user", "content": [text("two")]},
        ]

    def test_an_assistant_turn_in_front_gets_a_minimal_user_turn(self) -> None:
        entries = to_prompt(conversation(("assistant", [text("hello")]), system=["s"]))
        assert [e["role"] for e in entries] == ["system", "user", "assistant"]
        assert entries[1]["content"] == [text(".")]

    def test_the_core_view_has_neither_system_entries_nor_that_turn(self) -> None:
        made = conversation(("assistant", [text("hello")]), system=["s"])
        assert made.get.all.core() == [{"role": "assistant", "content": [text("hello")]}]

    def test_messages_of_which_a_model_sees_nothing_are_left_out(self) -> None:
        data = {"type": "data-note", "data": {"a": 1}}
        made = conversation(
            ("user", [data]), ("user", [text("q")]), ("assistant", [data, text("")]), ("assistant", [])
        )
        assert to_prompt(made) == [{"role": "user", "content": [text("q")]}]


class TestParts:
    def test_files_and_images_are_file_parts(self) -> None:
        given = [
            text("look"),
            {"type": "image", "image": "https://x/cat.png"},
            {"type": "image", "image": "QUJD", "mimeType": "image/webp"},
            {"type": "file", "data": "data:application/pdf;base64,QUJD", "filename": "a.pdf"},
            {"type": "file", "url": "https://x/a.csv", "mediaType": "text/csv"},
        ]
        assert to_prompt(conversation(("user", given)))[0]["content"] == [
            text("look"),
            {"type": "file", "data": "https://x/cat.png", "mediaType": "image/*"},
            {"type": "file", "data": "QUJD", "mediaType": "image/webp"},
            {
                "type": "file",
                "data": "data:application/pdf;base64,QUJD",
                "mediaType": "application/pdf",
                "filename": "a.pdf",
            },
            {"type": "file", "data": "https://x/a.csv", "mediaType": "text/csv"},
        ]

    def test_data_source_error_and_unknown_parts_are_not_for_the_model(self) -> None:
        hidden = [
            {"type": "data-progress", "data": 50},
            {"type": "source", "source": {"id": "s", "url": "https://x"}},
            {"type": "error", "error": {"name": "E", "message": "died"}},
            {"type": "hologram", "beam": 7},
        ]
        assert turns(text("partial "), *hidden) == [{"role": "assistant", "content": [text("partial ")]}]
        assert turns(*hidden) == []

    def test_reasoning_keeps_signature_and_redacted_blocks(self) -> None:
        part = {
            "type": "reasoning",
            "reasoning": "hm, yes",
            "details": [
                {"type": "text", "text": "hm, ", "signature": "sig"},
                {"type": "redacted", "data": "xyz"},
                {"type": "text", "text": "yes"},
            ],
        }
        assert turns(part)[0]["content"] == [
            {"type": "reasoning", "text": "hm, ", "signature": "sig"},
            {"type": "reasoning", "text": "", "redactedData": "xyz"},
            {"type": "reasoning", "text": "yes"},
        ]

    def test_edited_reasoning_is_what_the_model_gets_and_loses_its_signature(self) -> None:
        details = [{"type": "text", "text": "the secret", "signature": "sig"}]
        part = {"type": "reasoning", "reasoning": "the [x]", "details": details}
        assert turns(part)[0]["content"] == [{"type": "reasoning", "text": "the [x]"}]
        assert turns(part | {"reasoning": ""}) == []

    def test_provider_metadata_travels_as_provider_options(self) -> None:
        extra = {"providerMetadata": {"p": {"cache": True}}}
        content = turns(text("a") | extra, done("x", part=extra))[0]["content"]
        assert [entry["providerOptions"] for entry in content] == [{"p": {"cache": True}}] * 2

    def test_so_does_that_of_a_message_on_its_last_entry(self) -> None:
        made = conversation(
            ("user", [text("q")]), ("assistant", [done(1), text("so"), done(2, call_id="call_2")])
        )
        for message in made.get.all.db():
            message["content"]["providerMetadata"] = {"p": {"cache": True}}  # type: ignore[typeddict-unknown-key]
        entries = to_prompt(made)
        assert [e["role"] for e in entries] == ["user", "assistant", "tool", "assistant", "tool"]
        assert [e.get("providerOptions") for e in entries] == [
            {"p": {"cache": True}}, None, None, {"p": {"cache": True}}, None,
        ]  # fmt: skip


class TestWhatProvidersRefuse:
    @pytest.mark.parametrize("blank", ["", " \n", "\t"])
    def test_blank_texts(self, blank: Any) -> None:
        made = conversation(("user", [text(blank)]), ("user", [text(blank), text("q")]), system=[blank, "s"])
        assert to_prompt(made) == [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [text("q")]},
        ]
        assert turns(text(blank), done(1), text(blank), done(2, call_id="call_2")) == [
            {"role": "assistant", "content": [call(), call("call_2")]},
            {"role": "tool", "content": [answer({"type": "json", "value": n}, f"call_{n}") for n in (1, 2)]},
        ]
        assert turns(text(blank)) == []

    def test_files_without_data(self) -> None:
        assert turns({"type": "file", "mimeType": "image/png"}, {"type": "image"}, text("a")) == [
            {"role": "assistant", "content": [text("a")]}
        ]

    def test_thoughts_of_a_user(self) -> None:
        thought = {"type": "reasoning", "reasoning": "hm"}
        assert to_prompt(conversation(("user", [thought]), ("user", [thought, text("q")]))) == [
            {"role": "user", "content": [text("q")]}
        ]

    def test_the_id_of_a_call_twice(self) -> None:
        made = conversation(
            ("user", [text("q")]),
            ("assistant", [done("one"), done("two")]),
            ("user", [text("again")]),
            ("assistant", [done("three"), tool("call_1", state="call"), done("four", call_id="call_1_2")]),
        )
        entries = [e for e in to_prompt(made) if e["role"] != "user"]
        told = [[part["toolCallId"] for part in e["content"]] for e in entries]
        assert told == [["call_1", "call_1_2"]] * 2 + [["call_1_3", "call_1_2_2"]] * 2
        values = [part["output"]["value"] for e in entries if e["role"] == "tool" for part in e["content"]]
        assert values == ["one", "two", "three", "four"]

    def test_the_id_of_a_call_twice_where_the_provider_ran_one(self) -> None:
        own = {"providerExecuted": True}
        [said, results] = turns(done("mine"), done("its", part=own))
        assert [(part["type"], part["toolCallId"]) for part in said["content"]] == [
            ("tool-call", "call_1"), ("tool-call", "call_1_2"), ("tool-result", "call_1_2"),
        ]  # fmt: skip
        assert results["content"] == [answer({"type": "text", "value": "mine"})]


class TestToolOutput:
    @pytest.mark.parametrize(
        ("outcome", "output"),
        [
            ({"state": "result", "result": "warm"}, {"type": "text", "value": "warm"}),
            ({"state": "result", "result": SUNNY}, {"type": "json", "value": SUNNY}),
            ({"state": "result", "result": [1]}, {"type": "json", "value": [1]}),
            ({"state": "result", "result": None}, {"type": "json", "value": None}),
            ({"state": "output-error", "errorText": "exploded"}, {"type": "error-text", "value": "exploded"}),
            (
                {"state": "output-denied", "approval": {"approved": False, "reason": "too risky"}},
                {"type": "text", "value": "too risky"},
            ),
            (
                {"state": "output-denied"},
                {"type": "text", "value": "The user did not approve this tool call."},
            ),
            ({"state": "result", "result": SUNNY, "modelOutput": "fine"}, {"type": "text", "value": "fine"}),
            ({"state": "result", "result": SUNNY, "modelOutput": [21]}, {"type": "json", "value": [21]}),
            (
                {"state": "result", "result": SUNNY, "modelOutput": {"type": "text", "value": "fine"}},
                {"type": "text", "value": "fine"},
            ),
        ],
    )
    def test_each_outcome_has_its_encoding(self, outcome: Any, output: Any) -> None:
        assert turns(tool(**outcome)) == [
            {"role": "assistant", "content": [call()]},
            {"role": "tool", "content": [answer(output)]},
        ]

    @pytest.mark.parametrize("state", ["partial-call", "call", "approval-requested", "approval-responded"])
    def test_a_call_without_outcome_is_left_out(self, state: Any) -> None:
        assert turns(text("let me "), tool(state=state)) == [
            {"role": "assistant", "content": [text("let me ")]}
        ]
        assert turns(tool(state=state)) == []

    def test_a_result_in_another_message_is_told_with_the_arguments_of_its_call(self) -> None:
        alone = {
            "state": "result",
            "toolCallId": "call_1",
            "toolName": "unknown",
            "args": {},
            "result": "warm",
        }
        made = conversation(
            ("user", [text("q")]),
            ("assistant", [tool()]),
            ("user", [text("and?")]),
            ("assistant", [{"type": "tool-invocation", "toolInvocation": alone}]),
        )
        assert to_prompt(made)[2:] == [
            {"role": "assistant", "content": [call()]},
            {"role": "tool", "content": [answer({"type": "text", "value": "warm"})]},
        ]


class TestSteps:
    """As the reference's recordings have it: k16, b24, i02, i03, k22."""

    def test_a_tool_loop_that_was_stored(self) -> None:
        expected = [
            {"role": "assistant", "content": [text("looking "), call()]},
            {"role": "tool", "content": [answer({"type": "json", "value": SUNNY})]},
            {"role": "assistant", "content": [text("21 degrees")]},
        ]
        assert turns(text("looking "), done(SUNNY), STEP, text("21 degrees")) == expected
        assert turns(text("looking "), done(SUNNY), text("21 degrees")) == expected

    def test_steps_of_calls_only(self) -> None:
        assert turns(done(1), STEP, done(2, call_id="call_2")) == [
            {"role": "assistant", "content": [call()]},
            {"role": "tool", "content": [answer({"type": "json", "value": 1})]},
            {"role": "assistant", "content": [call("call_2")]},
            {"role": "tool", "content": [answer({"type": "json", "value": 2}, "call_2")]},
        ]

    def test_two_calls_of_one_step_share_their_entries(self) -> None:
        assert turns(done(1), done(2, call_id="call_2")) == [
            {"role": "assistant", "content": [call(), call("call_2")]},
            {
                "role": "tool",
                "content": [
                    answer({"type": "json", "value": 1}),
                    answer({"type": "json", "value": 2}, "call_2"),
                ],
            },
        ]

    def test_steps_of_text_only(self) -> None:
        assert turns(text("one"), STEP, text("two")) == [
            {"role": "assistant", "content": [text("one")]},
            {"role": "assistant", "content": [text("two")]},
        ]

    def test_data_between_the_calls_of_a_step_does_not_split_it(self) -> None:
        assert turns(done(1), {"type": "data-p", "data": 1}, done(2, call_id="call_2")) == turns(
            done(1), done(2, call_id="call_2")
        )

    def test_what_the_provider_ran_stays_in_the_assistant_entry(self) -> None:
        ran = {"providerExecuted": True}
        assert turns(done("hit", part=ran), text("found")) == [
            {
                "role": "assistant",
                "content": [call() | ran, answer({"type": "text", "value": "hit"}), text("found")],
            }
        ]


class TestIsolation:
    def test_editing_a_prompt_never_changes_the_list(self) -> None:
        everything = [
            text("a") | {"providerMetadata": {"p": {"k": 1}}},
            done({"deep": [1]}, args={"deep": [1]}, part={"providerMetadata": {"p": {"k": 1}}}),
            tool(call_id="c2", state="result", result=1, modelOutput={"type": "json", "value": [1]}),
        ]
        made = conversation(
            ("user", [{"type": "file", "data": "x"}]), ("assistant", everything), system=["s"]
        )
        made.get.all.db()[1]["content"]["metadata"] = {"deep": [1]}
        before = copy.deepcopy(made.serialize())
        spoil(to_prompt(made))
        spoil(made.get.all.core())
        spoil(made.get.all.ui())
        assert made.serialize() == before

    def test_entries_of_plain_messages(self) -> None:
        message: Any = {
            "id": "m",
            "role": "user",
            "createdAt": NOW,
            "content": {"format": 2, "parts": [text("hi")]},
        }
        assert conversation_entries([message]) == [{"role": "user", "content": [text("hi")]}]


def spoil(value: Any) -> None:
    """Empties every container in a structure."""
    for inner in list(value.values() if isinstance(value, dict) else value):
        if isinstance(inner, dict | list):
            spoil(inner)
    value.clear()
