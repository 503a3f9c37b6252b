"""The return shapes of every hook and what the next hook sees of them (core.md 3 to 10, 14, 18)."""

import asyncio
import copy
import re
from typing import Any

import pytest

from procession.args import AbortSignal, APIError, ModelInfo
from procession.errors import ProcessorError
from procession.hooks import run_api_error, run_llm_request
from procession.messages import text_of
from procession.processor import Hook
from procession.testing import ProcessorKit, environment
from procession.testing.answers import USAGE
from procession.writers import NullWriter
from tests.unit.procession.making import FOREIGN, calls, context, delta, link, on, processor

EXTERNAL = "PROCESSOR_RETURNED_EXTERNAL_MESSAGE_LIST"
BOTH = "PROCESSOR_RETURNED_MESSAGES_AND_MESSAGE_LIST"
MODEL = "PROCESSOR_RETURNED_UNSUPPORTED_MODEL"
INVALID = "PROCESSOR_RETURNED_INVALID_VALUE"
UNREADABLE = "INVALID_MESSAGE_CONTENT"

INPUT, STEP, JUDGE, RESULT = (
    "process_input",
    "process_input_step",
    "process_output_step",
    "process_output_result",
)


def kit_of(method, *hooks, **options):
    """A kit with these hooks one after another, and a conversation."""
    first, *behind = on(method, *hooks)
    kit = ProcessorKit(first, then=behind, instructions="Be kind.", **options)
    kit.message_list.add([{"id": "old", "role": "user", "content": "old"}], "memory")
    kit.message_list.add([{"id": "new", "role": "user", "content": "new"}], "input")
    return kit


async def drive(kit, method):
    """Calls the hook where it belongs."""
    match method:
        case "process_input":
            return await kit.input()
        case "process_input_step":
            return await kit.input_step()
        case "process_output_step":
            return await kit.output_step("answer")
        case "process_output_result":
            return await kit.output_result("answer")
        case "process_llm_request":
            return await kit.llm_request()
        case "process_api_error":
            return await kit.api_error()
        case _:
            return await kit.tool_result("lookup", 1)


async def fails(method, value, code, **options):
    """Expects an error that names the processor."""
    with pytest.raises(ProcessorError) as caught:
        await drive(kit_of(method, lambda args: value(args) if callable(value) else value, **options), method)
    assert caught.value.code == code
    assert caught.value.processor_id == "a"
    assert caught.value.hook.replace("process", "process_").lower().replace("_", "") == method.replace(
        "_", ""
    )
    return caught.value


def copied(message, text):
    return {**message, "content": {"format": 2, "parts": [{"type": "text", "text": text}]}}


# --- what all hooks with messages have in common ---------------------------------------------

ALL = [INPUT, STEP, JUDGE, RESULT, "process_tool_result"]


@pytest.mark.parametrize("method", ALL)
async def test_nothing_and_the_same_list_change_nothing(method):
    for value in (lambda _args: None, lambda args: args.message_list):
        kit = kit_of(method, value)
        out = await drive(kit, method)
        assert out.texts[:2] == ["old", "new"]


@pytest.mark.parametrize("method", ALL)
async def test_another_message_list_is_an_error(method):
    """R-ER-1."""
    await fails(method, FOREIGN, EXTERNAL)
    await fails(method, FOREIGN, EXTERNAL, on_error="skip")


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("value", ["text", 5, ({"role": "user", "content": "x"},), True])
async def test_anything_else_is_an_error(method, value):
    error = await fails(method, value, INVALID)
    assert type(value).__name__ in str(error)


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize(("value", "code"), [(5, INVALID), ([5], UNREADABLE), (FOREIGN, EXTERNAL)])
async def test_a_wrong_return_is_counted_and_logged_without_its_text(method, value, code):
    lines: list[str] = []
    kit = kit_of(method, lambda _args: value, environment=environment(log=lines.append))
    with pytest.raises(ProcessorError) as caught:
        await drive(kit, method)
    assert lines == [f"a: {caught.value.hook} of run run-1 failed with {code}"]
    [report] = kit.calls.reports.values()
    assert (report.calls, report.errors) == (1, 1)


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("wrong", [{"role": "user"}, {"role": "nobody", "content": "x"}, 5])
async def test_a_message_that_cannot_be_read_is_an_error_that_names_processor_and_place(method, wrong):
    error = await fails(method, lambda args: [*args.messages, wrong], UNREADABLE)
    assert "messages." in str(error)


@pytest.mark.parametrize("method", ALL)
async def test_messages_are_live_but_their_list_is_a_copy(method):
    """R-AR-5, R-AR-6."""

    def edit(args):
        args.messages[-1]["content"]["parts"][0]["text"] = "edited"
        args.messages.append({"id": "ghost", "role": "user", "content": "ghost"})
        args.messages.pop(0)

    kit = kit_of(method, edit)
    if method == "process_tool_result":
        kit.answer("answer", tool_calls=[{"toolName": "lookup"}])
    out = await drive(kit, method)
    assert out.texts == ["old", *(["edited"] if method in (INPUT, STEP) else ["new", "edited"])]


@pytest.mark.parametrize("method", ALL)
async def test_the_list_that_was_given_may_be_changed_and_returned(method):
    def change(args):
        args.messages.pop(0)
        args.messages.append({"role": "user", "content": "added"})
        return args.messages

    out = await drive(kit_of(method, change), method)
    kept = {INPUT: ["new"], STEP: ["new"], JUDGE: ["new", "answer"], RESULT: ["old", "new"]}.get(
        method, ["new", ""]
    )
    assert out.texts == [*kept, "added"]


@pytest.mark.parametrize("method", ALL)
async def test_the_message_list_is_live(method):
    """R-AR-7."""

    def change(args):
        args.message_list.add([{"id": "more", "role": "user", "content": "more"}], "context")
        args.message_list.remove_by_ids(["old"])

    out = await drive(kit_of(method, change), method)
    assert "old" not in out.texts
    assert "more" in out.texts


@pytest.mark.parametrize("method", ALL)
async def test_returned_messages_replace_add_and_remove(method):
    """R-RC-1..4."""

    def rewrite(args):
        kept = copied(args.messages[-1], "rewritten")
        return [kept, {"id": "added", "role": "assistant", "content": "added"}]

    kit = kit_of(method, rewrite)
    out = await drive(kit, method)
    outside = ["old", "new"] if method == RESULT else []  # not of this hook's stage
    assert out.texts == [*outside, "rewritten", "added"]
    source = kit.message_list.source_of("added")
    assert source == ("input" if method in (INPUT, STEP) else "response")
    kept = {INPUT: "new", STEP: "new"}.get(method, "answer-1")
    assert kit.message_list.source_of(kept) == ("input" if method in (INPUT, STEP) else "response")


