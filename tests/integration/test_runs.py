"""What a caller can ask of the running system, and gets."""

import asyncio

import nats
import pytest

from procession.client import Procession, ResumeDataError, RunConflictError, UnknownRunError
from procession_schemas import subjects
from tests.support.system import deltas, finished, text_of
from tests.support.waiting import eventually, until

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

HELLO = {"chunks": ["Hel", "lo ", "you"]}
CALL = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
DONE = {"chunks": ["done"]}


async def test_a_streamed_run_ends_with_what_it_streamed(system):
    result, chunks = await system.run(HELLO)
    assert result.status == "finished"
    assert result.text == text_of(chunks) == "Hello you"
    assert [chunks[0]["type"], chunks[-1]["type"]] == ["start", "finish"]
    assert {chunk["runId"] for chunk in chunks} == {result.run_id}


async def test_a_run_that_is_not_streamed_has_the_same_result(system):
    streamed, _ = await system.run(CALL, DONE, agent={"tools": ["echo"]})
    whole, chunks = await system.run(CALL, DONE, agent={"tools": ["echo"]}, stream=False)
    assert chunks == []
    assert whole.text == streamed.text == "done"
    assert [each["toolCalls"] for each in whole.steps] == [each["toolCalls"] for each in streamed.steps]
    assert whole.usage == streamed.usage


async def test_output_processors_change_what_streams_and_what_is_kept(system):
    result, chunks = await system.run(HELLO, agent={"outputProcessors": ["upper"]})
    assert result.text == "".join(deltas(chunks)) == "HELLO YOU"
    (report,) = [each for each in result.processors if each.hook == "processOutputStream"]
    assert report.changed == 3


@pytest.mark.parametrize("chain", [[], ["upper"]])
async def test_sources_and_files_of_an_answer_are_told_to_hooks_and_in_the_result(system, chain):
    """R-FR-1, R-SR-1, R-SR-2; also of a step that another command has made."""
    source = {"id": "s", "sourceType": "url", "url": "https://a.example", "title": "A"}
    file = {"data": "AA==", "mimeType": "image/png"}
    call = {"toolCallId": "c1", "toolName": "echo", "args": {"text": "hi"}}
    chunks = [
        {"type": kind, "payload": payload}
        for kind, payload in (("source", source), ("file", file), ("tool-call", call))
    ]
    replay = {"id": "replay", "options": {"response": {"chunks": chunks}}}
    agent = {"tools": ["echo"], "inputProcessors": [replay, "steps"], "outputProcessors": [*chain, "steps"]}
    result, streamed = await system.run(DONE, agent=agent)
    assert (result.text.lower(), result.sources, result.files) == ("done", [source], [file])
    assert [step.get("sources") for step in result.steps] == [[source], None]
    seen = [chunk["data"] for chunk in streamed if chunk["type"] == "data-steps"]
    assert [len(steps) for steps in seen] == [0, 1, 1, 2, 2]
    for first, *others in seen[1:]:
        assert (first["sources"], first["files"]) == ([source], [file])
        assert [(step["sources"], step["files"]) for step in others] == [([], [])] * len(others)


async def test_a_stream_hook_sees_and_changes_the_one_conversation(system):
    agent = {"inputProcessors": [{"id": "say", "options": {"word": "Added."}}], "outputProcessors": ["notes"]}
    _, chunks = await system.run(HELLO, agent=agent)
    (seen,) = [chunk["data"] for chunk in chunks if chunk["type"] == "data-seen"]
    asked = seen["text-delta"][:-1]
    assert (len(asked), asked[-1], seen["text-delta"][-1]) == (2, "Added.", "a note")
    assert sorted(seen["step-finish"]) == sorted([*asked, "a note", "Hello you"])
    assert sorted(seen["result"]) == sorted(seen["step-finish"])


async def test_a_block_ends_the_run_and_closes_the_connection_to_the_provider(system):
    cancelled = system.models.stats.cancelled
    slow = {"chunks": ["ok ", "secret", *["more"] * 500], "chunk_delay_ms": 20}
    block = {"id": "block", "options": {"word": "secret"}}
    result, chunks = await system.run(slow, agent={"outputProcessors": [block]})
    assert result.status == "blocked"
    assert result.tripwire.reason == "said secret"
    assert text_of(chunks) == "ok "
    await until(lambda: system.models.stats.cancelled == cancelled + 1)


