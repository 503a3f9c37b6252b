"""Tool calls from a response to their outcomes: order, concurrency, failures, approval, redelivery."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from procession.args import RequestContext
from procession.errors import ProcessorError, TripWire
from procession.tools import Tool, ToolContext, tool
from procession_schemas.agent import ProcessorRef, ToolRef
from procession_schemas.work import StepFacts, ToolsOp
from procession_services.processor_host.errors import Cancelled, Suspended
from procession_services.tools import execution
from procession_services.tools.execute import CONCURRENCY, run_tools
from procession_services.tools.execution import Executions
from tests.support.raising import RAISED, panics
from tests.unit.procession_services.tools.jobs import FakeJob, call

OP = ToolsOp()


@tool
async def echo(x: int) -> dict[str, int]:
    """Returns its input."""
    return {"x": x}


async def run(job: FakeJob, op: ToolsOp = OP, executions: Executions | None = None) -> list[dict[str, Any]]:
    await run_tools(op, job, executions or Executions())
    return job.outcomes


async def result_of(function: Callable[..., Any], /, **args: Any) -> Any:
    made = tool(function)
    return (await run(FakeJob([made], [call("c1", made.id, **args)])))[0]["result"]


async def error_of(function: Callable[..., Any], /, **args: Any) -> dict[str, str]:
    made = tool(function)
    error: dict[str, str] = (await run(FakeJob([made], [call("c1", made.id, **args)])))[0]["error"]
    return error


# --- outcomes -----------------------------------------------------------------------------------


async def test_the_outcome_of_a_call_tells_the_call_and_its_result() -> None:
    job = FakeJob([echo], [call("c1", "echo", x=1)])
    assert await run(job) == [{"toolCallId": "c1", "toolName": "echo", "args": {"x": 1}, "result": {"x": 1}}]
    assert job.result.facts == StepFacts(outcomes=1)
    assert not job.opened, "a round that writes nothing opens no way to the client"


async def test_facts_that_are_known_already_are_kept() -> None:
    job = FakeJob([echo], [call("c1", "echo", x=1)])
    job.result.facts = StepFacts(finish_reason="tool-calls", tool_calls=1)
    await run(job)
    assert job.result.facts == StepFacts(finish_reason="tool-calls", tool_calls=1, outcomes=1)


async def test_a_response_without_local_calls_has_no_outcomes() -> None:
    job = FakeJob([echo], [{**call("c1", "search"), "providerExecuted": True}])
    assert await run(job) == []
    job.ctx.response = None
    assert await run(job) == []


async def test_outcomes_come_in_call_order_whatever_ends_first() -> None:
    ended: list[int] = []
    last = asyncio.Event()

    @tool
    async def turn(n: int) -> int:
        """Waits for the call after it."""
        if n < 2:
            await last.wait()
        ended.append(n)
        last.set()
        return n

    outcomes = await run(FakeJob([turn], [call(f"c{n}", "turn", n=n) for n in range(3)]))
    assert ended[0] == 2
    assert [(o["toolCallId"], o["result"]) for o in outcomes] == [("c0", 0), ("c1", 1), ("c2", 2)]


async def test_failures_and_successes_share_one_order() -> None:
    calls = [call("c1", "nope"), call("c2", "echo", x=2), call("c3", "echo", x="no"), call("c4", "echo", x=4)]
    outcomes = await run(FakeJob([echo], calls))
    assert [o["toolCallId"] for o in outcomes] == ["c1", "c2", "c3", "c4"]
    assert ["error" in o for o in outcomes] == [True, False, True, False]


async def test_a_tool_gets_all_that_belongs_to_its_call() -> None:
    seen: list[tuple[Any, ToolContext]] = []

    @tool
    async def look(a: list[int], context: ToolContext) -> None:
        """Keeps what it is told."""
        seen.append((a, context))
        context.request_context["seen"] = True

    job = FakeJob([look], [call("c1", "look", a=[1])])
    job.ctx.request_context = RequestContext(user="u1")
    job.ctx.tracing_context = {"currentSpan": "s"}
    job.ctx.messages.add("hello", "input")
    outcomes = await run(job)
    context = seen[0][1]
    assert (context.tool_call_id, context.tool_name) == ("c1", "look")
    assert (context.run_id, context.tenant) == ("run-1", "acme")
    assert context.request_context is job.ctx.request_context
    assert job.ctx.request_context == {"user": "u1", "seen": True}
    assert context.tracing_context == {"currentSpan": "s"}
    assert [m["role"] for m in context.messages] == ["user"]
    assert context.resume_data is None
    assert outcomes[0]["result"] is None


async def test_a_tool_that_changes_its_arguments_does_not_change_the_record() -> None:
    class Eat(Tool):
        id = "eat"

        async def execute(self, args: Any, context: ToolContext) -> int:
            return int(args["a"].pop())

    job = FakeJob([Eat], [call("c1", "eat", a=[1])])
    assert (await run(job))[0] == {"toolCallId": "c1", "toolName": "eat", "args": {"a": [1]}, "result": 1}
    assert job.ctx.response
    assert job.ctx.response["toolCalls"][0]["args"] == {"a": [1]}


async def test_the_name_in_the_agent_is_the_name_of_the_tool() -> None:
    names: list[str] = []

    @tool
    async def look(context: ToolContext) -> None:
        """Keeps its name."""
        names.append(context.tool_name)

    job = FakeJob([look], [call("c1", "spy")], refs=[ToolRef.checked({"id": "look", "as": "spy"})])
    assert (await run(job))[0]["toolName"] == "spy"
    assert names == ["spy"]


async def test_an_inactive_tool_is_an_unknown_one() -> None:
    job = FakeJob([echo, tool(id="other")(lambda: None)], [call("c1", "echo", x=1)], active=["other"])
    error = (await run(job))[0]["error"]
    assert error["name"] == "ToolNotFoundError"
    assert "Available tools: other." in error["message"]


async def test_the_schema_of_the_agent_overrides_the_tool_s_own() -> None:
    strict = {"type": "object", "properties": {"x": {"type": "integer", "maximum": 3}}}
    job = FakeJob([echo], [call("c1", "echo", x=4)], refs=[ToolRef(id="echo", parameters=strict)])
    assert "- x: 4 is greater than the maximum of 3" in (await run(job))[0]["error"]["message"]


async def test_a_tool_that_is_not_installed_or_wrongly_configured_says_so_when_called() -> None:
    refs = [ToolRef(id="ehco"), ToolRef.checked({"id": "echo", "options": {"color": 1}})]
    job = FakeJob([echo], [call("c1", "ehco"), call("c2", "echo", x=1)], refs=refs)
    first, second = [o["error"] for o in await run(job)]
    assert first["name"] == second["name"] == "ToolUnavailableError"
    assert "unknown tool 'ehco'" in first["message"]
    assert "color: Extra inputs are not permitted" in second["message"]


async def test_one_instance_serves_all_runs() -> None:
    class Counted(Tool):
        id = "counted"
        made = 0

        def __init__(self, options: dict[str, Any] | None = None) -> None:
            super().__init__(options)
            Counted.made += 1

        def execute(self, args: Any, context: ToolContext) -> int:
            return Counted.made

    assert [(await run(FakeJob([Counted], [call("c1", "counted")])))[0]["result"] for _ in range(3)] == [
        1,
        1,
        1,
    ]


# --- results ------------------------------------------------------------------------------------


async def test_results_become_json() -> None:
    class Point(BaseModel):
        x: int
        on: date

    @dataclass
    class Pair:
        left: Point
        right: set[int]

    async def pair() -> Pair:
        return Pair(Point(x=1, on=date(2026, 1, 2)), {3})

    assert await result_of(pair) == {"left": {"x": 1, "on": "2026-01-02"}, "right": [3]}

    async def odd() -> dict[int, float]:
        return {1: float("nan")}

    assert await result_of(odd) == {"1": None}

    async def nothing() -> None:
        pass

    assert await result_of(nothing) is None


@pytest.mark.parametrize("value", [object(), b"\xff", 2**70, "\ud800", {"deep": [object()]}])
async def test_a_result_without_json_form_is_a_tool_error(value: object) -> None:
    async def odd() -> object:
        return value

    error = await error_of(odd)
    assert error["name"] == "ToolResultError"
    assert "The result of the tool 'odd' has no JSON form" in error["message"]


async def test_the_model_can_be_shown_less_than_the_result() -> None:
    class Lookup(Tool):
        id = "lookup"

        async def execute(self, args: Any, context: ToolContext) -> dict[str, str]:
            return {"name": "Ada", "ssn": "1"}

        def model_output(self, result: Any) -> Any:
            return result["name"]

    outcome = (await run(FakeJob([Lookup], [call("c1", "lookup")])))[0]
    assert (outcome["result"], outcome["modelOutput"]) == ({"name": "Ada", "ssn": "1"}, "Ada")

    class Broken(Lookup):
        id = "broken"

        def model_output(self, result: Any) -> Any:
            raise KeyError("name")

    outcome = (await run(FakeJob([Broken], [call("c1", "broken")])))[0]
    assert "result" not in outcome, "nothing is shown that the tool meant to cut"
    assert outcome["error"]["name"] == "KeyError"


# --- failures -----------------------------------------------------------------------------------


async def test_what_a_tool_raises_is_its_outcome_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    async def fails() -> None:
        """Fails."""
        raise LookupError("secret: no such customer")

    with caplog.at_level(logging.WARNING, "procession_services.tools"):
        first, second = await run(FakeJob([fails, echo], [call("c1", "fails"), call("c2", "echo", x=2)]))
    assert first["error"] == {"name": "LookupError", "message": "secret: no such customer"}
    assert second["result"] == {"x": 2}
    assert "LookupError" in caplog.text
    assert "test_execute.py" in caplog.text
    assert "secret" not in caplog.text, "logs say where, not what"


@pytest.mark.parametrize("kind", [StopIteration, ValueError, *RAISED])
@pytest.mark.parametrize("plain", [True, False])
async def test_no_exception_of_a_tool_ends_the_service(
    kind: Callable[[], BaseException], plain: bool
) -> None:
    def sync() -> None:
        raise kind()

    async def coroutine() -> None:
        raise kind()

    error = await error_of(sync if plain else coroutine)
    assert error["message"]


async def test_whatever_the_constructor_of_a_tool_raises_is_the_outcome_of_its_calls() -> None:
    class Built(Tool):
        id = "built"
        __init__ = panics

    outcome = (await run(FakeJob([Built], [call("c1", "built")])))[0]
    assert "PanicException" in outcome["error"]["message"]


async def test_a_tripwire_of_a_tool_is_not_swallowed() -> None:
    @tool
    async def trips() -> None:
        """Blocks."""
        raise TripWire("stop")

    with pytest.raises(TripWire, match="stop") as caught:
        await run(FakeJob([trips], [call("c1", "trips")]))
    assert caught.value.processor_id == "trips"


async def test_what_a_tool_decides_in_a_task_group_is_a_decision() -> None:
    async def decide(context: ToolContext, what: str) -> None:
        if what == "stop":
            raise TripWire(what)
        context.suspend(what)

    @tool(resume_schema={})
    async def asks(what: str, context: ToolContext) -> None:
        """Decides in a task."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(decide(context, what))

    with pytest.raises(TripWire, match="stop"):
        await run(FakeJob([asks], [call("c1", "asks", what="stop")]))
    [entry] = await suspended_by(FakeJob([asks], [call("c1", "asks", what="where to?")]))
    assert entry["suspendPayload"] == "where to?"