@pytest.mark.parametrize("method", ALL)
async def test_each_sees_what_the_one_before_left(method):
    """R-PR-3, R-IN-4."""
    seen: list[str] = []

    def first(args):
        return [copied(message, text_of(message) + "!") for message in args.messages]

    await drive(kit_of(method, first, lambda args: seen.extend(map(text_of, args.messages))), method)
    assert seen
    assert all(text.endswith("!") for text in seen)


@pytest.mark.parametrize("method", ALL)
async def test_an_abort_ends_the_hook_for_all_behind(method):
    """R-AB-4, R-AB-10."""

    def block(args):
        args.abort("bad", metadata={"why": 1})

    kit = kit_of(method, block, lambda args: args.request_context.set("reached", value=True))
    out = await drive(kit, method)
    assert (out.blocked.reason, out.blocked.processor_id, out.blocked.metadata) == ("bad", "a", {"why": 1})
    assert "reached" not in kit.request_context
    assert [(v.processor_id, v.message, v.detail) for v in kit.violations] == [("a", "bad", {"why": 1})]


@pytest.mark.parametrize("method", ALL)
async def test_async_hooks_do_the_same(method):
    async def later(args):
        await asyncio.sleep(0)
        return [copied(args.messages[-1], "later")]

    out = await drive(kit_of(method, later), method)
    assert out.texts[-1] == "later"


# --- processInput ----------------------------------------------------------------------------


async def test_input_gets_all_messages_and_all_system_messages():
    """R-IN-2, A-16."""
    kit = kit_of(INPUT, lambda args: args.state.update(
        texts=[text_of(m) for m in args.messages], system=args.system_messages, retries=args.retry_count,
        run=args.run_id))  # fmt: skip
    kit.message_list.add_system("from memory", "memory")
    kit.message_list.add({"role": "user", "content": "shown only"}, "context")
    await kit.input()
    assert kit.state["texts"] == ["old", "new", "shown only"]
    assert [m["content"] for m in kit.state["system"]] == ["Be kind.", "from memory"]
    assert (kit.state["retries"], kit.state["run"]) == (0, "run-1")


async def test_input_may_return_messages_and_system_messages():
    def both(args):
        return {
            "messages": args.messages[:1],
            "system_messages": [{"role": "system", "content": "new rules"}],
        }

    out = await kit_of(INPUT, both).input()
    assert out.texts == ["old"]
    assert [m["content"] for m in out.system] == ["new rules"]


@pytest.mark.parametrize(
    "value", [{"messages": []}, {"system_messages": []}, {}, {"messages": [], "system_messages": "x"},
              {"messages": "x", "system_messages": []}]
)  # fmt: skip
async def test_an_object_without_both_lists_is_an_error(value):
    await fails(INPUT, value, INVALID)


@pytest.mark.parametrize(
    ("value", "told"),
    [({"messages": 5, "system_messages": []}, "returned `messages` of type int; it must be a list of messages"),
     ({"messages": [], "system_messages": "x"},
      "returned `system_messages` of type str; it must be a list of system messages"),
     (5, "returned int; it may return a list of messages")],
)  # fmt: skip
async def test_the_type_of_a_wrong_field_is_not_taken_for_that_of_what_was_returned(value, told):
    assert told in str(await fails(INPUT, value, INVALID))


async def test_a_system_message_that_is_none_is_an_error():
    await fails(INPUT, {"messages": [], "system_messages": [{"role": "user", "content": "x"}]}, UNREADABLE)


async def test_editing_the_system_messages_argument_changes_nothing():
    out = await kit_of(INPUT, lambda args: args.system_messages[0].update(content="hacked")).input()
    assert out.system[0]["content"] == "Be kind."


async def test_a_returned_message_of_role_system_joins_the_system_messages():
    """R-IN-7."""
    kit = kit_of(INPUT, lambda args: [*args.messages, {"role": "system", "content": "also"}])
    out = await kit.input()
    assert out.texts == ["old", "new"]
    assert [m["content"] for m in out.system] == ["Be kind.", "also"]


async def test_an_empty_array_leaves_system_messages_only():
    """R-IN-8."""
    kit = kit_of(INPUT, lambda _args: [])
    await kit.input()
    assert [entry["role"] for entry in kit.prompt()] == ["system"]


async def test_system_messages_of_input_hold_for_every_step():
    """R-IN-5."""

    def both(args):
        args.message_list.add_system("for ever")

    kit = kit_of(INPUT, both)
    await kit.input()
    for _ in range(2):
        assert [e["content"] for e in kit.prompt() if e["role"] == "system"] == ["Be kind.", "for ever"]
        kit.answer("x")


async def test_a_retry_asked_of_input_takes_nothing_back():
    """R-IN-9: there is no step to try again."""
    kit = kit_of(INPUT, lambda args: args.abort("bad", retry=True))
    out = await kit.input()
    assert out.blocked.retry
    assert kit.context.retry_count == 0


# --- processInputStep ------------------------------------------------------------------------


async def step(*values, **config):
    """The configuration after hooks that return these values."""
    kit = kit_of(STEP, *[lambda _args, value=value: value for value in values])
    return (await kit.input_step(**config)).config


async def test_each_key_overrides_its_setting():
    tools: Any = {"calc": {"id": "calculator"}}
    value = {
        "model": "p/other", "tool_choice": "none", "active_tools": ["calc"], "tools": tools,
        "provider_options": {"p": {"x": 1}}, "model_settings": {"temperature": 0},
        "structured_output": {"schema": {"type": "object"}}, "unknown": "ignored", "toolChoice": "ignored",
    }  # fmt: skip
    config = await step(value)
    assert (config.model, config.tool_choice, config.active_tools) == ("p/other", "none", ["calc"])
    assert config.tools["calc"].id == "calculator"
    assert (config.provider_options, config.model_settings) == ({"p": {"x": 1}}, {"temperature": 0})
    assert config.structured_output is not None
    assert config.structured_output.schema_ == {"type": "object"}