async def test_a_rejected_answer_is_made_again(system):
    block = {"id": "block", "options": {"word": "bad", "retry": True}}
    agent = {"outputProcessors": [block], "maxProcessorRetries": 2}
    result, _ = await system.run({"chunks": ["bad"]}, {"chunks": ["good"]}, agent=agent)
    assert (result.status, result.text, result.retries) == ("finished", "good", 1)


async def test_an_error_processor_has_a_failed_call_made_again(system):
    refused = {"error": {"status": 500, "retryable": True}}
    result, _ = await system.run(refused, HELLO, agent={"errorProcessors": ["retry"]})
    assert (result.status, result.text, result.retries) == ("finished", "Hello you", 1)


async def test_a_failed_call_is_made_again_within_its_retries(system):
    model = system.script(
        {"error": {"status": 503, "retryable": True, "headers": {"retry-after": "0"}}}, HELLO
    )
    result, _ = await system.run(agent={"model": model, "maxRetries": 1})
    assert (result.status, result.text, result.retries) == ("finished", "Hello you", 0)
    assert len(system.requests(model)) == 2


async def test_the_next_model_answers_when_one_fails(system):
    broken, good = system.script({"error": {"status": 400}}), system.script(HELLO)
    result, chunks = await system.run(agent={"model": [{"model": broken}, {"model": good}]})
    assert (result.status, result.text) == ("finished", "Hello you")
    assert [each.model for each in result.models][-1] == good
    assert text_of(chunks) == "Hello you"


@pytest.mark.parametrize("chain", [[], ["upper"]], ids=["bare", "chain"])
@pytest.mark.parametrize("good", [True, False])
async def test_an_attempt_begins_once_however_many_models_are_asked_in_it(system, chain, good):
    """R-CH-4, R-FB-2: what a hook writes for the next model comes before it, too (R-WR-1)."""
    failing = {"error": {"status": 400}}
    models = [{"model": system.script(each)} for each in (failing, failing, HELLO if good else failing)]
    _, chunks = await system.run(
        agent={"model": models, "inputProcessors": ["steps"], "outputProcessors": chain}
    )
    kinds = [chunk["type"] for chunk in chunks if not chunk["type"].startswith("text-")]
    ends = ["step-finish", "finish"] if good else ["error", "step-finish", "finish"]
    assert kinds == ["start", *["data-steps"] * 3, "step-start", *ends]


async def test_a_model_that_fails_for_good_fails_the_run(system):
    result, chunks = await system.run({"error": {"status": 401, "message": "no key"}})
    assert (result.status, result.error.code, result.error.status_code) == ("failed", "MODEL_FAILED", 401)
    assert [chunk["type"] for chunk in chunks].count("error") == 1


async def test_a_request_overrides_its_agent(system):
    agent = {"outputProcessors": ["upper"], "instructions": "Be kind.", "modelSettings": {"temperature": 1}}
    model = system.script(HELLO)
    result, _ = await system.run(
        agent={**agent, "model": "openai/other"},
        model=model, instructions="Be brief.", output_processors=[], model_settings={"temperature": 0},
    )  # fmt: skip
    assert result.text == "Hello you"
    (asked,) = system.requests(model)
    assert asked["temperature"] == 0
    assert asked["messages"][0]["content"] == "Be brief."


async def test_a_factory_makes_the_processors_of_a_request_from_its_context(system):
    agent = {"outputProcessors": {"factory": "by-tier"}}
    gold, _ = await system.run(HELLO, agent=agent, request_context={"tier": "gold"})
    plain, _ = await system.run(HELLO, agent=agent, request_context={"tier": "plain"})
    assert [gold.text, plain.text] == ["HELLO YOU", "Hello you"]