async def test_a_tripwire_of_a_tool_lets_running_calls_end_and_begins_no_other() -> None:
    begun: list[int] = []
    together = asyncio.Event()

    @tool
    async def work(n: int, context: ToolContext) -> None:
        """The first blocks when the tenth has begun."""
        begun.append(n)
        if n == CONCURRENCY - 1:
            together.set()
        await together.wait()
        if n == 0:
            raise TripWire("stop")
        told = asyncio.Event()
        context.abort_signal.on_abort(told.set)
        await told.wait()
        begun.append(-n)

    job = FakeJob([work], [call(f"c{n}", "work", n=n) for n in range(CONCURRENCY + 5)])
    with pytest.raises(TripWire, match="stop"):
        await run(job)
    assert begun[:CONCURRENCY] == list(range(CONCURRENCY))
    assert sorted(begun[CONCURRENCY:]) == [-n for n in range(CONCURRENCY - 1, 0, -1)]


async def test_a_call_that_takes_too_long_is_told_to_stop_and_fails() -> None:
    signals: list[bool] = []
    contexts: list[ToolContext] = []

    @tool
    async def slow(context: ToolContext) -> None:
        """Waits for ever."""
        contexts.append(context)
        context.abort_signal.on_abort(lambda: signals.append(True))
        await asyncio.Event().wait()

    job = FakeJob([slow, echo], [call("c1", "slow"), call("c2", "echo", x=1)], refs=[
        ToolRef(id="slow", timeout=0.02), ToolRef(id="echo"),
    ])  # fmt: skip
    first, second = await run(job)
    assert first["error"] == {
        "name": "ToolTimeoutError",
        "message": "The tool 'slow' gave no result within 0.02 s.",
    }
    assert signals == [True]
    assert second["result"] == {"x": 1}
    assert not job.abort_signal.aborted, "one slow call does not cancel the run"