async def test_an_empty_object_changes_nothing():
    assert await step({}) == await step(None)


async def step_args(**config):
    """What a second hook gets after a first one has overridden the model and the tools."""
    seen: dict[str, Any] = {}

    def look(args):
        seen.update(model=args.model, tools=args.tools, choice=args.tool_choice, settings=args.model_settings,
                    options=args.provider_options, structured=args.structured_output, active=args.active_tools,
                    message=args.message_id)  # fmt: skip

    kit = kit_of(STEP, lambda args: {"model": "p/two", "tools": {**args.tools, "calc": {"id": "calc"}}}, look)
    await kit.input_step(model="p/one", **config)
    return seen


async def test_the_next_one_sees_the_overrides_resolved():
    """R-IS-4, R-IS-7."""
    seen = await step_args(tools={"map": {"id": "map"}}, model_settings={"topK": 1}, active_tools=["map"],
                           structured_output={"schema": {}})  # fmt: skip
    assert seen["model"] == ModelInfo("p/two", "p", "two")
    assert list(seen["tools"]) == ["map", "calc"]
    assert (seen["choice"], seen["settings"], seen["options"]) == ("auto", {"topK": 1}, {})
    assert (seen["structured"]["schema"], seen["active"], seen["message"]) == ({}, ["map"], "answer-1")


async def test_the_last_one_wins_key_by_key():
    config = await step({"model": "p/a", "tool_choice": "none"}, {"model": "p/b"})
    assert (config.model, config.tool_choice) == ("p/b", "none")


async def test_settings_replace_the_whole_value_but_keep_retries_and_timeout():
    """R-IS-5."""
    before = {"temperature": 1, "maxRetries": 4, "timeout": 9}
    config = await step({"model_settings": {"topP": 1}, "provider_options": {}}, model_settings=before,
                        provider_options={"p": {}})  # fmt: skip
    assert config.model_settings == {"topP": 1, "maxRetries": 4, "timeout": 9}
    assert config.provider_options == {}
    config = await step({"model_settings": {"timeout": 1}}, model_settings=before)
    assert config.model_settings == {"maxRetries": 4, "timeout": 1}


@pytest.mark.parametrize("said", ["3", -1, True, 1.5])
async def test_retries_that_are_no_number_of_such_are_refused(said):
    with pytest.raises(
        ProcessorError, match="model_settings: maxRetries must be a whole number, 0 or more"
    ) as caught:
        await step({"model_settings": {"maxRetries": said}})
    assert caught.value.code == INVALID


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"max_tokens": 5},
            "model_settings.max_tokens: unknown setting, which is not sent; did you mean 'maxOutputTokens'?",
        ),
        ({"timeout": {"total": 5}}, "model_settings.timeout.total: unknown limit; known: totalMs,"),
    ],
)
async def test_settings_that_do_not_exist_are_refused(settings, told):
    with pytest.raises(ProcessorError, match=re.escape(told)) as caught:
        await step({"model_settings": settings})
    assert caught.value.code == INVALID


async def test_a_processor_is_not_blamed_for_what_the_agent_says():
    agents = {"temprature": 1}
    config = await step({"model_settings": {**agents, "topP": 1}}, model_settings=agents)
    assert config.model_settings == {"temprature": 1, "topP": 1}


async def test_none_clears_a_setting():
    """R-IS-6."""
    keys = ("tools", "active_tools", "tool_choice", "structured_output", "provider_options")
    config = await step(dict.fromkeys(keys), tools={"x": {"id": "x"}}, active_tools=["x"], tool_choice="none",
                        structured_output={"schema": {}}, provider_options={"a": 1})  # fmt: skip
    assert (config.tools, config.active_tools, config.tool_choice) == ({}, None, "auto")
    assert (config.structured_output, config.provider_options) == (None, {})


@pytest.mark.parametrize("empty", [None, ""])
async def test_an_empty_model_means_keep(empty):
    """R-IS-6."""
    assert (await step({"model": empty}, model="p/kept")).model == "p/kept"


async def test_a_model_may_be_given_as_it_came():
    config = await step({"model": ModelInfo("p/x", "p", "x")})
    assert (config.model, config.model_by) == ("p/x", "a")


async def test_a_step_whose_model_nobody_changed_names_no_processor():
    assert (await step({"tool_choice": "none"}, model="p/kept")).model_by is None


@pytest.mark.parametrize("model", [5, ["p/x"], " ", {"id": "p/x"}])
async def test_an_unsupported_model_is_an_error(model):
    """R-ER-3."""
    await fails(STEP, {"model": model}, MODEL)


async def test_messages_and_message_list_together_are_an_error():
    """R-ER-2."""
    await fails(STEP, lambda args: {"messages": args.messages, "message_list": args.message_list}, BOTH)


async def test_a_foreign_list_in_the_object_is_an_error():
    await fails(STEP, {"message_list": FOREIGN}, EXTERNAL)
    await fails(STEP, {"message_list": []}, EXTERNAL)


@pytest.mark.parametrize(
    "value",
    [{"messages": "hello"}, {"messages": {}}, {"system_messages": "hello"}, {"tools": ["calc"]},
     {"tools": {"calc": 5}}, {"active_tools": "calc"}, {"model_settings": 5}, {"structured_output": {}}],
)  # fmt: skip
async def test_a_value_that_does_not_fit_is_an_error_that_names_it(value):
    error = await fails(STEP, value, INVALID)
    if "messages" not in next(iter(value)):
        assert next(iter(value)) in str(error)


async def test_the_object_may_hold_messages_or_the_same_list():
    kit = kit_of(
        STEP, lambda args: {"messages": args.messages[1:]}, lambda args: {"message_list": args.message_list}
    )
    assert (await kit.input_step()).texts == ["new"]


async def test_settings_and_system_messages_hold_for_the_step_messages_for_the_run():
    """R-IS-8, R-IS-9, R-IS-10, R-SY-3."""

    def once(args):
        if args.step_number == 0:
            return {
                "model": "p/first", "messages": args.messages[1:],
                "system_messages": [{"role": "system", "content": "this step"}],
            }  # fmt: skip
        return None

    kit = kit_of(STEP, once, model="p/run")
    out = await kit.input_step()
    assert (out.config.model, out.texts) == ("p/first", ["new"])
    assert [m["content"] for m in out.system] == ["this step"]
    kit.answer("", tool_calls=[{"toolName": "x"}])
    out = await kit.input_step()
    assert (out.config.model, out.texts[:1]) == ("p/run", ["new"])
    assert [m["content"] for m in out.system] == ["Be kind."]


