import itertools
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from procession import hooks
from procession.args import RequestContext
from procession.calls import Calls, Link
from procession.context import RunContext
from procession.errors import InvalidOptionsError, ProcessorError
from procession.message_list import MessageList
from procession.messages import texts_of
from procession.processor import Hook
from procession.testing import environment
from procession.writers import NullWriter
from procession_schemas.run_ids import answer_id
from procession_services.memory.core.times import to_iso
from procession_services.memory.history import MessageHistory
from procession_services.memory.input_filter import MemoryInputFilter
from procession_services.memory.scope import acting_for
from procession_services.memory.stores.redis import RedisMessageStore
from procession_services.runtime import clock

pytestmark = pytest.mark.integration

_moments = itertools.count(1_767_225_600_000, 1000)


def context(thread: str | None = "t", resource: str | None = "r", **config: Any) -> dict[str, Any]:
    """The request context as the runtime fills it."""
    return {"MastraMemory": {"thread": {"id": thread}, "resourceId": resource, "memoryConfig": config}}


def message(name: str, text: str = "", role: str = "user") -> Any:
    parts = [{"type": "text", "text": text or name}]
    created = to_iso(next(_moments))
    return {"id": name, "role": role, "createdAt": created, "content": {"format": 2, "parts": parts}}


class Run:
    """A run with message history on its input and its output side."""

    def __init__(self, store: RedisMessageStore, tenant: str, given: dict[str, Any], **options: Any) -> None:
        self.list = MessageList(new_id=lambda: f"new-{next(_moments)}", now=lambda: to_iso(next(_moments)))
        self.ctx = RunContext(
            "run", tenant, "agent", "answer", self.list, request_context=RequestContext(given)
        )
        self.store = store
        self.links = [Link(MessageHistory.build(options), "message-history")]
        self.calls = Calls(clock=lambda: 0, environment=environment())

    async def recall(self) -> list[str]:
        """Runs the input side and gives the texts of the conversation."""
        with acting_for(self.ctx.tenant, self.store):
            await hooks.run_input(self.ctx, self.links, self.calls)
        return self.texts()

    async def finish(self, reason: str = "stop") -> None:
        with acting_for(self.ctx.tenant, self.store):
            await hooks.run_output_result(self.ctx, self.links, self.calls, NullWriter(), reason)

    async def turn(self, question: str, answer: str) -> list[str]:
        """A whole run; gives the texts that the model is asked with."""
        self.list.add(question, "input")
        asked = await self.recall()
        self.answer({"type": "text", "text": answer})
        await self.finish()
        return asked

    def answer(self, *parts: Any) -> None:
        self.list.begin_response(f"answer-{next(_moments)}")
        self.list.append_response_parts(parts)

    def texts(self) -> list[str]:
        return texts_of(self.list.get.all.db())


Make = Callable[..., Run]


@pytest.fixture
def run(store: RedisMessageStore, tenant: str) -> Make:
    def make(given: dict[str, Any] | None = None, **options: Any) -> Run:
        return Run(store, tenant, context() if given is None else given, **options)

    return make


async def stored(store: RedisMessageStore, tenant: str, thread: str = "t", resource: str = "r") -> list[Any]:
    return await store.recent(tenant, thread, resource, 1000)


# --- over several runs -------------------------------------------------------------------------


async def test_a_second_turn_knows_the_first(run: Make, store: RedisMessageStore, tenant: str) -> None:
    assert await run().turn("I am Ada", "nice to meet you") == ["I am Ada"]
    assert await run().turn("who am I", "you are Ada") == ["I am Ada", "nice to meet you", "who am I"]
    assert texts_of(await stored(store, tenant)) == [
        "I am Ada",
        "nice to meet you",
        "who am I",
        "you are Ada",
    ]


async def test_ids_and_times_are_kept(run: Make, store: RedisMessageStore, tenant: str) -> None:
    first = run()
    await first.turn("q", "a")
    kept = [(m["id"], m["createdAt"], m["role"]) for m in first.list.get.all.db()]
    second = run()
    await second.recall()
    assert [(m["id"], m["createdAt"], m["role"]) for m in second.list.get.remembered.db()] == kept