async def test_a_plain_function_that_takes_too_long_does_not_hold_the_run() -> None:
    release = threading.Event()

    @tool
    def slow() -> None:
        """Waits in its thread."""
        release.wait(10)

    outcomes = await run(FakeJob([slow], [call("c1", "slow")], refs=[ToolRef(id="slow", timeout=0.02)]))
    release.set()
    assert outcomes[0]["error"]["name"] == "ToolTimeoutError"


async def test_one_that_catches_its_cancellation_does_not_hold_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("procession.awaiting._LEFT_SECONDS", 0.05)
    over = asyncio.Event()

    @tool
    async def deaf() -> None:
        """Stays."""
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()

    async with asyncio.timeout(10):
        outcomes = await run(FakeJob([deaf], [call("c1", "deaf")], refs=[ToolRef(id="deaf", timeout=0.02)]))
    over.set()
    assert outcomes[0]["error"]["name"] == "ToolTimeoutError"


async def test_plain_functions_that_never_return_keep_no_other_call_waiting() -> None:
    release = threading.Event()

    @tool
    def stuck() -> None:
        """Waits in its thread."""
        release.wait(30)

    refs = [ToolRef(id="stuck", timeout=0.01)]
    for _ in range(20):
        await run(FakeJob([stuck], [call(f"c{n}", "stuck") for n in range(10)], refs=refs))

    @tool
    def quick() -> str:
        """Answers."""
        return "done"

    outcomes = await run(FakeJob([quick], [call("c1", "quick")]))
    assert outcomes[0]["result"] == "done"
    release.set()


async def test_what_a_generator_yields_is_the_result() -> None:
    def counts(n: int) -> Iterator[int]:
        """Yields."""
        yield from range(n)

    async def counts_too(n: int) -> AsyncIterator[int]:
        """Yields, and waits."""
        for each in range(n):
            await asyncio.sleep(0)
            yield each

    assert await result_of(counts, n=3) == [0, 1, 2]
    assert await result_of(counts_too, n=3) == [0, 1, 2]


async def test_a_generator_runs_where_its_tool_does() -> None:
    """Its code ran in the event loop, when its result was made: no other tool went on, and no limit held."""
    release = threading.Event()

    def reads() -> Iterator[int]:
        """Waits in its thread."""
        release.wait(30)
        yield 1

    async def listens() -> AsyncIterator[int]:
        """Waits for ever."""
        await asyncio.Event().wait()
        yield 1

    made = [tool(reads), tool(listens)]
    refs = [ToolRef(id="reads", timeout=0.02), ToolRef(id="listens", timeout=0.02)]
    outcomes = await run(FakeJob(made, [call("c1", "reads"), call("c2", "listens")], refs=refs))
    assert [outcome["error"]["name"] for outcome in outcomes] == ["ToolTimeoutError"] * 2
    release.set()