async def test_editing_the_settings_arguments_changes_nothing():
    def edit(args):
        args.model_settings["temperature"] = 2
        args.tools["evil"] = {"id": "evil"}
        args.provider_options["p"]["x"] = 2

    config = (await kit_of(STEP, edit).input_step(provider_options={"p": {"x": 1}})).config
    assert (config.model_settings, config.tools, config.provider_options) == ({}, {}, {"p": {"x": 1}})


async def test_steps_are_the_completed_ones_without_rejected_attempts():
    """R-SR-1, R-AB-32."""
    kit = kit_of(
        STEP,
        lambda args: args.state.update(numbers=[s["stepNumber"] for s in args.steps], n=args.step_number),
    )
    kit.answer("one", tool_calls=[{"toolName": "x"}])
    await kit.input_step()
    assert kit.state == {"numbers": [0], "n": 1}


@pytest.mark.parametrize("looks", [True, False])
async def test_steps_are_made_for_who_looks_at_them(looks):
    """A hook that has them may have spoilt them, so they are looked at once more before they travel."""
    ctx, seen = context(), list[Any]()
    ctx.steps = [{"text": "x", "stepNumber": 0}]

    def look(args: Any) -> None:
        seen.extend([args.steps, args.steps] if looks else [])

    await run_api_error(ctx, [link(*on("process_api_error", look))], calls(), NullWriter(), APIError("no"))
    assert ctx.steps_shown is looks
    assert seen == ([seen[0], seen[0]] if looks else [])
    assert all(each is seen[0] for each in seen)


# --- processLLMRequest, processLLMResponse ---------------------------------------------------

PROMPT = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
CHUNKS: Any = [{"type": "text-delta", "payload": {"id": "1", "text": "cached"}}]


async def request(*values):
    kit = kit_of("process_llm_request", *[v if callable(v) else lambda _args, v=v: v for v in values])
    return await kit.llm_request(), kit


async def test_the_prompt_is_that_of_the_conversation():
    out, _ = await request(None)
    assert [entry["role"] for entry in out.prompt] == ["system", "user", "user"]


@pytest.mark.parametrize("value", [None, {}, {"prompt": None}, {"other": 1}])
async def test_no_prompt_leaves_it_as_it_is(value):
    """R-RQ-3, R-RQ-6."""
    assert len((await request(value))[0].prompt) == 3


async def test_a_prompt_replaces_it_for_the_next_one_and_the_provider_only():
    """R-RQ-3, R-RQ-4."""
    out, kit = await request({"prompt": PROMPT}, lambda args: {"prompt": [*args.prompt, *PROMPT]})
    assert out.prompt == PROMPT * 2
    assert out.texts == ["old", "new"]
    assert len(kit.prompt()) == 3


async def test_editing_the_prompt_in_place_reaches_the_provider_and_nothing_else():
    out, kit = await request(lambda args: args.prompt[-1]["content"][0].update(text="edited"))
    assert out.prompt[-1]["content"][0]["text"] == "edited"
    assert kit.messages[-1]["content"]["parts"][0]["text"] == "new"


async def test_the_first_response_wins_and_all_are_asked():
    """R-RQ-5."""
    other: Any = {"response": {"chunks": []}}
    out, kit = await request(
        {"response": {"chunks": CHUNKS}, "prompt": PROMPT}, other, lambda args: args.state.update(x=1)
    )
    assert out.response == {"chunks": CHUNKS}
    assert out.prompt == PROMPT
    assert kit.context.state("c") == {"x": 1}


async def test_a_response_is_copied():
    ctx, value = context(), {"response": {"chunks": copy.deepcopy(CHUNKS)}}
    await run_llm_request(ctx, [link(processor(process_llm_request=lambda _args: value))], calls(), None)
    value["response"]["chunks"].clear()
    assert ctx.cached == {"chunks": CHUNKS}


async def test_a_cached_answer_may_tell_its_usage_in_the_providers_own_form_too():
    """R-US-1: `raw` is no count."""
    usage = {"inputTokens": 1, "raw": {"prompt_tokens": 1}}
    chunk = {"type": "finish", "payload": {"stepResult": {"reason": "stop"}, "output": {"usage": usage}}}
    ctx = context()
    links = [link(processor(process_llm_request=lambda _args: {"response": {"chunks": [chunk]}}))]
    await run_llm_request(ctx, links, calls(), None)
    assert ctx.cached == {"chunks": [chunk]}


@pytest.mark.parametrize(
    "value", [5, [PROMPT], "x", {"prompt": "x"}, {"prompt": {}}, {"response": []}, {"response": {}},
              {"response": {"chunks": [], "warnings": "w"}},
              {"response": {"chunks": [{"type": "response-metadata", "payload": {"providerMetadata": 5}}]}},
              {"response": {"chunks": "text"}}, {"response": {"chunks": [{"payload": {}}]}},
              {"response": {"chunks": [{"type": 5}]}}, {"response": {"chunks": [{"type": "reset", "payload": {}}]}},
              {"response": {"chunks": [{"type": "tool-call", "payload": {"toolName": "t"}}]}},
              {"response": {"chunks": [{"type": "text-delta", "payload": {"text": 5}}]}},
              *({"response": {"chunks": [{"type": "finish", "payload": said}]}}
                for said in ({"stepResult": {"reason": 5}}, {"output": {"usage": [1]}}, {"metadata": "x"},
                             {"metadata": {"providerMetadata": 5}},
                             {"output": {"usage": {"inputTokens": "1"}}}))]
)  # fmt: skip
async def test_a_wrong_request_value_is_an_error_and_counts(value):
    tally = calls()
    links = [link(processor(process_llm_request=lambda _args: value))]
    with pytest.raises(ProcessorError) as caught:
        await run_llm_request(context(), links, tally, None)
    assert caught.value.code == INVALID
    field = next(iter(value)) if isinstance(value, dict) else ""
    assert f"returned {f'`{field}` of type ' if field else ''}" in str(caught.value)
    assert tally.report(links[0], Hook.LLM_REQUEST).errors == 1


