"""Runs that go on after a provider failed, and runs that do not ask it at all."""

import asyncio

import pytest

from tests.support.system import finished, text_of
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

HELLO = {"chunks": ["Hel", "lo ", "you"]}
BROKEN = {"chunks": ["Hel", "lx"], "mid_error": {"kind": "event", "message": "the server had an error"}}
PREFILL = "This model does not support assistant message prefill."
BAD_IDS = "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
CACHE = {"inputProcessors": [{"id": "mastra/response-cache", "options": {"ttl": 60}}]}


def retrying(**options):
    return {"errorProcessors": [{"id": "stream-error-retry-processor", "options": options}]}


class TestStreamErrors:
    @pytest.mark.parametrize("kind", ["event", "drop"])
    async def test_an_answer_that_broke_in_the_middle_is_made_again(self, system, kind):
        broken = {**BROKEN, "mid_error": {"kind": kind}}
        model = system.script(broken, HELLO)
        result, chunks = await system.run(agent={"model": model, **retrying()})
        assert (result.status, result.text, result.retries) == ("finished", "Hello you", 1)
        assert text_of(chunks) == "HellxHello you"  # what was shown was shown; the rejected step is marked
        reasons = [c["payload"]["stepResult"]["reason"] for c in chunks if c["type"] == "step-finish"]
        assert reasons == ["retry", "stop"]
        assert not any(chunk["type"] == "error" for chunk in chunks)
        assert "Hellx" not in str(system.requests(model)[1]["messages"])

    @pytest.mark.parametrize(
        "ended", [{"chunks": ["Hel", "lx"], "finish_reason": "error"}, {"finish_reason": "other"}]
    )
    @pytest.mark.parametrize("chain", [[], ["upper"]])
    async def test_an_answer_that_ended_without_a_word_of_why_is_made_again(self, system, ended, chain):
        model = system.script(ended, HELLO)
        agent = {"model": model, "outputProcessors": chain, "errorProcessors": ["retry"]}
        result, chunks = await system.run(agent=agent)
        assert (result.status, result.text.lower(), result.retries) == ("finished", "hello you", 1)
        reasons = [c["payload"]["stepResult"]["reason"] for c in chunks if c["type"] == "step-finish"]
        assert reasons == ["retry", "stop"]

    @pytest.mark.parametrize("chain", [[], ["upper"]])
    async def test_it_ends_the_run_where_nobody_has_it_made_again(self, system, chain):
        model = system.script({"chunks": ["Hel", "lx"], "finish_reason": "error"})
        result, chunks = await system.run(agent={"model": model, "outputProcessors": chain})
        assert (result.status, result.finish_reason, result.error.code) == ("failed", "error", "MODEL_FAILED")
        assert (
            result.error.message == "the answer ended with finish reason 'error', but no error was reported"
        )
        assert [chunk["type"] for chunk in chunks].count("error") == 1
        assert result.usage["inputTokens"]

    @pytest.mark.parametrize(
        ("options", "status"), [({"retryUnknownErrors": True}, "finished"), ({}, "failed")]
    )
    async def test_it_does_not_count_as_an_error_that_passes_by_itself(self, system, options, status):
        model = system.script({"finish_reason": "other"}, HELLO)
        result, _ = await system.run(agent={"model": model, **retrying(**options)})
        assert result.status == status

    async def test_it_is_made_again_no_more_often_than_the_processor_says(self, system):
        model = system.script(BROKEN)
        result, chunks = await system.run(agent={"model": model, **retrying(maxRetries=2)})
        assert (result.status, result.error.code, result.retries) == ("failed", "MODEL_FAILED", 2)
        assert len(system.requests(model)) == 3
        assert [chunk["type"] for chunk in chunks].count("error") == 1

    async def test_no_more_often_than_the_run_may(self, system):
        model = system.script(BROKEN)
        agent = {"model": model, "maxProcessorRetries": 1, **retrying(maxRetries=5)}
        result, _ = await system.run(agent=agent)
        assert (result.status, result.retries, len(system.requests(model))) == ("failed", 1, 2)

    async def test_a_refusal_is_not_repeated(self, system):
        model = system.script({"error": {"status": 400, "message": "no"}}, HELLO)
        result, _ = await system.run(agent={"model": model, **retrying()})
        assert (result.status, result.error.message, len(system.requests(model))) == ("failed", "no", 1)

    async def test_the_provider_says_how_long_to_wait(self, system):
        busy = {"error": {"status": 503, "headers": {"retry-after-ms": "200"}}}
        model = system.script(busy, HELLO)
        result, _ = await system.run(agent={"model": model, **retrying()})
        assert (result.status, len(system.requests(model))) == ("finished", 2)
        (report,) = [each for each in result.processors if each.hook == "processAPIError"]
        assert report.micros >= 200_000

    async def test_a_cancelled_run_does_not_wait(self, system):
        slow = system.script({"error": {"status": 503, "headers": {"retry-after-ms": "60000"}}}, HELLO)
        handle = await system.start(agent={"model": slow, **retrying()})
        async with asyncio.timeout(10):
            await until(lambda: system.requests(slow))
            await handle.cancel()
            result, _ = await finished(handle)
        assert result.status != "finished"
        assert len(system.requests(slow)) == 1