async def test_output_and_error_arrays_are_made_when_process_input_is_through(system):
    """R-CF-3: they see what it has put into the request context."""
    model = system.script({"error": {"status": 500, "message": "down"}}, {"chunks": ["Hello ", "you"]})
    agent = {
        "model": model,
        "inputProcessors": [{"id": "put", "options": {"values": {"tier": "gold"}}}],
        "outputProcessors": {"factory": "by-tier"},
        "errorProcessors": {"factory": "retry-for-gold"},
        "memory": {},
    }
    memory = {"thread": "made", "resource": "r"}
    result, chunks = await system.run(agent=agent, memory=memory, request_context={"tier": "plain"})
    assert (result.status, result.text, text_of(chunks), result.retries) == (
        "finished",
        "HELLO YOU",
        "HELLO YOU",
        1,
    )
    page = await system.client.memory.messages("made", "r")
    assert [message["role"] for message in page["messages"]] == ["user", "assistant"]


async def test_a_factory_that_fails_ends_the_run(system):
    agent = {
        "inputProcessors": [{"id": "put", "options": {"values": {"tier": "unknown"}}}],
        "outputProcessors": {"factory": "by-tier"},
    }
    result, chunks = await system.run(HELLO, agent=agent, request_context={"tier": "gold"})
    assert (result.status, result.error.code, result.error.field) == (
        "failed",
        "FACTORY_FAILED",
        "outputProcessors.factory",
    )
    assert [chunk["type"] for chunk in chunks] == ["error"]


@pytest.mark.parametrize("chain", [[], ["upper"]])
async def test_the_end_at_a_deadline_is_told_once(system, chain):
    """The gateway, whose command nobody wants any more, leaves it to the orchestrator that tells it."""
    slow, agent = {"chunks": ["w "] * 1000, "chunk_delay_ms": 40}, {"outputProcessors": chain}

    async def late():
        handle = await system.start(slow, agent=agent, timeout=1)
        result, _ = await finished(handle)
        assert result.error.code == "DEADLINE_EXCEEDED"
        return handle.run_id

    runs = await asyncio.gather(*(late() for _ in range(20)))
    await eventually(lambda: no_work_is_left(system))
    told = [[chunk for batch in await system.batches(run) for chunk in batch["chunks"]] for run in runs]
    assert [sum(chunk["type"] == "error" for chunk in chunks) for chunks in told] == [1] * 20


async def no_work_is_left(system):
    """Of this module: who shares these servers may leave some."""
    ours = f"{subjects.ROOT}.work.*.{system.client.tenant}.*"
    async with await nats.connect(system.servers.nats_url) as connection:
        return not (await connection.jetstream().stream_info("WORK", subjects_filter=ours)).state.subjects


async def test_a_thread_is_remembered(system):
    memory = {"thread": "t", "resource": "r"}
    first, second = system.script(HELLO), system.script(DONE)
    await system.run(text="I am Ann", agent={"model": first, "memory": {}}, memory=memory)
    result, _ = await system.run(text="Who am I?", agent={"model": second, "memory": {}}, memory=memory)
    (asked,) = system.requests(second)
    assert [each["content"] for each in asked["messages"]] == ["I am Ann", "Hello you", "Who am I?"]
    assert result.remembered_messages == result.messages[:2]
    assert (len(result.messages), result.total_usage) == (4, result.usage)


async def test_who_attaches_before_the_request_is_accepted_reads_the_run(system):
    gate = system.gate()
    factory = {"factory": "gated-factory", "options": gate.options}
    handle = await system.start(HELLO, agent={"inputProcessors": factory})
    await gate.reached()
    async with Procession(system.servers.nats_url, tenant=system.client.tenant) as client:
        with pytest.raises(UnknownRunError):
            await client.attach("nowhere")
        other = await client.attach(handle.run_id)
        assert not other.accepted
        await gate.open()
        result, chunks = await finished(other)
    assert (result.text, text_of(chunks)) == ("Hello you", "Hello you")


async def test_a_tool_call_waits_for_approval(system):
    call = {"tool_calls": [{"id": "c1", "name": "send-mail", "arguments": {"to": "ann"}}]}
    handle = await system.start(call, DONE, agent={"tools": ["send-mail"]})
    suspended, chunks = await read(handle)
    assert suspended.status == "suspended"
    assert chunks[-1]["type"] == "tool-call-approval"
    await handle.approve("c1")
    result, chunks = await finished(handle)
    assert (result.status, result.text) == ("finished", "done")
    assert result.tool_results[0]["output"] == "sent to ann"
    assert "tool-result" in [chunk["type"] for chunk in chunks]