async def test_what_a_generator_raises_is_its_own_error() -> None:
    def fails() -> Iterator[int]:
        """Raises."""
        yield 1
        raise ValueError("no more")

    assert await error_of(fails) == {"name": "ValueError", "message": "no more"}


async def test_a_timeout_of_the_tool_s_own_stays_its_own() -> None:
    @tool
    async def asks() -> None:
        """Times out inside."""
        raise TimeoutError("upstream is slow")

    outcomes = await run(FakeJob([asks], [call("c1", "asks")], refs=[ToolRef(id="asks", timeout=5)]))
    assert outcomes[0]["error"] == {"name": "TimeoutError", "message": "upstream is slow"}


# --- concurrency --------------------------------------------------------------------------------


def _meeting(size: int) -> tuple[type[Tool], list[int]]:
    """A tool whose calls end only when `size` of them run at once, and how many ran at each beginning."""
    running = 0
    counts: list[int] = []
    full = asyncio.Event()

    @tool
    async def meet() -> None:
        """Waits for the others."""
        nonlocal running
        running += 1
        counts.append(running)
        if running == size:
            full.set()
        await full.wait()
        running -= 1

    return meet, counts


async def test_ten_calls_run_at_once_and_no_more() -> None:
    meet, counts = _meeting(CONCURRENCY)
    await run(FakeJob([meet], [call(f"c{n}", "meet") for n in range(25)]))
    assert max(counts) == CONCURRENCY == 10
    assert len(counts) == 25


def _crossing() -> tuple[type[Tool], list[int]]:
    """A tool that gives way to others in the middle, and how many of its calls ran at each beginning."""
    running = 0
    counts: list[int] = []

    @tool
    async def cross() -> None:
        """Lets others pass."""
        nonlocal running
        running += 1
        counts.append(running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1

    return cross, counts


class _Waits(Tool):
    id = "waits"
    resume_schema: dict[str, Any] | None = {}  # noqa: RUF012 - as authors write it


class _Ruled(Tool):
    id = "ruled"

    def needs_approval(self, args: Any, context: RequestContext) -> bool:
        return False


@pytest.mark.parametrize(
    ("op", "other"),
    [
        (ToolsOp(), [_Waits]),
        (ToolsOp(), [_Ruled]),
        (ToolsOp(), [tool(id="careful", require_approval=True)(lambda: None)]),
        (ToolsOp(require_approval=True, decisions={f"c{n}": {"approved": True} for n in range(3)}), []),
    ],
)
async def test_calls_run_one_by_one_when_a_tool_of_the_step_may_wait(
    op: ToolsOp, other: list[type[Tool]]
) -> None:
    cross, counts = _crossing()
    await run(FakeJob([cross, *other], [call(f"c{n}", "cross") for n in range(3)]), op)
    assert counts == [1, 1, 1]


async def test_a_tool_that_may_wait_but_is_hidden_slows_nobody() -> None:
    meet, counts = _meeting(3)
    await run(FakeJob([meet, _Waits], [call(f"c{n}", "meet") for n in range(3)], active=["meet"]))
    assert max(counts) == 3


async def test_plain_functions_run_in_threads_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=10)
    threads: list[threading.Thread] = []

    @tool
    def meet() -> None:
        """Waits for the other."""
        threads.append(threading.current_thread())
        both.wait()

    outcomes = await run(FakeJob([meet], [call("c1", "meet"), call("c2", "meet")]))
    assert all("result" in outcome for outcome in outcomes)
    assert len(set(threads)) == 2
    assert threading.main_thread() not in threads


async def test_a_plain_function_does_not_block_the_event_loop() -> None:
    release = threading.Event()

    @tool
    def slow() -> str:
        """Waits for the event loop."""
        return "released" if release.wait(10) else "the loop was blocked"

    async def turn_the_loop() -> None:
        await asyncio.sleep(0)
        release.set()

    job = FakeJob([slow], [call("c1", "slow")])
    await asyncio.gather(run(job), turn_the_loop())
    assert job.outcomes[0]["result"] == "released"


async def test_a_class_may_return_an_awaitable_from_a_plain_method() -> None:
    class Later(Tool):
        id = "later"

        def execute(self, args: Any, context: ToolContext) -> Awaitable[str]:
            async def answer() -> str:
                return "later"

            return answer()

    assert (await run(FakeJob([Later], [call("c1", "later")])))[0]["result"] == "later"


# --- writer -------------------------------------------------------------------------------------


async def test_chunks_go_out_at_once_and_in_the_order_of_writing() -> None:
    seen_by_tool: list[int] = []
    job: FakeJob

    @tool
    async def emit(context: ToolContext) -> str:
        """Writes."""
        await context.writer.custom({"type": "data-progress", "data": {"pct": 50}, "transient": True})
        seen_by_tool.append(len(job.sent))
        await context.writer.write({"line": 1})
        seen_by_tool.append(len(job.sent))
        return "ok"

    processors = [ProcessorRef(id="o")]
    job = FakeJob([emit], [call("c1", "emit")])
    await run(job, ToolsOp(processors=processors))
    assert job.sent == [
        {"type": "data-progress", "data": {"pct": 50}, "transient": True},
        {
            "type": "tool-output",
            "from": "USER",
            "payload": {"output": {"line": 1}, "toolCallId": "c1", "toolName": "emit"},
        },
    ]
    assert seen_by_tool == [1, 2]
    assert job.opened == [processors]