@pytest.mark.parametrize(
    "entry",
    [5, {}, {"role": "user", "content": 5}, {"role": "user", "content": [{"type": "text", "text": 5}]}],
)
@pytest.mark.parametrize("place", [True, False], ids=["in place", "returned"])
async def test_a_prompt_that_no_model_takes_is_refused_by_name(entry, place):
    def spoil(args):
        if place:
            args.prompt.append(entry)
            return None
        return {"prompt": [*args.prompt, entry]}

    with pytest.raises(ProcessorError, match=r"`prompt` .*each with a `role`") as caught:
        await kit_of("process_llm_request", spoil).llm_request()
    assert (caught.value.code, caught.value.hook) == (INVALID, "processLLMRequest")


CYCLE: dict[str, Any] = {}
CYCLE["x"] = CYCLE


@pytest.mark.parametrize(
    "settings", [{"provider_options": {"a": CYCLE}}, {"structured_output": {"schema": CYCLE}}], ids=str
)
async def test_settings_that_hold_themselves_are_refused_by_name(settings):
    with pytest.raises(
        ProcessorError, match="returned invalid settings: one of them contains itself"
    ) as caught:
        await kit_of("process_input_step", lambda _args: settings).input_step()
    assert (caught.value.code, caught.value.processor_id) == (INVALID, "a")


async def test_a_response_that_nests_too_deeply_is_refused_by_name():
    deep: list[Any] = []
    for _ in range(3000):
        deep = [deep]
    chunk = {**delta("x"), "metadata": deep}
    with pytest.raises(ProcessorError, match="nests too deeply") as caught:
        await kit_of("process_llm_request", lambda _args: {"response": {"chunks": [chunk]}}).llm_request()
    assert (caught.value.code, caught.value.processor_id) == (INVALID, "a")


async def test_a_request_gets_the_model_of_the_step():
    kit = kit_of(
        "process_llm_request", lambda args: args.state.update(model=args.model.model_id, n=args.step_number)
    )
    await kit.llm_request()
    assert kit.state == {"model": "model", "n": 0}


async def response(hook, **how):
    kit = kit_of("process_llm_response", hook)
    await kit.llm_response(["hello"], **how)
    return kit


async def test_a_response_hook_gets_the_stripped_chunks_and_the_current_step():
    """R-RS-2, R-RS-3, R-SR-2."""

    def look(args):
        args.state.update(
            types=[c["type"] for c in args.chunks], keys=sorted({k for c in args.chunks for k in c})
        )
        args.state.update(cache=args.from_cache, texts=[s["text"] for s in args.steps], model=args.model.id)

    kit = await response(look)
    types = ["step-start", "text-start", "text-delta", "text-end", "finish"]
    assert kit.state == {"types": types, "keys": ["payload", "type"], "cache": False, "texts": ["hello"],
                         "model": "test/model"}  # fmt: skip


async def test_a_response_hook_knows_a_replay():
    assert (await response(lambda args: args.state.update(x=args.from_cache), from_cache=True)).state == {
        "x": True
    }


@pytest.mark.parametrize("value", [None, [], "ignored", {"messages": []}, FOREIGN])
async def test_what_a_response_hook_returns_is_ignored(value):
    """R-RS-6."""
    assert (await response(lambda _args: value)).messages[-1]["content"]["parts"][0]["text"] == "hello"


async def test_editing_the_chunks_of_a_response_changes_nothing():
    kit = await response(lambda args: args.chunks.clear())
    assert kit.context.response is not None
    assert len(kit.context.response["chunks"]) == 5


@pytest.mark.parametrize("method", ["process_llm_response", "process_output_step"])
async def test_editing_what_else_is_told_of_a_response_changes_nothing(method):
    """Its `providerMetadata` is what the run's result has: of another type, nobody could read that."""

    def spoil(args):
        if method == "process_output_step":
            args.provider_metadata["openai"]["x"] = {1}
            return
        args.raw_response["providerMetadata"] = 5
        args.warnings.append({1})
        args.request["x"] = {1}

    kit = kit_of(method, spoil)
    kit.answer("hello")
    response = kit.context.response
    assert response is not None
    told = {"warnings": [], "request": {"body": 1}, "metadata": {"providerMetadata": {"openai": {}}}}
    response.update(copy.deepcopy(told))
    await (kit.llm_response() if method == "process_llm_response" else kit.output_step())
    assert {name: response[name] for name in told} == told


async def test_a_response_hook_sees_what_the_stream_hooks_left():
    """R-RS-3."""

    def only_text(args):
        return args.part if args.part["type"] == "text-delta" else None

    kit = ProcessorKit(processor("a", process_output_stream=only_text,
                                 process_llm_response=lambda args: args.state.update(n=len(args.chunks))))  # fmt: skip
    await kit.stream(["x", "y"])
    await kit.llm_response()
    assert kit.state == {"n": 2}


# --- processAPIError -------------------------------------------------------------------------


def told(kit, *names):
    return [name for name in names if kit.context.state(name).get("asked")]


def answers_error(value):
    def hook(args):
        args.state["asked"] = True
        if isinstance(value, Exception):
            raise value
        return value

    return hook


@pytest.mark.parametrize(
    ("values", "asked", "retry"),
    [
        ([None, {"retry": True}, {"retry": True}], "ab", True),
        ([{"retry": False}, None], "ab", False),
        ([ValueError("x"), {"retry": True}], "ab", True),
        ([ValueError("x")], "a", False),
        (["yes", {"retry": True}], "ab", True),
    ],
)  # fmt: skip
async def test_the_first_retry_decides(values, asked, retry):
    """R-AE-6, R-AE-7."""
    kit = kit_of("process_api_error", *map(answers_error, values))
    assert (await kit.api_error()).retry is retry
    assert "".join(told(kit, "a", "b", "c")) == asked
    assert kit.context.retry_count == int(retry)


@pytest.mark.parametrize("value", [True, "yes", ["retry"]])
async def test_an_error_processor_that_answers_wrongly_is_counted_and_logged(value):
    lines: list[str] = []
    kit = kit_of("process_api_error", answers_error(value), environment=environment(log=lines.append))
    out = await kit.api_error()
    assert not out.retry
    [line] = lines
    assert "processAPIError" in line
    assert "PROCESSOR_RETURNED_INVALID_VALUE" in line


