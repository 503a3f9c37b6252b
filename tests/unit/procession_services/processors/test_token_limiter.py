import pytest

from procession.errors import InvalidOptionsError
from procession.testing import ProcessorKit
from procession_services.processors.core import token_counter
from procession_services.processors.core.token_counter import load
from procession_services.processors.token_limiter import TokenLimiter

LONG = " ".join(f"word{i}" for i in range(60))
GPT = "openai/gpt-4o"


def user(text):
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def asks(call_id, text="x"):
    return {
        "role": "assistant",
        "content": [{"type": "tool-call", "toolCallId": call_id, "toolName": "search", "input": text}],
    }


def answers(call_id, text):
    output = {"type": "text", "value": text}
    return {
        "role": "tool",
        "content": [{"type": "tool-result", "toolCallId": call_id, "toolName": "search", "output": output}],
    }


async def kept(prompt, **options):
    outcome = await ProcessorKit(TokenLimiter, options).llm_request(prompt)
    return outcome.tripwire or [prompt.index(entry) for entry in outcome.prompt]


# --- prompts -------------------------------------------------------------------------------------


async def test_a_prompt_is_trimmed_and_the_conversation_is_not():
    kit = ProcessorKit(TokenLimiter, {"limit": 60})
    kit.message_list.add(
        [{"role": "user", "content": LONG}, {"role": "assistant", "content": "ok"}], "memory"
    )
    kit.message_list.add("hello", "input")
    outcome = await kit.llm_request()
    assert LONG not in str(outcome.prompt)
    assert LONG in str(kit.messages)


async def test_the_newest_user_message_is_never_dropped_for_an_older_one():
    tripwire = await kept([user("short"), user(LONG)], limit=60)
    assert "newest user message" in tripwire.reason
    assert not tripwire.retry
    told = {"systemTokens": 0, "limit": 60, "remainingBudget": 36, "messageCount": 2}
    assert tripwire.metadata == told


async def test_the_results_that_the_model_is_about_to_read_are_never_dropped():
    prompt = [user("old"), user("q"), asks("a"), answers("a", LONG), asks("b"), answers("b", "b " * 30)]
    assert await kept(prompt, limit=90) == [0, 1, 4, 5]
    tripwire = await kept(prompt, limit=50)
    assert "tool results" in tripwire.reason


@pytest.mark.parametrize("mode", ["best-fit", "contiguous"])
async def test_a_call_is_never_parted_from_its_result_wherever_that_stands(mode):
    prompt = [asks("a"), user("one"), answers("a", LONG), user("two")]
    assert await kept(prompt, limit=70, trimMode=mode) == ([1, 3] if mode == "best-fit" else [3])


async def test_system_messages_stay_and_may_use_up_the_limit():
    prompt = [{"role": "system", "content": LONG}, user("hi")]
    tripwire = await kept(prompt, limit=60)
    assert tripwire.metadata.keys() == {"systemTokens", "limit"}
    assert await kept(prompt, limit=200) == [0, 1]


async def test_a_limit_that_leaves_no_room_for_any_message_says_what_takes_it():
    tripwire = await kept([user("hi")], limit=20)
    assert "System messages (0 tokens) and what frames a conversation (24) use up" in tripwire.reason


async def test_a_prompt_without_messages_trips_without_metadata():
    tripwire = await kept([{"role": "system", "content": "x"}], limit=100)
    assert tripwire.metadata is None


# --- counting ------------------------------------------------------------------------------------


async def test_the_vocabulary_of_the_model_counts_where_it_is_known():
    prompt = [user("internationalization " * 20), user("hi")]
    exact = load("o200k_base").count("internationalization " * 20)
    limit = 24 + 2 * (1 + 3.8) + exact + 1
    for model, both in {"test/model": False, GPT: True}.items():
        outcome = await ProcessorKit(TokenLimiter, {"limit": limit}, model=model).llm_request(prompt)
        assert (len(outcome.prompt) == 2) == both
    outcome = await ProcessorKit(
        TokenLimiter, {"limit": limit, "encoding": "estimate"}, model=GPT
    ).llm_request(prompt)
    assert len(outcome.prompt) == 1