@pytest.mark.parametrize(
    ("chunk", "told"),
    [
        ({"type": "tool-result", "payload": {}}, "'tool-result' belongs to the runtime"),
        ({"type": "progress"}, "'progress' is not `data-...`"),
        ({"data": 1}, "needs a `type`"),
        ({"type": "data-x", "data": object()}, "must have a JSON form"),
    ],
)
async def test_a_wrong_chunk_is_refused(chunk: dict[str, Any], told: str) -> None:
    async def emit(context: ToolContext) -> None:
        await context.writer.custom(chunk)

    error = await error_of(emit)
    assert error["name"] == "ValueError"
    assert told in error["message"]


async def test_output_without_json_form_is_refused() -> None:
    async def emit(context: ToolContext) -> None:
        await context.writer.write(object())

    assert "must have a JSON form" in (await error_of(emit))["message"]


async def test_nothing_follows_the_outcome_of_a_call() -> None:
    contexts: list[ToolContext] = []

    @tool
    async def leak(context: ToolContext) -> None:
        """Keeps its writer."""
        contexts.append(context)

    job = FakeJob([leak], [call("c1", "leak")])
    await run(job)
    with pytest.raises(ValueError, match="call c1 has ended"):
        await contexts[0].writer.write("late")
    assert job.sent == []


@pytest.mark.parametrize("failure", [TripWire("no"), ProcessorError("no", processor_id="p", hook="h")])
async def test_a_processor_that_stops_a_chunk_stops_the_calls(failure: Exception) -> None:
    begun: list[int] = []
    told: list[bool] = []

    class Emit(Tool):
        id = "emit"
        resume_schema: dict[str, Any] | None = {}  # noqa: RUF012 - as authors write it

        async def execute(self, args: Any, context: ToolContext) -> None:
            begun.append(1)
            context.abort_signal.on_abort(lambda: told.append(True))
            await context.writer.write("x")

    job = FakeJob([Emit], [call("c1", "emit"), call("c2", "emit")], fail=failure)
    with pytest.raises(type(failure), match="no"):
        await run(job)
    assert (begun, told) == ([1], [True])
    assert job.outcomes == []


# --- approval and suspension ----------------------------------------------------------------------


def _noting() -> tuple[type[Tool], list[int]]:
    ran: list[int] = []

    @tool(require_approval=True)
    async def pay(amount: int) -> str:
        """Pays."""
        ran.append(amount)
        return f"paid {amount}"

    return pay, ran


async def suspended_by(job: FakeJob, op: ToolsOp = OP) -> list[dict[str, Any]]:
    with pytest.raises(Suspended) as caught:
        await run(job, op)
    return caught.value.entries


async def test_a_call_that_needs_approval_waits_after_the_calls_before_it() -> None:
    pay, ran = _noting()
    job = FakeJob(
        [pay, echo], [call("c1", "echo", x=1), call("c2", "pay", amount=5), call("c3", "echo", x=3)]
    )
    entries = await suspended_by(job)
    assert [{k: v for k, v in e.items() if k != "resumeSchema"} for e in entries] == [
        {"toolCallId": "c2", "toolName": "pay", "args": {"amount": 5}, "kind": "approval"}
    ]
    assert entries[0]["resumeSchema"]["required"] == ["approved"]
    assert [o["toolCallId"] for o in job.outcomes] == ["c1"]
    assert ran == []


async def test_an_approved_call_runs_and_nothing_runs_twice() -> None:
    pay, ran = _noting()
    echoed: list[int] = []

    @tool(id="echo")
    async def count(x: int) -> int:
        """Counts."""
        echoed.append(x)
        return x

    calls = [call("c1", "echo", x=1), call("c2", "pay", amount=5), call("c3", "echo", x=3)]
    first = FakeJob([pay, count], calls)
    await suspended_by(first)
    second = FakeJob([pay, count], calls, seq=2)
    second.ctx.outcomes = first.outcomes
    await run(second, ToolsOp(decisions={"c2": {"approved": True}}))
    assert [o["result"] for o in second.outcomes] == [1, "paid 5", 3]
    assert (echoed, ran) == ([1, 3], [5])
    assert second.result.facts
    assert second.result.facts.outcomes == 3


async def test_a_declined_call_is_denied_with_the_reason() -> None:
    pay, ran = _noting()
    calls = [call("c1", "pay", amount=1), call("c2", "pay", amount=2)]
    decisions: dict[str, dict[str, Any]] = {
        "c1": {"approved": False, "reason": "too much"},
        "c2": {"approved": False},
    }
    first, second = await run(FakeJob([pay], calls), ToolsOp(decisions=decisions))
    assert first["denied"] == {
        "reason": "too much",
        "approval": {"id": "c1", "approved": False, "reason": "too much"},
    }
    assert second["denied"] == {
        "reason": "A person declined this tool call.",
        "approval": {"id": "c2", "approved": False},
    }
    assert ran == []


async def test_each_call_waits_for_its_own_approval() -> None:
    pay, ran = _noting()
    job = FakeJob([pay], [call("c1", "pay", amount=1), call("c2", "pay", amount=2)])
    entries = await suspended_by(job, ToolsOp(decisions={"c1": {"approved": True}}))
    assert [e["toolCallId"] for e in entries] == ["c2"]
    assert ran == [1]


async def test_a_call_with_wrong_arguments_bothers_nobody() -> None:
    pay, _ = _noting()
    outcomes = await run(FakeJob([pay], [call("c1", "pay", amount="much")]))
    assert outcomes[0]["error"]["name"] == "InvalidArgumentsError"