async def test_a_declined_call_is_not_made(system):
    call = {"tool_calls": [{"id": "c1", "name": "send-mail", "arguments": {"to": "ann"}}]}
    model = system.script(call, DONE)
    handle = await system.start(agent={"tools": ["send-mail"], "model": model})
    await read(handle)
    await handle.decline("c1", "not now")
    result, chunks = await finished(handle)
    assert result.status == "finished"
    assert "tool-output-denied" in [chunk["type"] for chunk in chunks]
    assert "not now" in str(system.requests(model)[1]["messages"][-1])


async def test_a_tool_that_suspends_is_resumed_with_data_by_somebody_else(system):
    call = {"tool_calls": [{"id": "c1", "name": "book", "arguments": {"place": "Rome"}}]}
    handle = await system.start(call, DONE, agent={"tools": ["book"]})
    suspended, _ = await read(handle)
    assert suspended.suspend_payload["calls"][0]["suspendPayload"] == {"question": "which day?"}
    other = await system.client.attach(handle.run_id)
    await other.resume("c1", {"day": "Monday"})
    result, _ = await finished(other)
    assert result.tool_results[0]["output"] == "Rome on Monday"
    await handle.close()


@pytest.mark.parametrize(
    ("tool", "wrong", "right", "told"),
    [
        (
            {"name": "send-mail", "arguments": {"to": "ann"}},
            {"day": "Monday"},
            {"approved": True},
            (
                "tool call c1 of send-mail is waiting for approval: approve or decline it "
                "(data: 'approved' is a required property)"
            ),
        ),
        (
            {"name": "book", "arguments": {"place": "Rome"}},
            {"day": 1},
            {"day": "Monday"},
            "tool call c1 of book is waiting for different data (day: 1 is not of type 'string')",
        ),
    ],
)
async def test_a_call_still_waits_when_it_was_given_what_it_does_not_wait_for(
    system, tool, wrong, right, told
):
    handle = await system.start({"tool_calls": [{"id": "c1", **tool}]}, DONE, agent={"tools": [tool["name"]]})
    await read(handle)
    with pytest.raises(ResumeDataError) as raised:
        await handle.resume("c1", wrong)
    assert str(raised.value) == told
    await handle.resume("c1", right)
    result, _ = await finished(handle)
    assert "output" in result.tool_results[0]


async def test_a_call_that_waits_for_data_cannot_be_approved(system):
    call = {"tool_calls": [{"id": "c1", "name": "book", "arguments": {"place": "Rome"}}]}
    handle = await system.start(call, DONE, agent={"tools": ["book"]})
    await read(handle)
    with pytest.raises(ResumeDataError, match="call c1 of book is waiting for data"):
        await handle.approve("c1")
    await handle.decline("c1")
    assert (await finished(handle))[0].status == "finished"


async def test_calls_are_decided_one_by_one(system):
    calls = [{"id": each, "name": "send-mail", "arguments": {"to": each}} for each in ("c1", "c2")]
    handle = await system.start({"tool_calls": calls}, DONE, agent={"tools": ["send-mail"]})
    await handle.approve("c1")
    await handle.approve("c2")
    result = await handle.result(timeout=10)
    assert (result.status, len(result.tool_results)) == ("finished", 2)


async def test_what_two_people_decide_one_after_the_other_counts(system):
    asked = [
        {"tool_calls": [{"id": each, "name": "send-mail", "arguments": {"to": each}}]}
        for each in ("c1", "c2")
    ]
    handle = await system.start(*asked, DONE, agent={"tools": ["send-mail"]})
    assert (await read(handle))[0].status == "suspended"
    async with Procession(system.servers.nats_url, tenant=system.client.tenant) as client:
        other = await client.attach(handle.run_id)
        assert (await other.result(timeout=10)).status == "suspended"
        await handle.approve("c1")
        await other.approve("c2")
        result, _ = await finished(other)
    assert (result.status, len(result.tool_results)) == ("finished", 2)