async def test_a_named_vocabulary_counts_for_every_model():
    text = "ひらがなです" * 3
    for encoding in ("o200k_base", "cl100k_base"):
        kit = ProcessorKit(TokenLimiter, {"limit": 5, "encoding": encoding})
        outcome = await kit.output_result(text)
        assert outcome.messages[-1]["content"]["parts"][-1]["text"] == load(encoding).first(text, 5) != text


async def test_without_the_library_tokens_are_estimated_and_a_named_vocabulary_is_refused(monkeypatch):
    token_counter.is_installed.cache_clear()
    monkeypatch.setattr(token_counter, "_LIBRARY", "no_such_library")
    try:
        outcome = await ProcessorKit(TokenLimiter, {"limit": 2}, model=GPT).output_result(
            "internationalization"
        )
        assert outcome.messages[-1]["content"]["parts"][-1]["text"] == "internatio"
        with pytest.raises(InvalidOptionsError, match=r"install procession\[tokens\]"):
            TokenLimiter.build({"limit": 2, "encoding": "o200k_base"})
    finally:
        token_counter.is_installed.cache_clear()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
async def test_a_vocabulary_counts_a_stream_the_same_however_it_is_cut(size):
    text = "Internationalization of tokenizers isn't straightforward, naïvely: 你好 😀! " * 3
    chunks = [text[i : i + size] for i in range(0, len(text), size)]
    exact = load("o200k_base").count(text)
    whole = await ProcessorKit(TokenLimiter, {"limit": exact}, model=GPT).stream(chunks)
    assert whole.text == text
    kit = ProcessorKit(TokenLimiter, {"limit": exact - 1}, model=GPT)
    cut = await kit.stream(chunks)
    assert text.startswith(cut.text)
    assert len(text) - len(cut.text) <= max(size, 2)
    assert kit.written[0]["data"]["tokens"] == exact


# --- streams and answers --------------------------------------------------------------------------


async def test_chunks_over_the_limit_go_the_rest_passes_and_the_client_is_told_once():
    kit = ProcessorKit(TokenLimiter, {"limit": 2})
    outcome = await kit.stream(["one ", "two ", "three ", "four"], tool_calls=[{"toolName": "t"}])
    assert outcome.text == "one two "
    assert [call["toolName"] for call in outcome.tool_calls] == ["t"]
    (told,) = kit.written
    assert told == {
        "type": "data-token-limit-reached",
        "data": {"processorId": "token-limiter", "limit": 2, "tokens": 3},
        "transient": True,
    }
    assert [violation.processor_id for violation in kit.violations] == ["token-limiter"]


async def test_abort_ends_the_stream():
    outcome = await ProcessorKit(TokenLimiter, {"limit": 2, "strategy": "abort"}).stream(
        ["one ", "two ", "three"]
    )
    assert outcome.tripwire is not None
    assert {"2", "3"} <= set(outcome.tripwire.reason)
    assert outcome.text == "one two "


async def test_the_final_messages_are_cut_with_their_flat_copy():
    kit = ProcessorKit(TokenLimiter, {"limit": 2})
    kit.answer("one two three")
    kit.messages[-1]["content"]["content"] = "one two three"
    outcome = await kit.output_result()
    assert "three" not in str(outcome.messages)
    assert [violation.message for violation in kit.violations]


async def test_a_later_text_gets_what_an_earlier_one_has_left_of_the_limit():
    """R-TOKLIM-15: what was cut counts as much as is left of it."""
    kit = ProcessorKit(TokenLimiter, {"limit": 3})
    kit.answer("a" * 25 + "ñ")
    kit.messages[-1]["content"]["parts"].append({"type": "text", "text": "two"})
    outcome = await kit.output_result()
    texts = [part["text"] for part in outcome.messages[-1]["content"]["parts"] if part["type"] == "text"]
    assert texts == ["a" * 9, "two"]


async def test_an_answer_that_fits_stays_as_it_is():
    kit = ProcessorKit(TokenLimiter, {"limit": 9})
    outcome = await kit.output_result("one two three")
    assert outcome.messages[-1]["content"]["parts"][-1]["text"] == "one two three"
    assert not kit.violations