async def test_a_request_may_ask_for_the_approval_of_every_call() -> None:
    entries = await suspended_by(FakeJob([echo], [call("c1", "echo", x=1)]), ToolsOp(require_approval=True))
    assert [e["kind"] for e in entries] == ["approval"]


async def test_the_agent_says_yes_or_no_over_the_tool() -> None:
    pay, ran = _noting()
    free = FakeJob([pay], [call("c1", "pay", amount=1)], refs=[ToolRef(id="pay", require_approval=False)])
    await run(free)
    assert ran == [1]
    careful = FakeJob([echo], [call("c1", "echo", x=1)], refs=[ToolRef(id="echo", require_approval=True)])
    assert await suspended_by(careful)


async def test_the_agent_says_yes_or_no_over_the_rule_of_a_tool() -> None:
    class Always(Tool):
        id = "always"

        def needs_approval(self, args: Any, context: RequestContext) -> bool:
            return True

        async def execute(self, args: Any, context: ToolContext) -> str:
            return "ran"

    class Never(Always):
        id = "never"

        def needs_approval(self, args: Any, context: RequestContext) -> bool:
            return False

    calls = [call("c1", "always"), call("c2", "never")]
    refs = [ToolRef(id="always", require_approval=False), ToolRef(id="never", require_approval=True)]
    job = FakeJob([Always, Never], calls, refs=refs)
    assert [e["toolCallId"] for e in await suspended_by(job)] == ["c2"]
    assert [o["toolCallId"] for o in job.outcomes] == ["c1"]


@pytest.mark.parametrize("coroutine", [True, False])
async def test_a_rule_decides_call_by_call_and_over_the_request(coroutine: bool) -> None:
    class Pay(Tool):
        id = "pay"

        def needs_approval(self, args: Any, context: RequestContext) -> Any:
            async def later() -> bool:
                return bool(args["amount"] > context["limit"])

            return later() if coroutine else args["amount"] > context["limit"]

        async def execute(self, args: Any, context: ToolContext) -> str:
            return "paid"

    job = FakeJob([Pay], [call("c1", "pay", amount=1), call("c2", "pay", amount=100)])
    job.ctx.request_context["limit"] = 10
    entries = await suspended_by(job, ToolsOp(require_approval=True))
    assert [e["toolCallId"] for e in entries] == ["c2"]
    assert [o["toolCallId"] for o in job.outcomes] == ["c1"]