class TestHistory:
    async def test_a_tool_id_that_a_provider_refuses_is_rewritten(self, system):
        call = {"state": "result", "toolCallId": "call.1:x", "toolName": "t", "args": {}, "result": "r"}
        said = {"format": 2, "parts": [{"type": "tool-invocation", "toolInvocation": call}]}
        history = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": said},
            {"role": "user", "content": "b"},
        ]
        model = system.script({"error": {"status": 400, "message": BAD_IDS}}, HELLO)
        agent = {"model": model, "errorProcessors": ["provider-history-compat"]}
        result, _ = await system.run(text=history, agent=agent)
        assert (result.status, result.retries) == ("finished", 1)
        refused, taken = system.requests(model)
        assert _tool_ids(refused) == ["call.1:x", "call.1:x"]
        assert _tool_ids(taken) == ["call_1_x", "call_1_x"]

    async def test_a_refused_last_turn_is_followed_by_one_of_the_user(self, system):
        history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        model = system.script({"error": {"status": 400, "message": PREFILL}}, HELLO)
        agent = {"model": model, "errorProcessors": ["prefill-error-handler"]}
        result, chunks = await system.run(text=history, agent=agent)
        assert (result.status, result.retries) == ("finished", 1)
        last = system.requests(model)[1]["messages"][-1]
        assert (last["role"], "continue" in str(last["content"])) == ("user", True)
        assert [chunk["type"] for chunk in chunks].count("data-signal") == 1


class TestCache:
    async def test_the_second_answer_is_the_first_one_without_a_call(self, system):
        model = system.script(HELLO)
        first, _ = await system.run(agent={"model": model, **CACHE})
        second, chunks = await system.run(agent={"model": model, **CACHE})
        assert first.text == second.text == text_of(chunks) == "Hello you"
        assert second.usage == first.usage
        assert len(system.requests(model)) == 1
        assert ([each.calls for each in first.models], second.models) == ([1], [])
        assert second.messages[-1]["content"]["parts"][-1]["text"] == "Hello you"

    async def test_a_replayed_answer_goes_through_the_output_chain(self, system):
        """D-22: a guardrail that is added later sees it."""
        model = system.script(HELLO)
        await system.run(agent={"model": model, **CACHE})
        upper, _ = await system.run(agent={"model": model, **CACHE, "outputProcessors": ["upper"]})
        block = {"id": "block", "options": {"word": "lo "}}
        blocked, chunks = await system.run(agent={"model": model, **CACHE, "outputProcessors": [block]})
        assert upper.text == "HELLO YOU"
        assert (blocked.status, text_of(chunks)) == ("blocked", "Hel")
        assert len(system.requests(model)) == 1

    async def test_replayed_tool_calls_run_and_each_step_has_its_own_answer(self, system):
        call = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
        model = system.script(call, {"chunks": ["done"]})
        for key in ({}, {"key": f"pinned-{model}"}):
            cache = {"inputProcessors": [{"id": "response-cache", "options": key}]}
            agent = {"model": system.script(call, {"chunks": ["done"]}), "tools": ["echo"], **cache}
            runs = [(await system.run(agent=agent))[0] for _ in range(2)]
            assert [run.text for run in runs] == ["done", "done"]
            assert [len(run.steps) for run in runs] == [2, 2]
            assert [run.tool_results[0]["output"] for run in runs] == ["echo hi", "echo hi"]
            assert len(system.requests(agent["model"])) == 2

    @pytest.mark.parametrize("chain", [[], ["upper"]])
    async def test_what_a_cached_response_says_of_its_call_reaches_the_response_hook(self, system, chain):
        """R-CA-1, R-RS-2; an answer without chunks is one, too (R-CH-4)."""
        told = {"warnings": ["old"], "request": {"body": "{}"}, "rawResponse": {"id": "r"}}
        replay = {"id": "replay", "options": {"response": {"chunks": [], **told}}}
        agent = {"model": system.script(HELLO), "inputProcessors": [replay], "outputProcessors": chain}
        result, chunks = await system.run(agent=agent)
        assert (result.status, result.finish_reason) == ("finished", "other")
        kinds = ["start", "step-start", "data-response", "step-finish", "finish"]
        assert [chunk["type"] for chunk in chunks] == kinds
        _, start, seen, finish, _ = chunks
        assert seen["data"] == {"from_cache": True, "warnings": ["old"], "request": {"body": "{}"},
                                "raw_response": {"id": "r"}}  # fmt: skip
        assert start["payload"]["warnings"] == finish["payload"]["stepResult"]["warnings"] == ["old"]

    async def test_settings_and_users_make_another_request(self, system):
        model = system.script(HELLO)
        await system.run(agent={"model": model, **CACHE})
        await system.run(agent={"model": model, **CACHE, "modelSettings": {"temperature": 1}})
        await system.run(agent={"model": model, **CACHE}, request_context={"mastra__resourceId": "ann"})
        assert len(system.requests(model)) == 3


def _tool_ids(request):
    called = [call["id"] for message in request["messages"] for call in message.get("tool_calls") or ()]
    answered = [m["tool_call_id"] for m in request["messages"] if m["role"] == "tool"]
    return called + answered