# --- memory-only -----------------------------------------------------------------------------------


def remembered(kit, *messages):
    kit.message_list.add(
        [{"createdAt": f"2026-01-01T00:00:0{i}.000Z", **m} for i, m in enumerate(messages)], "memory"
    )


async def test_memory_only_removes_recalled_groups_and_tells_before():
    told = []

    class Telling(TokenLimiter):
        async def on_memory_trim(self, messages, request_context):
            told.append(([m["id"] for m in messages], len(kit.messages), request_context["who"]))

    kit = ProcessorKit(Telling, {"limit": 100, "trimMode": "memory-only"}, request_context={"who": "me"})
    call = {"toolCallId": "c", "toolName": "t", "args": {}}
    called = {"type": "tool-invocation", "toolInvocation": {**call, "state": "call"}}
    done = {"type": "tool-invocation", "toolInvocation": {**call, "state": "result", "result": LONG}}
    remembered(
        kit,
        {"id": "h1", "role": "assistant", "content": {"format": 2, "parts": [called]}},
        {"id": "h2", "role": "user", "content": "kept"},
        {"id": "h3", "role": "assistant", "content": {"format": 2, "parts": [done]}},
    )
    outcome = await kit.input({"id": "q", "role": "user", "content": "hello"})
    assert [m["id"] for m in outcome.messages] == ["h2", "q"]
    assert told == [(["h1", "h3"], 4, "me")]


async def test_memory_only_removes_only_as_much_as_it_must_where_calls_have_one_id():
    call = {"toolCallId": "c", "toolName": "t", "args": {}, "state": "result", "result": LONG}
    answer = {"format": 2, "parts": [{"type": "tool-invocation", "toolInvocation": call}]}
    options = {"limit": 100, "trimMode": "memory-only", "atMaxRemoveTokens": 0}
    kit = ProcessorKit(TokenLimiter, options)
    remembered(kit, *({"id": f"h{n}", "role": "assistant", "content": answer} for n in range(3)))
    outcome = await kit.input({"id": "q", "role": "user", "content": "hello"})
    assert [m["id"] for m in outcome.messages] == ["h2", "q"]


async def test_memory_only_never_removes_what_is_of_this_request_and_never_trips():
    kit = ProcessorKit(TokenLimiter, {"limit": 30, "trimMode": "memory-only"})
    outcome = await kit.input(LONG)
    assert (outcome.tripwire, len(outcome.messages)) == (None, 1)


async def test_memory_only_counts_with_the_subclass_and_has_no_other_hooks():
    """R-TOKLIM-10: system messages are no stored ones, and have no parts that a subclass could read."""

    class Ten(TokenLimiter):
        def count_message(self, message, counter=None):
            return 10 if message["content"]["parts"] else 0

    kit = ProcessorKit(Ten, {"limit": 50, "trimMode": "memory-only", "atMaxRemoveTokens": 0})
    remembered(kit, *({"id": f"h{i}", "role": "user", "content": "x"} for i in range(3)))
    kit.message_list.add_system("be")
    outcome = await kit.input("q")
    assert len(outcome.messages) == 2
    with pytest.raises(ValueError, match="no process_output_stream"):
        await kit.stream(["x"])


@pytest.mark.parametrize(
    "more", [{"atMaxRemoveTokens": -1}, {"atMaxRemoveTokens": 51}, {"limit": float("inf")}]
)
def test_memory_only_refuses_what_makes_no_sense(more):
    with pytest.raises(InvalidOptionsError, match="memory-only"):
        TokenLimiter.build({"limit": 50, "trimMode": "memory-only", **more})


@pytest.mark.parametrize("trim", ["best-fit", "contiguous", "memory-only"])
@pytest.mark.parametrize("limit", [-1, float("nan")])
def test_a_limit_below_none_is_refused(limit, trim):
    with pytest.raises(InvalidOptionsError, match="limit: Input should be greater than or equal to 0"):
        TokenLimiter.build({"limit": limit, "trimMode": trim})


def test_the_limit_is_needed():
    with pytest.raises(InvalidOptionsError, match="limit"):
        TokenLimiter.build({})