@pytest.mark.parametrize("on_error", ["fail", "skip", None])
async def test_an_error_processor_that_fails_has_no_remedy_whatever_a_failure_does_elsewhere(on_error):
    async def forever(_args):
        await asyncio.Event().wait()

    for hook, timeout in ((answers_error(ValueError("x")), None), (forever, 0.01)):
        kit = kit_of(
            "process_api_error", hook, answers_error({"retry": True}), on_error=on_error, timeout=timeout
        )
        assert (await kit.api_error()).retry


async def test_an_error_hook_gets_the_error_and_the_live_conversation():
    def trim(args):
        args.state["error"] = [args.error.message, args.error.status_code, args.error.is_retryable]
        args.message_list.remove_by_ids([args.messages[0]["id"]])
        return {"retry": True}

    kit = kit_of("process_api_error", trim)
    out = await kit.api_error("too long", status_code=400, is_retryable=False)
    assert kit.state["error"] == ["too long", 400, False]
    assert out.texts == ["new"]


async def test_an_abort_of_an_error_hook_is_a_tripwire():
    """D-32."""
    out = await kit_of("process_api_error", lambda args: args.abort("enough")).api_error()
    assert (out.blocked.reason, out.retry) == ("enough", False)


async def test_partial_output_is_there_for_the_hook_and_gone_after_a_retry():
    """R-AE-12."""
    kit = kit_of("process_api_error", lambda args: args.state.update(n=len(args.messages)) or {"retry": True})
    kit.answer("half an ans")
    out = await kit.api_error()
    assert kit.state == {"n": 3}
    assert out.texts == ["old", "new"]


async def test_a_failure_of_a_guardrail_in_the_stream_is_not_taken_for_the_error_hooks():
    async def writes(args):
        await args.writer.custom({"type": "data-x", "data": 1})
        return {"retry": True}

    def broken(_args):
        raise ValueError("x")

    guard = processor("guard", process_output_stream=broken, process_data_parts=True, on_error="fail")
    kit = ProcessorKit(processor("a", process_api_error=writes), then=[guard])
    with pytest.raises(ProcessorError) as caught:
        await kit.api_error()
    assert caught.value.processor_id == "guard"


# --- processOutputStep -----------------------------------------------------------------------


async def test_an_empty_list_changes_nothing():
    """A-5, R-ST-6."""
    for method in (JUDGE, "process_tool_result"):
        out = await drive(kit_of(method, lambda _args: []), method)
        assert len(out.messages) == 3


async def test_a_judge_gets_the_facts_of_the_attempt():
    """R-ST-2."""
    calls = [{"toolName": "x", "toolCallId": "c1", "args": {"q": 1}}]

    def look(args):
        args.state.update(text=args.text, calls=args.tool_calls, reason=args.finish_reason, usage=args.usage,
                          steps=[s["text"] for s in args.steps], system=len(args.system_messages),
                          said=[text_of(m) for m in args.messages])  # fmt: skip

    kit = kit_of(JUDGE, look)
    await kit.output_step("hello", tool_calls=calls)
    assert kit.state == {"text": "hello", "calls": calls, "reason": "tool-calls", "usage": USAGE, "steps": ["hello"],
                         "system": 1, "said": ["old", "new", "hello"]}  # fmt: skip


async def test_without_tool_calls_there_are_none():
    kit = kit_of(JUDGE, lambda args: args.state.update(calls=args.tool_calls))
    await kit.output_step("hello")
    assert kit.state == {"calls": None}


async def test_the_facts_stay_when_a_processor_edits_the_message():
    """R-ST-3, R-ST-5."""

    def edit(args):
        args.messages[-1]["content"]["parts"][0]["text"] = "edited"

    kit = kit_of(JUDGE, edit, lambda args: args.state.update(text=args.text, said=text_of(args.messages[-1])))
    await kit.output_step("original")
    assert kit.context.state("b") == {"text": "original", "said": "edited"}


async def test_a_rejected_attempt_is_taken_back_and_tried_again_with_its_reason():
    """R-AB-28, R-AB-29, R-AB-30, R-AB-32."""

    def judge(args):
        args.state.setdefault("seen", []).append([args.step_number, args.retry_count, len(args.steps)])
        if "bad" in args.text:
            args.abort(f"{args.text} is wrong", retry=True)

    kit = kit_of(JUDGE, judge)
    for answer in ("bad one", "bad two"):
        out = await kit.output_step(answer)
        assert out.blocked.retry
        assert out.texts == ["old", "new"]
    system = [e["content"] for e in kit.prompt() if e["role"] == "system"]
    assert system[0] == "Be kind."
    assert ["bad one is wrong" in system[1], "bad two is wrong" in system[2]] == [True, True]
    await kit.output_step("good", tool_calls=[{"toolName": "x"}])
    assert len([e for e in kit.prompt() if e["role"] == "system"]) == 1
    await kit.output_step("fine")
    assert kit.state["seen"] == [[0, 0, 1], [0, 1, 1], [0, 2, 1], [1, 2, 2]]


# --- edits in place --------------------------------------------------------------------------

TOOL, REQUEST, ERROR = "process_tool_result", "process_llm_request", "process_api_error"


@pytest.mark.parametrize("method", [INPUT, STEP, JUDGE, RESULT, TOOL, REQUEST, ERROR])
@pytest.mark.parametrize("ends", ["well", "raises", "aborts"])
async def test_a_message_that_nobody_can_read_ends_the_run_at_once(method, ends):
    """R-AR-6: whoever reads it would fail, five times over; saved with its thread, in each run to come."""

    def spoil(args):
        args.message_list.get.all.db()[0]["content"] = "a text"
        if ends == "raises":
            raise LookupError
        if ends == "aborts":
            args.abort("no")

    kit = kit_of(method, spoil)
    if ends == "aborts":
        assert (await drive(kit, method)).blocked.reason == "no"
        return
    with pytest.raises(ProcessorError) as caught:
        await drive(kit, method)
    if ends == "raises" and method != ERROR:
        assert caught.value.name == "LookupError"
    else:
        assert (caught.value.code, caught.value.processor_id) == (UNREADABLE, "a")
        assert "left a message that cannot be read: messages.0.content" in str(caught.value)
    assert [text_of(message) for message in kit.messages[:1]] == ["new"]


# --- processToolResult -----------------------------------------------------------------------


def rewritten(args, result):
    call = {"state": "result", "toolCallId": args.tool_call_id, "result": result}
    args.message_list.update_tool_invocation({"type": "tool-invocation", "toolInvocation": call})


