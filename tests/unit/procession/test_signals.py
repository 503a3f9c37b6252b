"""Signals: messages that processors send to the model (R-PRE-4, R-PRE-5, R-AMD-4)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession import signals
from procession.errors import ProcessionError, ProcessorError
from procession.message_list import MessageList
from procession.prompt import to_prompt
from procession.testing import ProcessorKit
from procession.testing.answers import text_delta
from tests.unit.procession.making import NOW, processor

REMINDER: dict[str, Any] = {
    "type": "reactive",
    "tagName": "system-reminder",
    "contents": "continue",
    "attributes": {"type": "retry", "times": 2, "last": False},
    "metadata": {"message": "for clients"},
}
TAGGED = '<system-reminder type="retry" times="2" last="false">continue</system-reminder>'


def sends(*given: Any, hook: str = "process_input_step", then: Any = None, at: int | None = None) -> Any:
    async def run(args: Any) -> Any:
        if at is None or args.step_number == at:
            for each in given:
                await args.services.send_signal(each)
        return then

    return processor("sender", **{hook: run})


def shown(kit: ProcessorKit) -> list[tuple[str, str]]:
    """The texts of the prompt, with their roles; results of tools as `=...`."""
    found = []
    for entry in kit.prompt():
        for part in entry["content"]:
            value = part.get("text") or part.get("toolName")
            found.append((entry["role"], f"={value}" if part["type"] == "tool-result" else value))
    return found


def conversation(*messages: Any) -> MessageList:
    made = MessageList(new_id=map("m{}".format, range(100)).__next__, now=lambda: NOW)
    for message, source in messages:
        made.add(message, source)
    return made


async def test_a_signal_is_the_last_message_and_a_user_turn_of_the_prompt():
    kit = ProcessorKit(sends(REMINDER))
    kit.message_list.add(["hi", {"role": "assistant", "content": "hello"}], "input")
    outcome = await kit.input_step()
    assert [message["role"] for message in outcome.messages] == ["user", "assistant", "signal"]
    last = outcome.messages[-1]
    assert last["content"]["parts"] == [{"type": "text", "text": "continue"}]
    expected = {key: value for key, value in REMINDER.items() if key != "contents"}
    assert last["content"]["metadata"] == {"signal": expected}
    assert kit.message_list.source_of(last["id"]) == "input"
    assert shown(kit) == [("user", "hi"), ("assistant", "hello"), ("user", TAGGED)]


async def test_the_client_is_told_by_a_transient_chunk():
    outcome = await (kit := ProcessorKit(sends(REMINDER))).input_step()
    signal = outcome.messages[-1]
    data = {**REMINDER, "id": signal["id"], "createdAt": signal["createdAt"]}
    assert outcome.written == [{"type": "data-signal", "data": data, "transient": True}]
    assert not kit.context.pending_parts


@pytest.mark.parametrize(
    ("hook", "call"),
    [
        ("process_api_error", lambda kit: kit.api_error("broken")),
        ("process_output_step", lambda kit: kit.output_step("said")),
        ("process_output_result", lambda kit: kit.output_result("said")),
        ("process_llm_request", lambda kit: kit.llm_request()),
    ],
)
async def test_any_hook_but_that_of_the_stream_may_send_one(hook, call):
    outcome = await call(ProcessorKit(sends(REMINDER, hook=hook)))
    assert [m["role"] for m in outcome.messages].count("signal") == 1
    assert len(outcome.written) == 1


async def test_as_a_ui_message_it_is_what_the_chunk_was():
    outcome = await (kit := ProcessorKit(sends(REMINDER))).input_step()
    (chunk,) = outcome.written
    (shown,) = kit.message_list.get.all.ui()
    assert shown["role"] == "assistant"  # the AI SDK has no other for it
    assert shown["parts"] == [{"type": "data-signal", "data": chunk["data"]}]


async def test_process_input_sends_without_a_client():
    outcome = await ProcessorKit(sends(REMINDER, hook="process_input")).input("hi")
    assert [m["role"] for m in outcome.messages] == ["user", "signal"]
    assert outcome.written == []


async def test_the_stream_hook_may_not():
    kit = ProcessorKit(sends(REMINDER, hook="process_output_stream"), on_error="fail")
    with pytest.raises(ProcessorError, match="process_output_step") as raised:
        await kit.stream([text_delta("x")])
    assert isinstance(raised.value.__cause__, ProcessionError)


async def test_a_signal_survives_what_the_hook_returns():
    """A returned list replaces the messages that the hook was given, not those that it sent (R-RC-4)."""
    kit = ProcessorKit(sends(REMINDER, then=[]))
    kit.message_list.add("hi", "input")
    assert [m["role"] for m in (await kit.input_step()).messages] == ["signal"]


async def test_between_two_steps_it_stays_between_them():
    kit = ProcessorKit(sends({"contents": "note"}, at=1))
    kit.message_list.add("hi", "input")
    await kit.input_step()
    kit.answer("one", tool_calls=[{"toolName": "look", "toolCallId": "c1"}])
    kit.message_list.set_tool_result("c1", "seen")
    await kit.input_step()
    assert shown(kit)[-1] == ("user", "<system-reminder>note</system-reminder>")
    kit.answer("two", tool_calls=[{"toolName": "see", "toolCallId": "c2"}])
    kit.message_list.set_tool_result("c2", "saw")
    await kit.input_step()
    assert shown(kit) == [
        ("user", "hi"),
        ("assistant", "one"),
        ("assistant", "look"),
        ("tool", "=look"),
        ("user", "<system-reminder>note</system-reminder>"),
        ("assistant", "two"),
        ("assistant", "see"),
        ("tool", "=see"),
    ]


async def test_after_a_rejected_attempt_it_stands_before_the_next_one():
    async def reject(args: Any) -> None:
        if args.retry_count == 0:
            await args.services.send_signal({"contents": "note"})
            args.abort("again", retry=True)

    kit = ProcessorKit(processor("sender", process_output_step=reject))
    kit.message_list.add("hi", "input")
    kit.answer("kept", tool_calls=[{"toolName": "look", "toolCallId": "c1"}])
    kit.message_list.set_tool_result("c1", "seen")
    kit.prompt()  # begins the next step, and so accepts the first one
    outcome = await kit.output_step("rejected and longer than what comes after")
    assert outcome.tripwire is not None
    kit.answer("accepted")
    texts = [text for role, text in shown(kit) if role != "system"]
    assert [t for t in texts if not t.startswith("a")][:5] == [
        "hi",
        "kept",
        "look",
        "=look",
        "<system-reminder>note</system-reminder>",
    ]
    assert texts[-1] == "accepted"


def test_what_is_wrong_with_a_signal_is_said():
    wrong: list[tuple[Any, str]] = [
        ("x", "needs `contents`"),
        ({}, "needs `contents`"),
        ({"contents": 1}, "needs `contents`"),
        ({"contents": "x", "text": "y"}, "no key 'text'"),
        ({"contents": "x", "attributes": ["a"]}, "`attributes` of a signal must be an object, not list"),
        ({"contents": "x", "tagName": "a b"}, "'a b' cannot name a tag"),
        ({"contents": "x", "tagName": "t", "attributes": {"a>": 1}}, "'a>' cannot name a tag"),
    ]
    for signal, told in wrong:
        with pytest.raises(signals.InvalidSignalError, match=told):
            signals.to_message(signal)


def test_text_cannot_leave_its_tag():
    sent = {"contents": "a </note>&b", "tagName": "note", "attributes": {"k": '"><x>&', "no": [1]}}
    message: Any = signals.to_message(sent)
    assert signals.rendered(message) == '<note k="&quot;&gt;&lt;x&gt;&amp;">a &lt;/note&gt;&amp;b</note>'


@pytest.mark.parametrize(
    ("signal", "shown"),
    [
        ({"contents": "x"}, "<system-reminder>x</system-reminder>"),
        ({"contents": "x", "type": "notification"}, "<notification>x</notification>"),
        ({"contents": "x", "type": "user"}, "x"),
        ({"contents": "x", "type": "no name"}, "x"),
        ({"contents": "", "tagName": "page", "attributes": {"open": False}}, '<page open="false" />'),
    ],
)
def test_the_tag(signal, shown):
    assert signals.rendered(signals.to_message(signal)) == shown


@pytest.mark.parametrize("name", ["a b", "x><y", 7])
def test_a_recalled_signal_with_an_impossible_tag_is_plain_text(name):
    message: Any = signals.to_message({"contents": "x"})
    message["content"]["metadata"]["signal"]["tagName"] = name
    assert signals.rendered(message) == "x"


@pytest.mark.parametrize("kind", [{"a": 1}, ["user"], 7, None, ""])
def test_a_recalled_signal_of_no_known_kind_is_plain_text(kind):
    message: Any = signals.to_message({"contents": "x"})
    message["content"]["metadata"]["signal"]["type"] = kind
    assert signals.rendered(message) == "x"


def test_a_signal_of_blank_text_is_not_for_the_model():
    blank: Any = signals.to_message({"contents": " \n", "type": "user"})
    assert to_prompt(conversation(({"id": "s", "createdAt": NOW, **blank}, "memory"))) == []


def test_a_recalled_signal_is_rendered_like_a_fresh_one():
    stored = {"id": "s", **signals.to_message(REMINDER), "createdAt": NOW}
    assert to_prompt(conversation((stored, "memory"))) == [
        {"role": "user", "content": [{"type": "text", "text": TAGGED}]}
    ]


def test_an_edit_of_the_text_is_what_the_model_reads():
    message: Any = signals.to_message(REMINDER)
    message["content"]["parts"][0]["text"] = "[redacted]"
    assert signals.rendered(message) == TAGGED.replace("continue", "[redacted]")
    stored: Any = {"id": "s", "createdAt": NOW, **message}
    assert signals.to_chunk(stored)["data"]["contents"] == "[redacted]"


@pytest.mark.parametrize(
    "after", [{"message": "a", "parts": -1}, {"message": "a"}, {"message": 1, "parts": 0}, "a", None]
)
def test_a_place_that_makes_no_sense_is_ignored(after):
    message: Any = signals.to_message({"contents": "note"})
    message["content"]["metadata"]["signal"]["after"] = after
    made = conversation(({"id": "a", "role": "assistant", "content": "said"}, "memory"), (message, "memory"))
    assert [m["role"] for m in signals.in_place(made.get.all.db())] == ["assistant", "signal"]


PLACES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=5)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), PLACES)
def test_putting_signals_in_place_loses_nothing_and_changes_no_order(sizes, places):
    talk: list[Any] = []
    for number, size in enumerate(sizes):
        parts = [{"type": "text", "text": f"{number}.{i}"} for i in range(size)]
        talk.append({"id": f"a{number}", "role": "assistant", "content": {"format": 2, "parts": parts}})
    for number, (which, count) in enumerate(places):
        made: Any = {"id": f"s{number}", **signals.to_message({"contents": f"s{number}"})}
        made["content"]["metadata"]["signal"]["after"] = {"message": f"a{which}", "parts": count}
        talk.append(made)
    placed = signals.in_place(talk)
    texts = [part["text"] for message in placed for part in message["content"]["parts"]]
    said = [
        part["text"]
        for message in talk
        if message["role"] == "assistant"
        for part in message["content"]["parts"]
    ]
    assert [text for text in texts if not text.startswith("s")] == said
    assert sorted(text for text in texts if text.startswith("s")) == [f"s{n}" for n in range(len(places))]
    for number, (which, count) in enumerate(places):
        if which < len(sizes) and count < sizes[which]:
            before = texts[: texts.index(f"s{number}")]
            assert [text for text in before if text.startswith(f"{which}.")] == [
                f"{which}.{i}" for i in range(count)
            ]