@pytest.mark.parametrize("kind", [KeyError, *RAISED])
async def test_a_rule_that_raises_means_yes(
    kind: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    class Pay(Tool):
        id = "pay"

        def needs_approval(self, args: Any, context: RequestContext) -> bool:
            raise kind()

    with caplog.at_level(logging.WARNING, "procession_services.tools"):
        assert await suspended_by(FakeJob([Pay], [call("c1", "pay")]))
    assert f"the approval rule of tool pay raised {type(kind()).__name__} at " in caplog.text
    assert "test_execute.py" in caplog.text


async def test_a_tool_suspends_itself_and_runs_again_with_data() -> None:
    seen: list[Any] = []
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

    @tool(resume_schema=schema)
    async def travel(context: ToolContext) -> str:
        """Asks for a city."""
        seen.append(context.resume_data)
        if context.resume_data is None:
            context.suspend({"question": "Where to?", "on": date(2026, 1, 2)})
        return f"to {context.resume_data['city']}"

    calls = [call("c1", "travel")]
    first = FakeJob([travel], calls)
    entries = await suspended_by(first)
    assert entries == [
        {
            "toolCallId": "c1",
            "toolName": "travel",
            "args": {},
            "kind": "suspended",
            "suspendPayload": {"question": "Where to?", "on": "2026-01-02"},
            "resumeSchema": schema,
        }
    ]
    outcomes = await run(
        FakeJob([travel], calls, seq=2), ToolsOp(decisions={"c1": {"resumeData": {"city": "Paris"}}})
    )
    assert outcomes[0]["result"] == "to Paris"
    assert seen == [None, {"city": "Paris"}]

    outcomes = await run(
        FakeJob([travel], calls, seq=3), ToolsOp(decisions={"c1": {"resumeData": {"city": 7}}})
    )
    assert "The resume data do not fit the tool 'travel':\n- city: 7 is not of type 'string'" in str(
        outcomes[0]["error"]["message"]
    )


async def test_a_suspension_must_be_declared_and_told_in_json() -> None:
    async def sly(context: ToolContext) -> None:
        context.suspend()

    assert "must declare a `resume_schema`" in (await error_of(sly))["message"]

    @tool(resume_schema={})
    async def odd(context: ToolContext) -> None:
        """Suspends with something odd."""
        context.suspend(object())

    outcomes = await run(FakeJob([odd], [call("c1", "odd")]))
    assert outcomes[0]["error"]["name"] == "ToolResultError"


async def test_a_client_side_call_has_no_outcome() -> None:
    class Here(Tool):
        id = "here"
        client_side = True

    job = FakeJob([Here, echo], [call("c1", "here"), call("c2", "echo", x=1)])
    assert [o["toolCallId"] for o in await run(job)] == ["c2"]
    assert job.result.facts
    assert job.result.facts.outcomes == 1


# --- cancellation ---------------------------------------------------------------------------------


async def test_a_running_tool_may_end_and_counts_and_no_further_call_begins() -> None:
    running = asyncio.Event()
    begun: list[int] = []

    @tool(resume_schema={})
    async def work(n: int, context: ToolContext) -> bool:
        """Ends when it is told to."""
        begun.append(n)
        cancelled = asyncio.Event()
        context.abort_signal.on_abort(cancelled.set)
        running.set()
        await cancelled.wait()
        return context.abort_signal.aborted

    job = FakeJob([work], [call("c1", "work", n=1), call("c2", "work", n=2), call("c3", "nope")])

    async def cancel() -> None:
        await running.wait()
        job.abort_signal.abort()

    await asyncio.gather(run(job), cancel())
    assert begun == [1]
    assert [(o["toolCallId"], "error" in o) for o in job.outcomes] == [("c1", False), ("c3", True)]
    assert job.outcomes[0]["result"] is True


async def test_a_cancelled_run_waits_for_nobody() -> None:
    job: FakeJob

    @tool(resume_schema={})
    async def ask(context: ToolContext) -> None:
        """Asks just when the run is cancelled."""
        job.abort_signal.abort()
        context.suspend()

    job = FakeJob([ask, echo], [call("c1", "echo", x=1), call("c2", "ask")])
    assert [o["toolCallId"] for o in await run(job)] == ["c1"]


async def test_a_run_that_is_cancelled_already_begins_no_call() -> None:
    job = FakeJob([echo], [call("c1", "echo", x=1)])
    job.abort_signal.abort()
    assert await run(job) == []


@pytest.mark.parametrize("by_delivery", [True, False])
async def test_a_call_that_does_not_end_is_cancelled_some_time_after_its_run(
    monkeypatch: pytest.MonkeyPatch, by_delivery: bool
) -> None:
    """Else it went on, and was remembered, until its process ended."""
    monkeypatch.setattr(execution, "LEAVE_SECONDS", 0.01)
    begun, left = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> None:
        """Waits for what never comes."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    executions, job = Executions(), FakeJob([hang], [call("c1", "hang")])
    delivery = asyncio.create_task(run(job, executions=executions))
    async with asyncio.timeout(10):
        await begun.wait()
        if by_delivery:
            job.abort_signal.abort()
            with pytest.raises(Cancelled):
                await delivery
        else:
            delivery.cancel()
            await asyncio.gather(delivery, return_exceptions=True)
            executions.cancel(job.command.tenant, job.command.run)
        await left.wait()
    with pytest.raises(Cancelled):
        await run(FakeJob([hang], [call("c1", "hang")]), executions=executions)


# --- redelivery -----------------------------------------------------------------------------------


class _Work:
    """A tool that writes a chunk, waits to be released, and counts how often it ran."""

    def __init__(self) -> None:
        self.runs = 0
        self.running = asyncio.Event()
        self.release = asyncio.Event()
        self.ended = asyncio.Event()

        @tool
        async def work(context: ToolContext, x: int = 0) -> int:
            """Works."""
            self.runs += 1
            await context.writer.write("half")
            self.running.set()
            await self.release.wait()
            await context.writer.write("full")
            context.request_context["worked"] = True
            self.ended.set()
            return self.runs

        self.tool = work

    def job(self, version: int = 1, *, seq: int = 1, **args: int) -> FakeJob:
        return FakeJob([self.tool], [call("c1", "work", **args)], seq=seq, version=version)


def outputs(job: FakeJob) -> list[Any]:
    return [chunk["payload"]["output"] for chunk in job.sent]


async def test_a_redelivery_joins_the_running_call() -> None:
    work, executions = _Work(), Executions()
    first, second = work.job(), work.job()
    lost = asyncio.create_task(run_tools(OP, first, executions))
    await work.running.wait()
    joined = asyncio.create_task(run_tools(OP, second, executions))
    await asyncio.sleep(0)
    lost.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lost
    work.release.set()
    await joined
    assert work.runs == 1
    assert outputs(first) == ["half"]
    assert outputs(second) == ["half", "full"], "every chunk once more, so that the numbers come out the same"
    assert second.outcomes[0]["result"] == 1
    assert second.ctx.request_context == {"worked": True}
    assert first.outcomes == []


async def test_a_call_goes_on_while_nobody_listens() -> None:
    work, executions = _Work(), Executions()
    lost = asyncio.create_task(run_tools(OP, work.job(), executions))
    await work.running.wait()
    lost.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lost
    work.release.set()
    await work.ended.wait()
    job = work.job()
    await run_tools(OP, job, executions)
    assert (work.runs, outputs(job)) == (1, ["half", "full"])


async def test_what_a_tool_writes_does_not_wait_for_a_delivery_that_is_lost() -> None:
    work, executions, sending = _Work(), Executions(), asyncio.Event()
    job = work.job()

    async def stuck(chunks: list[Any]) -> None:
        sending.set()
        await asyncio.Event().wait()

    job.send = stuck  # type: ignore[method-assign]  # a sink that never takes anything
    lost = asyncio.create_task(run_tools(OP, job, executions))
    async with asyncio.timeout(10):
        await sending.wait()
        assert not work.running.is_set()
        lost.cancel()
        await work.running.wait()
    work.release.set()
    again = work.job()
    await run_tools(OP, again, executions)
    assert (work.runs, outputs(again)) == (1, ["half", "full"])


async def test_a_redelivery_after_the_end_gets_the_same_outcomes() -> None:
    work, executions = _Work(), Executions()
    work.release.set()
    first, second = work.job(), work.job()
    await run_tools(OP, first, executions)
    first.outcomes[0]["result"] = "changed by a hook"
    await run_tools(OP, second, executions)
    assert work.runs == 1
    assert second.outcomes[0]["result"] == 1
    assert outputs(second) == outputs(first)


async def test_a_redelivery_of_a_suspended_command_waits_again_without_running() -> None:
    ran: list[int] = []

    @tool(resume_schema={})
    async def ask(context: ToolContext) -> None:
        """Asks."""
        ran.append(1)
        context.suspend("?")

    executions = Executions()
    for _ in range(2):
        with pytest.raises(Suspended) as caught:
            await run_tools(OP, FakeJob([ask], [call("c1", "ask")]), executions)
        assert caught.value.entries[0]["suspendPayload"] == "?"
    assert ran == [1]


async def test_a_command_that_is_sent_anew_under_another_number_joins_its_round() -> None:
    work, executions = _Work(), Executions()
    work.release.set()
    await run_tools(OP, work.job(seq=2), executions)
    await run_tools(OP, again := work.job(seq=9_000), executions)
    assert (work.runs, again.outcomes[0]["result"]) == (1, 1)


async def test_the_next_round_runs_its_own_calls_though_ids_repeat() -> None:
    work, executions = _Work(), Executions()
    work.release.set()
    for version in (1, 2):
        await run_tools(OP, work.job(version), executions)
    assert work.runs == 2


async def test_calls_of_another_answer_are_run_though_redis_has_forgotten_the_first_one() -> None:
    work, executions = _Work(), Executions()
    work.release.set()
    for number in (1, 2):
        await run_tools(OP, work.job(x=number), executions)
    assert work.runs == 2


async def test_only_so_many_finished_rounds_are_remembered_but_all_running_ones() -> None:
    executions = Executions(keep=2)
    slow, quick = _Work(), _Work()
    quick.release.set()
    running = asyncio.create_task(run_tools(OP, slow.job(100), executions))
    await slow.running.wait()
    for version in range(5):
        await run_tools(OP, quick.job(version), executions)
    await run_tools(OP, quick.job(4), executions)
    assert quick.runs == 5, "the newest is remembered"
    await run_tools(OP, quick.job(0), executions)
    assert quick.runs == 6, "the oldest is not"
    again = asyncio.create_task(run_tools(OP, slow.job(100), executions))
    slow.release.set()
    await asyncio.gather(running, again)
    assert slow.runs == 1


async def test_what_long_commands_wrote_and_gave_is_not_remembered_for_as_many_of_them() -> None:
    runs: list[str] = []

    @tool
    async def pour(context: ToolContext) -> str:
        """Writes much, or gives it."""
        runs.append(context.tool_call_id)
        if context.tool_call_id == "writes":
            await context.writer.write("x" * 600)
        return "x" * 600 if context.tool_call_id == "gives" else "done"

    def job(version: int, how: str) -> FakeJob:
        made = FakeJob([pour], [call(how, "pour")], version=version)
        if how == "carries":
            made.ctx.request_context["told"] = "x" * 600
        return made

    executions = Executions(keep_bytes=1_000)
    commands = [(1, "small"), (2, "writes"), (3, "carries"), (4, "gives")]
    for each in [*commands, *reversed(commands)]:
        await run_tools(OP, job(*each), executions)
    assert runs == ["small", "writes", "carries", "gives", "carries", "writes", "small"], (
        "the last is remembered, whatever its size"
    )
    runs.clear()
    for each in [(1, "small"), (5, "small"), (6, "small"), (1, "small")]:
        await run_tools(OP, job(*each), executions)
    assert runs == ["small", "small"], "small ones are remembered beside each other"


async def test_a_broken_way_to_the_client_leaves_the_calls_to_the_next_delivery() -> None:
    begun: list[int] = []

    @tool(resume_schema={})
    async def say(n: int, context: ToolContext) -> None:
        """Says it."""
        begun.append(n)
        await context.writer.write(n)

    executions, calls = Executions(), [call("c1", "say", n=1), call("c2", "say", n=2)]
    with pytest.raises(ConnectionError):
        await run_tools(OP, FakeJob([say], calls, fail=ConnectionError("gone")), executions)
    job = FakeJob([say], calls)
    await run_tools(OP, job, executions)
    assert (begun, outputs(job)) == ([1, 2], [1, 2])
    assert len(job.outcomes) == 2


async def test_by_default_the_process_remembers() -> None:
    work = _Work()
    work.release.set()
    for _ in range(2):
        job = FakeJob([work.tool], [call("c1", "work")], seq=987_654)
        await run_tools(OP, job)
    assert work.runs == 1


async def test_calls_that_go_on_without_a_delivery_hear_of_a_cancel() -> None:
    begun, aborted = asyncio.Event(), asyncio.Event()

    @tool
    async def patient(context: ToolContext) -> str:
        """Works until it is told to stop."""
        context.abort_signal.on_abort(aborted.set)
        begun.set()
        await aborted.wait()
        return "stopped"

    executions = Executions()
    job = FakeJob([patient], [call("c1", "patient")])
    delivery = asyncio.create_task(run(job, executions=executions))
    async with asyncio.timeout(10):
        await begun.wait()
        delivery.cancel()
        await asyncio.gather(delivery, return_exceptions=True)
        executions.cancel(job.command.tenant, "another")
        executions.cancel("another", job.command.run)
        assert not aborted.is_set()
        executions.cancel(job.command.tenant, job.command.run)
        await aborted.wait()
        again = FakeJob([patient], [call("c1", "patient")])
        assert [outcome["result"] for outcome in await run(again, executions=executions)] == ["stopped"]