async def test_each_tool_result_hook_sees_what_the_one_before_made_of_it():
    """D-34, R-TR-2."""
    kit = kit_of("process_tool_result", lambda args: rewritten(args, [args.result, 1]),
                 lambda args: rewritten(args, [args.result, 2]))  # fmt: skip
    out = await kit.tool_result("lookup", "raw")
    assert out.result == [["raw", 1], 2]
    [part] = out.messages[-1]["content"]["parts"]
    assert part["toolInvocation"]["result"] == [["raw", 1], 2]


@pytest.mark.parametrize("how", ["returned", "updated"])
async def test_a_result_that_is_written_into_the_open_call_counts(how):
    """A masked secret that went nowhere would reach the model, though its processor has done its work."""

    def mask(args):
        if how == "updated":
            call = {"toolCallId": args.tool_call_id, "result": "masked"}
            args.message_list.update_tool_invocation({"type": "tool-invocation", "toolInvocation": call})
            return None
        answer = copy.deepcopy(args.messages[-1])
        answer["content"]["parts"][-1]["toolInvocation"]["result"] = "masked"
        return [*args.messages[:-1], answer]

    out = await kit_of("process_tool_result", mask).tool_result("lookup", "secret")
    assert out.result == "masked"
    assert "secret" not in str(out.messages)


@pytest.mark.parametrize(
    ("made", "outcome"),
    [
        (
            {"state": "output-error", "errorText": "not for you"},
            {"error": {"name": "Error", "message": "not for you"}},
        ),
        (
            {"state": "output-denied", "approval": {"approved": False, "reason": "not for you"}},
            {
                "denied": {
                    "reason": "not for you",
                    "approval": {"approved": False, "reason": "not for you"},
                }
            },
        ),
    ],
    ids=["failed", "denied"],
)
async def test_a_result_that_a_hook_makes_a_failure_of_is_none_any_more(made, outcome):
    """R-TR-2: the client would get what the conversation does not have. R-TR-1: the next one is not asked about it."""

    def hide(args):
        call = {"toolCallId": args.tool_call_id, **made}
        args.message_list.update_tool_invocation({"type": "tool-invocation", "toolInvocation": call})

    kit = kit_of("process_tool_result", hide, lambda args: rewritten(args, "seen"))
    out = await kit.tool_result("lookup", "secret")
    assert kit.context.outcomes == [{"toolCallId": "call-1", "toolName": "lookup", "args": {}, **outcome}]
    assert out.result is None
    [part] = out.messages[-1]["content"]["parts"]
    assert part["toolInvocation"] == {"toolCallId": "call-1", "toolName": "lookup", "args": {}, **made}


async def test_a_tool_result_hook_gets_the_call_and_the_step_whose_tool_ran():
    """D-33."""

    def look(args):
        args.state.update(name=args.tool_name, id=args.tool_call_id, args=args.args, result=args.result,
                          n=args.step_number, provider=args.provider_executed)  # fmt: skip

    kit = kit_of("process_tool_result", look)
    await kit.tool_result("lookup", {"hits": 3}, args={"q": "x"})
    assert kit.state == {"name": "lookup", "id": "call-1", "args": {"q": "x"}, "result": {"hits": 3}, "n": 0,
                         "provider": False}  # fmt: skip


async def test_a_tool_result_hook_reads_the_system_messages_of_its_step():
    """Mastra's `systemMessages`: for a guard that looks for the prompt in what a tool gave."""
    kit = kit_of("process_tool_result", lambda args: args.state.update(told=args.system_messages))
    await kit.tool_result("lookup", "Be kind.")
    assert kit.state == {"told": [{"role": "system", "content": "Be kind."}]}


async def test_an_error_hook_knows_the_message_that_the_answer_will_be():
    kit = kit_of("process_api_error", lambda args: args.state.update(id=args.message_id))
    await kit.api_error()
    assert kit.state == {"id": kit.context.message_id}


async def test_editing_the_arguments_of_a_tool_result_hook_changes_nothing():
    out = await kit_of("process_tool_result", lambda args: args.result.clear()).tool_result(
        "lookup", {"hits": 3}
    )
    assert out.result == {"hits": 3}


async def test_a_retry_asked_of_a_tool_result_takes_the_step_back():
    """D-31."""
    out = await kit_of("process_tool_result", lambda args: args.abort("again", retry=True)).tool_result(
        "x", 1
    )
    assert out.blocked.retry
    assert out.texts == ["old", "new"]


# --- processOutputResult ---------------------------------------------------------------------


async def test_the_result_hook_gets_what_the_run_made():
    """R-AR-8, core.md 7.7."""

    def look(args):
        result = args.result
        args.state.update(said=[text_of(m) for m in args.messages], text=result.text, reason=result.finish_reason,
                          usage=result.usage, steps=[s["text"] for s in result.steps])  # fmt: skip

    kit = kit_of(RESULT, look)
    kit.answer("one ", tool_calls=[{"toolName": "x"}])
    await kit.output_result("two")
    doubled = {name: 2 * (count or 0) for name, count in USAGE.items()}
    assert kit.state == {"said": ["one two"], "text": "one two", "reason": "stop", "usage": doubled,
                         "steps": ["one ", "two"]}  # fmt: skip


async def test_usage_that_nobody_reported_is_zero_in_the_result():
    """Core.md 7.7."""
    kit = kit_of(RESULT, lambda args: args.state.update(usage=args.result.usage))
    kit.answer("one")
    kit.context.usage = {"inputTokens": 3, "outputTokens": None}
    await kit.output_result()
    assert kit.state["usage"] == {"inputTokens": 3, "outputTokens": 0, "totalTokens": 0}


async def test_the_result_leaves_rejected_text_out():
    """A-26."""
    hooks: Any = {
        JUDGE: lambda args: args.abort("x", retry=True),
        RESULT: lambda args: args.state.update(text=args.result.text),
    }
    kit = ProcessorKit(processor("a", **hooks))
    await kit.output_step("rejected")
    await kit.output_result("accepted")
    assert kit.state == {"text": "accepted"}


async def test_the_result_is_a_snapshot():
    """R-OR-4."""

    def edit(args):
        args.messages[0]["content"]["parts"][0]["text"] = "edited"
        args.result.steps.clear()
        args.result.usage.clear()

    def look(args):
        result = args.result
        args.state.update(
            text=result.text, said=text_of(args.messages[0]), n=len(result.steps), usage=result.usage
        )

    kit = kit_of(RESULT, edit, look)
    out = await kit.output_result("original")
    assert kit.context.state("b") == {"text": "original", "said": "edited", "n": 1, "usage": USAGE}
    assert kit.context.usage == USAGE
    assert len(kit.context.steps) == 1
    assert out.texts[-1] == "edited"