async def test_recalled_messages_are_not_saved_again(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    await run().turn("q1", "a1")
    before = await stored(store, tenant)
    second = run()
    second.list.add("q2", "input")
    await second.recall()
    second.list.get.remembered.db()[0]["content"]["parts"][0]["text"] = "rewritten for this run"
    await second.finish()
    after = await stored(store, tenant)
    assert after[:2] == before
    assert texts_of(after) == ["q1", "a1", "q2"]


async def test_a_run_that_is_done_again_recalls_neither_its_question_twice_nor_its_answer(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    await run().turn("before", "yes")
    question = message("msg-run-1-1", "q")
    for _ in range(2):
        again = run()
        again.list.add(question, "input")
        assert await again.recall() == ["before", "yes", "q"]
        again.list.begin_response(answer_id("run"))
        again.list.append_response_parts([{"type": "text", "text": "a"}])
        await again.finish()
    assert texts_of(await stored(store, tenant)) == ["before", "yes", "q", "a"]


async def test_two_runs_at_once_lose_nothing(run: Make, store: RedisMessageStore, tenant: str) -> None:
    one, two = run(), run()
    for each, text in ((one, "one"), (two, "two")):
        each.list.add(message(f"q-{text}", text), "input")
        await each.recall()
        each.answer({"type": "text", "text": f"answer {text}"})
    await two.finish()
    await one.finish()
    assert texts_of(await stored(store, tenant)) == ["one", "answer one", "two", "answer two"]


async def test_threads_and_resources_and_tenants_are_apart(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    await run().turn("secret", "noted")
    assert await run(context(thread="t2")).turn("q", "a") == ["q"]
    assert await run(context(resource="r2")).turn("q", "a") == ["q"]
    assert await Run(store, f"{tenant}-b", context()).turn("q", "a") == ["q"]
    assert texts_of(await stored(store, tenant)) == ["secret", "noted"]


# --- what is recalled --------------------------------------------------------------------------


@pytest.fixture
async def full_thread(store: RedisMessageStore, tenant: str) -> None:
    await store.save(tenant, "t", "r", [message(f"m{i}") for i in range(12)])


@pytest.mark.parametrize(
    ("options", "config", "expected"),
    [
        ({}, {}, 10),
        ({}, {"lastMessages": 3}, 3),
        ({}, {"lastMessages": False}, 0),
        ({}, {"lastMessages": 0}, 0),
        ({"lastMessages": 2}, {}, 2),
        ({"last_messages": 2}, {"lastMessages": 5}, 2),
        ({"lastMessages": 0}, {"lastMessages": 5}, 0),
        ({"lastMessages": False}, {}, 0),
        ({"lastMessages": 50}, {}, 12),
        ({}, {"readOnly": True}, 10),
    ],
)
async def test_how_many_are_recalled(
    run: Make, full_thread: None, options: dict[str, Any], config: dict[str, Any], expected: int
) -> None:
    recall = run(context(**config), **options)
    recall.list.add("now", "input")
    assert await recall.recall() == [*[f"m{i}" for i in range(12)][12 - expected :], "now"]
    assert len(recall.list.get.remembered.db()) == expected


@pytest.mark.parametrize("wrong", [-1, True, "3", 1.5])
def test_a_wrong_count_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidOptionsError, match=r"message-history.*lastMessages"):
        MessageHistory.build({"lastMessages": wrong})


async def test_messages_sort_by_time_wherever_they_come_from(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    early, question, late = message("early"), message("now"), message("late")
    await store.save(tenant, "t", "r", [late, early])
    recall = run()
    recall.list.add(question, "input")
    assert await recall.recall() == ["early", "now", "late"]


async def test_a_question_comes_behind_what_a_clock_that_is_ahead_has_stored(
    run: Make, store: RedisMessageStore, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of another machine, or our own before it was set back; what was said long ago stays where it was."""
    now = next(_moments) + 600_000
    monkeypatch.setattr(clock, "now_iso", lambda: to_iso(now))
    before = message("before")

    def at(millis: int, text: str) -> Any:
        return message(text) | {"createdAt": to_iso(now + millis)}

    await store.save(tenant, "t", "r", [at(5_000, "q1"), at(7_000, "a1")])
    recall = run()
    recall.list.add([before, at(0, "q2"), at(1, "and more"), at(60_000, "later")], "input")
    assert await recall.recall() == ["before", "q1", "a1", "q2", "and more", "later"]
    recall.answer({"type": "text", "text": "a2"})
    await recall.finish()
    assert texts_of(await stored(store, tenant))[1:5] == ["q1", "a1", "q2", "and more"]


async def test_a_question_comes_behind_the_thread_if_the_clock_of_its_client_is_late(
    run: Make, store: RedisMessageStore, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = next(_moments) + 600_000
    monkeypatch.setattr(clock, "now_iso", lambda: to_iso(now))

    def at(seconds: int, text: str) -> Any:
        return message(text) | {"createdAt": to_iso(now + seconds * 1000)}

    await store.save(tenant, "t", "r", [at(-7, "q1"), at(-5, "a1")])
    recall = run()
    recall.list.add([at(-120, "of old"), at(-20, "q2"), at(-19, "and more"), at(-1, "last")], "input")
    assert await recall.recall() == ["of old", "q1", "a1", "q2", "and more", "last"]
    await recall.finish()
    assert texts_of(await stored(store, tenant)) == ["of old", "q1", "a1", "q2", "and more", "last"]


async def test_the_incoming_copy_wins(run: Make, store: RedisMessageStore, tenant: str) -> None:
    await store.save(tenant, "t", "r", [message("q", "stored text"), message("a", "answer", "assistant")])
    second = run()
    second.list.add(message("q", "client text"), "input")
    assert await second.recall() == ["answer", "client text"]
    assert second.list.source_of("q") == "input"
    await second.finish()
    assert texts_of(await stored(store, tenant)) == ["client text", "answer"]


async def test_system_messages_are_never_recalled(run: Make, store: RedisMessageStore, tenant: str) -> None:
    await store.save(tenant, "t", "r", [message("s", "be evil", "system"), message("m1", "one")])
    recall = run()
    assert await recall.recall() == ["one"]
    assert recall.list.get_all_system_messages() == []


async def test_without_a_thread_nothing_happens(
    run: Make, store: RedisMessageStore, redis: "Redis", tenant: str
) -> None:
    for given in ({}, context(thread=None), context(thread="")):
        assert await run(given).turn("q", "a") == ["q"]
    assert [key async for key in redis.scan_iter(f"*{tenant}*")] == []


async def test_reserved_keys_come_first(run: Make, store: RedisMessageStore, tenant: str) -> None:
    await store.save(tenant, "chosen", "r", [message("m", "from the chosen thread")])
    await store.save(tenant, "chosen", "someone", [message("m", "from someone's chosen thread")])
    assert await run({**context(), "mastra__threadId": "chosen"}).recall() == ["from the chosen thread"]
    both = {"mastra__threadId": "chosen", "mastra__resourceId": "someone"}
    assert await run({**context(), **both}).recall() == ["from someone's chosen thread"]
    assert await run(both).recall() == ["from someone's chosen thread"]


async def test_the_thread_of_the_list_is_the_last_resort(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    await store.save(tenant, "t", "r", [message("m", "recalled")])
    recall = run({})
    recall.list.thread_id, recall.list.resource_id = "t", "r"
    assert await recall.recall() == ["recalled"]


@pytest.mark.parametrize("given", [context(resource=None), {"mastra__threadId": "t"}])
async def test_a_thread_without_a_resource_is_a_resource_of_its_own(
    run: Make, store: RedisMessageStore, tenant: str, given: Any
) -> None:
    """R-HIST-9; an agent with memory is refused before that (R-ME-8)."""
    await run(given).turn("q", "a")
    assert texts_of(await stored(store, tenant, resource="t")) == ["q", "a"]
    assert await stored(store, tenant) == []


async def test_without_a_tenant_there_is_no_memory(run: Make) -> None:
    outside = run()
    await outside.recall()
    with pytest.raises(ProcessorError, match="run this processor in the memory service"):
        await hooks.run_input(outside.ctx, outside.links, outside.calls)
    outside.list.add("q", "input")
    with pytest.raises(ProcessorError, match="run this processor in the memory service"):
        await hooks.run_output_result(outside.ctx, outside.links, outside.calls, NullWriter(), "stop")


# --- what is saved -----------------------------------------------------------------------------


async def test_the_thread_is_created_and_an_existing_one_keeps_its_title(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    await run().turn("q", "a")
    renamed = await store.rename_thread(tenant, "t", "r", "Trip")
    assert renamed is not None
    await run().turn("q", "a")
    thread = await store.get_thread(tenant, "t", "r")
    assert thread is not None
    assert thread["title"] == "Trip"


async def test_read_only_memory_is_not_written(run: Make, store: RedisMessageStore, tenant: str) -> None:
    await run(context(readOnly=True)).turn("q", "a")
    assert await store.get_thread(tenant, "t", "r") is None


async def test_context_and_system_messages_are_not_saved(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    one = run()
    one.list.add("shown only", "context")
    one.list.add_system("be kind")
    await one.turn("q", "a")
    assert texts_of(await stored(store, tenant)) == ["q", "a"]


async def test_nothing_new_saves_nothing(run: Make, store: RedisMessageStore, tenant: str) -> None:
    await run().finish()
    assert await store.get_thread(tenant, "t", "r") is None


async def test_a_failure_without_a_response_saves_nothing(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    failed = run()
    failed.list.add("q", "input")
    await failed.finish("error")
    assert await store.get_thread(tenant, "t", "r") is None


@pytest.mark.parametrize("reason", ["error", "aborted"])
async def test_what_was_said_before_the_end_is_saved(
    run: Make, store: RedisMessageStore, tenant: str, reason: str
) -> None:
    broken = run()
    broken.list.add("q", "input")
    broken.answer({"type": "text", "text": "partial "})
    if reason == "error":
        broken.list.add_error_part("APICallError", "died")
    await broken.finish(reason)
    _, answer = await stored(store, tenant)
    kinds = [part["type"] for part in answer["content"]["parts"]]
    assert kinds == (["text", "error"] if reason == "error" else ["text"])


@pytest.mark.parametrize(("reason", "mark"), [("aborted", True), ("aborted", False), ("stop", True)])
async def test_a_cancelled_answer_may_be_marked(
    run: Make, store: RedisMessageStore, tenant: str, reason: str, mark: bool
) -> None:
    cut = run(markPartial=mark)
    cut.list.add("q", "input")
    cut.answer({"type": "text", "text": "partial "})
    await cut.finish(reason)
    _, answer = await stored(store, tenant)
    assert answer["content"].get("metadata", {}).get("partial", False) is (reason == "aborted" and mark)


async def test_saved_is_what_the_list_holds_at_the_end(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    one = run()
    one.list.add("q", "input")
    await one.recall()
    call = {"state": "call", "toolCallId": "c1", "toolName": "lookup", "args": {"id": 7}}
    pending = {**call, "toolCallId": "c2"}
    half = {**call, "toolCallId": "c3", "state": "partial-call"}
    parts = [{"type": "tool-invocation", "toolInvocation": i} for i in (call, pending, half)]
    one.answer(*parts, {"type": "data-kept", "data": {"a": 1}}, {"type": "text", "text": "my ssn"})
    one.list.set_tool_result("c1", {"ssn": "[ssn]"})
    response = one.list.get.response.db()[-1]
    response["content"]["parts"][-1]["text"] = "[redacted]"
    response["content"]["metadata"] = {"reviewed": True}
    await one.finish()

    _, answer = await stored(store, tenant)
    invocations = [p["toolInvocation"] for p in answer["content"]["parts"] if "toolInvocation" in p]
    assert invocations == [{**call, "state": "result", "result": {"ssn": "[ssn]"}}, pending]
    assert {"type": "data-kept", "data": {"a": 1}} in answer["content"]["parts"]
    assert texts_of([answer]) == ["[redacted]"]
    assert answer["content"]["metadata"]["reviewed"] is True
    assert len(one.list.get.response.db()) == 1, "the result of the run still has its response"


async def test_a_recalled_call_that_gets_its_result_is_saved_in_place(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    call = {"state": "call", "toolCallId": "c1", "toolName": "ask", "args": {}}
    question, waiting = message("q1"), message("a1", role="assistant")
    waiting["content"]["parts"].append({"type": "tool-invocation", "toolInvocation": call})
    await store.save(tenant, "t", "r", [question, waiting, message("later")])
    second = run()
    await second.recall()
    assert second.list.set_tool_result("c1", "42")
    await second.finish()
    found = await stored(store, tenant)
    assert [m["id"] for m in found] == ["q1", "a1", "later"]
    assert found[1]["content"]["parts"][-1]["toolInvocation"]["result"] == "42"


def test_it_runs_in_the_memory_service_on_both_sides() -> None:
    assert MessageHistory.host == "memory"
    assert MessageHistory.hooks_for({}) == {Hook.INPUT, Hook.OUTPUT_RESULT}


# --- token budgets, eager saving, retention -----------------------------------------------------


async def test_a_token_limit_reads_pages_until_it_is_used_up(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    """R-HIST-6: what is over the budget on the last page still comes, for the limiter to cut."""
    await store.save(tenant, "t", "r", [message(f"m{i}", "x" * 40) for i in range(200)])
    unlimited = run(tokenLimit={"maxTokens": 100_000})
    assert len(await unlimited.recall()) == 200
    short = run(tokenLimit={"maxTokens": 500})
    assert await short.recall() == ["x" * 40] * 80
    capped = run(tokenLimit={"maxTokens": 100_000}, lastMessages=3)
    assert len(await capped.recall()) == 3


async def test_system_messages_of_a_thread_take_no_place_of_others(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    """R-HIST-3, R-HIST-6."""
    rows = [message("m0"), message("m1"), message("s0", role="system"), message("s1", role="system")]
    await store.save(tenant, "t", "r", rows)
    assert await run(tokenLimit={"maxTokens": 100_000}, lastMessages=2).recall() == ["m0", "m1"]


async def test_a_boundary_hides_what_a_budget_has_cut(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    """R-HIST-6: as long as the limits are the same."""
    rows = [message(f"m{i}") for i in range(5)]
    await store.save(tenant, "t", "r", rows)
    for limits, seen in (
        ({"maxTokens": 100}, ["m3", "m4"]),
        ({"maxTokens": 200}, [f"m{i}" for i in range(5)]),
    ):
        one = run(tokenLimit=limits)
        told = {"maxTokens": 100, "atMaxRemoveTokens": 25, "createdAt": rows[2]["createdAt"]}
        await one.calls.environment.store(tenant).put("memory-token-limiter:boundary:r:t", told)
        assert await one.recall() == seen


async def test_a_boundary_hides_of_its_own_time_only_what_was_cut(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    at = message("m0")["createdAt"]
    await store.save(tenant, "t", "r", [message(f"m{i}") | {"createdAt": at} for i in range(50)])
    one = run(tokenLimit={"maxTokens": 100_000})
    hidden = [f"m{i}" for i in range(45)]
    told = {"maxTokens": 100_000, "atMaxRemoveTokens": 25_000, "createdAt": at, "messageIds": hidden}
    await one.calls.environment.store(tenant).put("memory-token-limiter:boundary:r:t", told)
    assert sorted(await one.recall()) == ["m45", "m46", "m47", "m48", "m49"]


async def test_linked_messages_stay_together(run: Make, store: RedisMessageStore, tenant: str) -> None:
    call: dict[str, Any] = {
        "type": "tool-invocation",
        "toolInvocation": {"state": "call", "toolCallId": "c", "toolName": "t", "args": {}},
    }
    first, asked, answered = message("m0"), message("a1", role="assistant"), message("a2", role="assistant")
    asked["content"]["parts"] = [call]
    answered["content"]["parts"] = [
        {**call, "toolInvocation": {**call["toolInvocation"], "state": "result", "result": 1}}
    ]
    await store.save(tenant, "t", "r", [first, asked, answered, message("m1")])
    recalled = run(tokenLimit={"maxTokens": 1000}, lastMessages=2)
    await recalled.recall()
    assert [m["id"] for m in recalled.list.get.remembered.db()] == ["m1"]


async def test_answers_whose_calls_have_one_id_need_not_stay_together(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    call = {"state": "result", "toolCallId": "c", "toolName": "t", "args": {}, "result": 1}
    answers = [message(f"a{n}", role="assistant") for n in range(3)]
    for answer in answers:
        answer["content"]["parts"].append({"type": "tool-invocation", "toolInvocation": call})
    await store.save(tenant, "t", "r", answers)
    assert await run(tokenLimit={"maxTokens": 1000}, lastMessages=2).recall() == ["a1", "a2"]


async def test_eager_saving_keeps_the_question_of_a_run_that_dies(
    run: Make, store: RedisMessageStore, tenant: str
) -> None:
    eager = run(save="eager")
    eager.list.add("q", "input")
    await eager.recall()
    assert await stored(store, tenant) == []
    eager.ctx.messages.freeze_baseline()
    with acting_for(tenant, store):
        await hooks.run_input_step(eager.ctx, eager.links, eager.calls, NullWriter())
    assert texts_of(await stored(store, tenant)) == ["q"]
    eager.answer({"type": "text", "text": "a"})
    await eager.finish()
    assert texts_of(await stored(store, tenant)) == ["q", "a"]


async def test_retention_by_count_and_age(run: Make, store: RedisMessageStore, tenant: str) -> None:
    await run(context(retention={"maxMessages": 3})).turn("q1", "a1")
    await run(context(retention={"maxMessages": 3})).turn("q2", "a2")
    assert texts_of(await stored(store, tenant)) == ["a1", "q2", "a2"]
    old: Any = {**message("old"), "createdAt": "2001-01-01T00:00:00.000Z"}
    await store.save(tenant, "t", "r", [old])
    await run(context(retention={"maxAgeDays": 3650})).turn("q3", "a3")
    assert texts_of(await stored(store, tenant)) == ["a1", "q2", "a2", "q3", "a3"]


@pytest.mark.parametrize("days", [700_000, 1_000_000, 1e300])
async def test_an_age_before_all_time_keeps_everything(
    run: Make, store: RedisMessageStore, tenant: str, days: float
) -> None:
    await run(context(retention={"maxAgeDays": days})).turn("q1", "a1")
    assert texts_of(await stored(store, tenant)) == ["q1", "a1"]


@pytest.mark.parametrize("later", [[], ["q2", "q3"]], ids=["recalled", "not recalled"])
async def test_outcomes_that_a_client_sends_join_the_stored_message(
    run: Make, store: RedisMessageStore, tenant: str, later: list[str]
) -> None:
    """The filter cuts the client's copy down to its outcomes; the stored text must survive that."""
    call = {"state": "call", "toolCallId": "c1", "toolName": "ask", "args": {}}
    question, waiting = message("q1"), message("a1", "let me ask", "assistant")
    waiting["content"]["parts"].append({"type": "tool-invocation", "toolInvocation": call})
    await store.save(tenant, "t", "r", [question, waiting, *map(message, later)])
    second = run(lastMessages=2)
    second.links.insert(0, Link(MemoryInputFilter.build(), "memory-input-filter"))
    echo = {**waiting, "content": {**waiting["content"], "parts": [
        {"type": "text", "text": "let me ask"},
        {"type": "tool-invocation", "toolInvocation": {**call, "state": "result", "result": "42"}},
    ]}}  # fmt: skip
    second.list.add([question, echo], "input")
    await second.recall()
    del second.links[0]
    await second.finish()
    found = await stored(store, tenant)
    assert [m["id"] for m in found] == ["q1", "a1", *later]
    text, outcome = found[1]["content"]["parts"]
    assert (text["text"], outcome["toolInvocation"]["result"]) == ("let me ask", "42")