async def test_who_comes_when_a_run_has_gone_on_gets_its_end(system):
    call = {"tool_calls": [{"id": "c1", "name": "send-mail", "arguments": {"to": "ann"}}]}
    gate = system.gate()
    gated = {"tool_calls": [{"id": "c2", "name": "gated", "arguments": {}}]}
    agent = {"tools": ["send-mail", {"id": "gated", "options": gate.options}]}
    handle = await system.start(call, gated, DONE, agent=agent)
    await read(handle)
    await handle.approve("c1")
    await gate.reached()
    late = await system.client.attach(handle.run_id)
    waiting = asyncio.create_task(late.result(timeout=10))
    await gate.open()
    result, chunks = await finished(late)
    assert (await waiting, result.status, text_of(chunks)) == (result, "finished", "done")
    await handle.close()


@pytest.mark.parametrize("chain", [[], ["upper"]])
async def test_a_run_ends_with_the_call_that_its_caller_makes_also_beside_a_tool_of_ours(system, chain):
    """R-TX-5: another step would be made without the result, and without the call in its prompt."""
    both = {"tool_calls": [*CALL["tool_calls"], {"id": "c2", "name": "pick-date", "arguments": {}}]}
    agent = {"tools": ["echo", {"id": "client", "as": "pick-date"}], "outputProcessors": chain}
    result, chunks = await system.run(both, DONE, agent=agent)
    assert (result.status, result.finish_reason, result.text) == ("finished", "tool-calls", "")
    assert [each["toolCallId"] for each in result.tool_results] == ["c1"]
    assert [chunk["type"] for chunk in chunks][-3:] == ["tool-result", "step-finish", "finish"]


async def test_a_suspended_run_can_be_cancelled(system):
    call = {"tool_calls": [{"id": "c1", "name": "send-mail", "arguments": {"to": "ann"}}]}
    handle = await system.start(call, DONE, agent={"tools": ["send-mail"]})
    await read(handle)
    await handle.cancel()
    result, chunks = await finished(handle)
    assert result.status == "cancelled"
    assert [chunk["type"] for chunk in chunks] == ["abort", "finish"]


async def test_what_a_tool_gave_before_the_cancelled_run_waited_is_remembered(system):
    """R-CX-2: it has done what it does."""
    calls = [*CALL["tool_calls"], {"id": "c2", "name": "send-mail", "arguments": {"to": "ann"}}]
    model = system.script({"tool_calls": calls}, DONE)
    agent = {"model": model, "tools": ["echo", "send-mail"], "memory": {}, "outputProcessors": ["upper"]}
    where = {"memory": {"thread": "left-waiting", "resource": "ann"}}
    handle = await system.start(agent=agent, **where)
    await read(handle)
    await handle.cancel()
    result, chunks = await finished(handle)
    assert result.status == "cancelled"
    assert [chunk["type"] for chunk in chunks] == ["tool-result", "abort", "finish"]
    await system.run(agent=agent, **where)
    assert "echo hi" in str(system.requests(model)[1]["messages"])


async def test_cancelling_closes_the_connection_to_the_provider_and_keeps_what_came(system):
    cancelled = system.models.stats.cancelled
    handle = await system.start({"chunks": ["a"] * 2000, "chunk_delay_ms": 20})
    seen = 0
    async for chunk in handle:
        if chunk["type"] == "text-delta" and (seen := seen + 1) == 2:
            await handle.cancel()
    result, _ = await finished(handle)
    assert (result.status, result.finish_reason) == ("cancelled", "aborted")
    assert result.messages[-1]["role"] == "assistant"
    await until(lambda: system.models.stats.cancelled == cancelled + 1)


async def test_cancelling_while_the_provider_thinks_closes_the_connection(system):
    cancelled, asked = system.models.stats.cancelled, system.models.stats.requests
    handle = await system.start(
        {"chunks": ["late"], "delay_ms": 30_000}, agent={"outputProcessors": ["upper"]}
    )
    await until(lambda: system.models.stats.requests == asked + 1)
    await handle.cancel()
    result, _ = await finished(handle)
    assert result.status == "cancelled"
    await until(lambda: system.models.stats.cancelled == cancelled + 1)