async def test_an_empty_list_deletes_the_answer_and_nothing_else():
    """R-OR-3, R-RC-4."""
    assert (await kit_of(RESULT, lambda _args: []).output_result("answer")).texts == ["old", "new"]


async def test_what_the_result_hook_writes_is_kept_with_the_answer():
    """D-35."""

    async def write(args):
        await args.writer.custom({"type": "data-report", "data": 1})
        await args.writer.custom({"type": "data-hint", "data": 2, "transient": True})

    out = await kit_of(RESULT, write).output_result("answer")
    assert [chunk["type"] for chunk in out.written] == ["data-report", "data-hint"]
    assert [part["type"] for part in out.messages[-1]["content"]["parts"]] == ["text", "data-report"]


# --- state, contexts, writers ----------------------------------------------------------------

EVERY_HOOK = ["process_input", "process_input_step", "process_llm_request", "process_llm_response",
              "process_api_error", "process_output_step", "process_tool_result", "process_output_result"]  # fmt: skip


def counting(args):
    args.state["hooks"] = args.state.get("hooks", 0) + 1


def counting_stream(args):
    counting(args)
    return args.part


async def whole_run(kit):
    kit.message_list.add("question", "input")
    await kit.input()
    await kit.input_step()
    await kit.llm_request()
    await kit.api_error()
    await kit.stream([{"type": "text-delta", "payload": {"id": "1", "text": "x"}}])
    await kit.llm_response()
    await kit.output_step()
    await kit.tool_result("lookup", 1)
    await kit.output_result()


async def test_one_state_for_all_hooks_of_a_processor():
    """R-SS-1, R-SS-3, R-SS-4, R-SS-6."""
    kit = ProcessorKit(
        processor(process_output_stream=counting_stream, **dict.fromkeys(EVERY_HOOK, counting))
    )
    await whole_run(kit)
    assert kit.state == {"hooks": 9}


async def test_states_do_not_mix_and_a_new_run_has_a_new_one():
    """R-SS-2, R-SS-7."""
    made = processor("a", process_input=counting).build()
    other = processor("b", process_input=lambda args: args.state.update(mine=len(args.state)))
    for _ in range(2):
        kit = ProcessorKit(made, then=[other])
        await kit.input("x")
        assert kit.context.states == {"a": {"hooks": 1}, "b": {"mine": 0}}


async def test_two_processors_with_one_id_share_a_state():
    """R-PR-6."""
    kit = ProcessorKit(
        processor("same", process_input=counting), then=[processor("same", process_input=counting)]
    )
    await kit.input("x")
    assert kit.state == {"hooks": 2}


async def test_state_survives_a_retry():
    """R-SS-5."""

    def judge(args):
        counting(args)
        if args.retry_count == 0:
            args.abort("again", retry=True)

    kit = ProcessorKit(processor(process_output_step=judge))
    await kit.output_step("x")
    await kit.output_step("y")
    assert kit.state == {"hooks": 2}


async def test_the_request_context_is_shared_and_always_there():
    """R-RX-1, R-RX-3, R-AR-3."""

    def use(args):
        args.request_context.set("n", args.request_context.get("n", 0) + 1)
        args.request_context.delete("secret")

    kit = ProcessorKit(
        processor("a", process_input=use, process_output_step=use), request_context={"secret": 1}
    )
    await kit.input("x")
    await kit.output_step("y")
    assert kit.request_context == {"n": 2}
    assert kit.request_context.has("n")


@pytest.mark.parametrize("hook", sorted({*EVERY_HOOK} - {"process_input"}))
async def test_every_hook_in_the_loop_has_a_writer(hook):
    """R-WR-1."""

    async def write(args):
        await args.writer.custom({"type": "data-x", "data": args.run_id})

    kit = ProcessorKit(processor(**{hook: write}))
    run = {"process_llm_request": kit.llm_request, "process_llm_response": lambda: kit.llm_response(["x"]),
           "process_api_error": kit.api_error}  # fmt: skip
    out = await (run[hook]() if hook in run else drive(kit, hook))
    assert out.written == [{"type": "data-x", "data": "run-1"}]


async def test_input_has_no_writer():
    """R-WR-10."""
    kit = ProcessorKit(processor(process_input=lambda args: args.state.update(has=hasattr(args, "writer"))))
    await kit.input("x")
    assert kit.state == {"has": False}


async def test_what_hooks_outside_the_stream_write_goes_through_the_stream_hooks_that_asked():
    """R-WR-7: but not what the hooks of tool results and of the result write."""

    async def write(args):
        await args.writer.custom({"type": "data-x", "data": 1})

    drop = processor("drop", process_output_stream=lambda _args: None, process_data_parts=True)
    for hook, written in ((STEP, 0), (JUDGE, 0), ("process_tool_result", 1), (RESULT, 1)):
        kit = ProcessorKit(processor(**{hook: write}), then=[drop])
        assert len((await drive(kit, hook)).written) == written, hook


def test_who_listens_to_an_abort_signal_may_forget_it():
    signal, told = AbortSignal(), []

    def first():
        told.append("first")
        signal.forget(second)

    def second():
        told.append("second")

    def gone():
        told.append("gone")

    for listener in (first, second, gone):
        signal.on_abort(listener)
    signal.forget(gone)
    signal.forget(gone)
    signal.abort()
    assert told == ["first", "second"]


def test_a_listener_that_fails_keeps_no_other_from_hearing_of_a_cancelled_run(caplog):
    signal, told = AbortSignal(), []

    def broken():
        raise OSError("closed")

    signal.on_abort(broken)
    signal.on_abort(lambda: told.append("next"))
    signal.abort()
    assert told == ["next"]
    assert [record.exc_info[0] for record in caplog.records] == [OSError]


async def test_the_abort_signal_tells_of_a_cancelled_run():
    kit = ProcessorKit(
        processor(process_input_step=lambda args: args.state.update(cut=args.abort_signal.aborted))
    )
    await kit.input_step()
    assert kit.state == {"cut": False}
    kit.calls.abort_signal.abort()
    await kit.input_step()
    assert kit.state == {"cut": True}