@pytest.mark.parametrize("chain", [[], ["upper"]])
async def test_no_step_goes_on_whose_tools_were_running_when_the_run_was_cancelled(system, chain):
    """R-CX-2: what they gave counts, and nothing follows it, whoever sends it to the client."""
    gate = system.gate()
    call = {"tool_calls": [{"id": "c1", "name": "gated", "arguments": {}}]}
    agent = {"tools": [{"id": "gated", "options": gate.options}], "outputProcessors": chain}
    connection = await nats.connect(system.servers.nats_url)
    told = await connection.subscribe(subjects.cancelled(system.client.tenant, "*"))
    await connection.flush()
    handle = await system.start(call, DONE, agent=agent)
    await gate.reached()
    await handle.cancel()
    await told.next_msg(10)
    await gate.open()
    result, chunks = await finished(handle)
    await connection.close()
    kinds = [chunk["type"] for chunk in chunks]
    assert result.status == "cancelled"
    assert kinds[kinds.index("tool-result") :] == ["tool-result", "abort", "finish"]


async def test_a_run_that_was_cancelled_before_it_was_asked_for_calls_no_model(system):
    await system.client.cancel("early-bird")
    control = await system.redis.hget(f"procession:{system.client.tenant}:run:early-bird", "cancelled")
    while control is None:
        control = await system.redis.hget(f"procession:{system.client.tenant}:run:early-bird", "cancelled")
    model = system.script(HELLO)
    result, _ = await system.run(agent={"model": model}, run_id="early-bird")
    assert result.status == "cancelled"
    assert system.requests(model) == []


async def test_a_run_ends_at_its_deadline(system):
    cancelled, asked = system.models.stats.cancelled, system.models.stats.requests
    handle = await system.start({"chunks": ["late"], "delay_ms": 30_000}, timeout=6)
    await until(lambda: system.models.stats.requests == asked + 1)
    result, chunks = await finished(handle)
    assert (result.status, result.error.code) == ("failed", "DEADLINE_EXCEEDED")
    assert chunks[-1]["type"] == "error"
    await until(lambda: system.models.stats.cancelled == cancelled + 1)


async def test_a_person_may_take_longer_than_the_run(system):
    call = {"tool_calls": [{"id": "c1", "name": "send-mail", "arguments": {"to": "ann"}}]}
    handle = await system.start(call, DONE, agent={"tools": ["send-mail"]}, timeout=6)
    assert (await read(handle))[0].status == "suspended"
    other, _ = await system.run({"chunks": ["late"], "delay_ms": 30_000}, timeout=6)
    assert other.error.code == "DEADLINE_EXCEEDED"
    await handle.approve("c1")
    result, _ = await finished(handle)
    assert (result.status, result.text) == ("finished", "done")


async def test_the_same_request_again_is_the_same_run(system):
    model = system.script(HELLO)
    first, chunks = await system.run(agent={"model": model}, run_id="again")
    second, repeated = await system.run(agent={"model": model}, run_id="again")
    assert second == first
    assert repeated == chunks
    assert len(system.requests(model)) == 1


async def test_another_request_under_the_id_of_a_run_is_rejected(system):
    gate = system.gate()
    agent = {"model": system.script(HELLO), "inputProcessors": [gate.processor("processInput")]}
    handle = await system.start(text="one", agent=agent, run_id="taken")
    await gate.reached()
    with pytest.raises(RunConflictError) as raised:
        await system.run(text="two", agent=agent, run_id="taken")
    assert (raised.value.failure.code, raised.value.failure.field) == ("RUN_ID_CONFLICT", "runId")
    await gate.open()
    result, _ = await finished(handle)
    assert (result.status, result.messages[0]["content"]["parts"][0]["text"]) == ("finished", "one")


async def test_somebody_who_comes_late_gets_the_chunks_and_the_result(system):
    result, chunks = await system.run(HELLO)
    late = await system.client.attach(result.run_id)
    assert await finished(late) == (result, chunks)


async def test_the_result_can_be_asked_for_after_the_handle_was_closed(system):
    gate = system.gate()
    handle = await system.start(HELLO, agent={"inputProcessors": [gate.processor("processInput")]})
    await gate.reached()
    await handle.close()
    await gate.open()
    result = await handle.result(timeout=20)
    assert result.text == "Hello you"


async def read(handle):
    """The chunks up to the end or a suspension, and the result."""
    async with asyncio.timeout(10):
        return await handle.result(), [chunk async for chunk in handle]
