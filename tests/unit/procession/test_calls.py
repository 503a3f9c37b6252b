import asyncio
import contextlib
import itertools
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from procession.args import Violation
from procession.calls import Calls, abort, failure, within
from procession.errors import ProcessorError, TripWire
from procession.processor import Hook
from procession.testing import environment
from tests.support.raising import RAISED, raising
from tests.unit.procession.making import calls, link, processor

HOOK = Hook.OUTPUT_STEP


def judged(hook, **members):
    return processor(process_output_step=hook, **members)


def raises(error):
    def hook(_args):
        raise error

    return hook


def aborts(reason="no", **options):
    return raises(TripWire(reason, **options))


# --- what a hook returns ---------------------------------------------------------------------


async def test_sync_and_async_hooks_give_the_same():
    async def later(_args):
        await asyncio.sleep(0)
        return 7

    def future(_args):
        made = asyncio.get_running_loop().create_future()
        made.set_result(7)
        return made

    for hook in (lambda _args: 7, later, future):
        assert await calls().call(link(judged(hook)), HOOK, None) == 7
        assert await calls().call(link(judged(hook), timeout=5), HOOK, None) == 7


async def test_what_a_hook_returns_need_not_tell_whether_it_is_equal():
    class Array:
        __hash__ = object.__hash__

        def __eq__(self, _other):
            raise ValueError("ambiguous")

    tally, returned = calls(), [Array()]
    at = link(judged(lambda _args: returned))
    assert await tally.call(at, HOOK, SimpleNamespace(messages=[{}], run_id="r")) is returned
    assert tally.report(at, HOOK).changed == 1


async def test_a_call_tells_the_processor_its_place():
    at = link(judged(lambda _args: None), place=3)
    await calls().call(at, HOOK, None)
    assert at.processor.processor_index == 3


async def test_an_abort_in_a_task_group_is_one():
    async def hook(_args):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(5))
            tasks.create_task(later(TripWire("no", metadata={"x": 1})))

    async def later(error):
        raise error

    told = []
    kind = judged(hook, on_violation=lambda _self, violation: told.append(violation.message))
    with pytest.raises(TripWire, match="no") as raised:
        await calls().call(link(kind, on_error="skip"), HOOK, None)
    assert (raised.value.processor_id, raised.value.metadata) == (kind.id, {"x": 1})
    assert told == ["no"]


class Untold:
    """As an array, whose truth is ambiguous."""

    def __bool__(self):
        raise ValueError("ambiguous")

    def __str__(self):
        return "why"


class Own(TripWire):
    def __init__(self, **fields):
        self.__dict__.update(fields)


@pytest.mark.parametrize(
    ("hook", "reason", "metadata"),
    [
        (lambda _args: abort(Untold()), "why", None),  # type: ignore[arg-type]  # R-AB-10
        (lambda _args: abort("why", retry=Untold()), "why", None),  # type: ignore[arg-type]  # R-AB-10
        (raises(Own()), "Tripwire triggered by p", None),
        (raises(Own(reason=5, retry=Untold(), metadata={"x": {1}})), "5", {"x": [1]}),
    ],
)
async def test_an_abort_stays_one_whatever_its_author_makes_of_it(hook, reason, metadata):
    with pytest.raises(TripWire) as caught:
        await calls().call(link(judged(hook), on_error="skip"), HOOK, None)
    told = caught.value
    assert (told.reason, told.retry, told.metadata, told.processor_id) == (reason, False, metadata, "p")


@pytest.mark.parametrize(
    ("given", "named", "retry", "metadata"),
    [
        (("no", {"retry": True, "metadata": 1}), {}, True, 1),
        (("no", {"retry": True}), {"metadata": 2}, True, 2),
        (("no", {"retry": Untold()}), {}, False, None),
        (("no", True, 5), {}, False, None),
        (("no",), {"meta": 1}, False, None),
    ],
)
def test_an_abort_takes_the_options_of_the_reference_and_nothing_prevents_it(given, named, retry, metadata):
    """Else the chunk that was to be blocked would pass (R-AB-1)."""
    with pytest.raises(TripWire) as caught:
        abort(*given, **named)
    assert (caught.value.reason, caught.value.retry, caught.value.metadata) == ("no", retry, metadata)


async def test_what_fails_in_a_task_group_is_told():
    async def hook(_args):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(later())

    async def later():
        raise KeyError("the reason")

    with pytest.raises(ProcessorError, match="the reason"):
        await calls().call(link(judged(hook)), HOOK, None)


# --- exceptions ------------------------------------------------------------------------------


async def test_an_exception_names_processor_and_hook_and_keeps_its_cause():
    error = KeyError("x")
    with pytest.raises(ProcessorError, match="'x'") as caught:
        await calls().call(link(judged(raises(error))), HOOK, None)
    assert (caught.value.processor_id, caught.value.hook) == ("p", "processOutputStep")
    assert (caught.value.name, caught.value.code) == ("KeyError", "PROCESSOR_FAILED")
    assert caught.value.__cause__ is error


async def test_an_error_of_ours_that_names_no_processor_gets_the_name():
    """As where an author raises it, or a chunk that was written is too long."""
    with pytest.raises(ProcessorError, match="x") as caught:
        await calls().call(link(judged(raises(ProcessorError("x", code="CHUNK_NOT_SENDABLE")))), HOOK, None)
    assert (caught.value.processor_id, caught.value.hook) == ("p", "processOutputStep")
    assert caught.value.code == "CHUNK_NOT_SENDABLE"


def test_an_error_of_ours_holds_what_travels_whoever_makes_it():
    error = ProcessorError("x", processor_id=5, hook="\ud800", code=None)  # type: ignore[arg-type]  # by mistake
    assert (error.processor_id, error.hook, error.code) == ("5", "?", "None")


def test_an_exception_without_a_text_is_told_by_its_type():
    assert str(failure(link(processor()), HOOK, ValueError())) == "ValueError"


@pytest.mark.parametrize("hook", list(Hook))
@pytest.mark.parametrize(
    ("own", "agents", "skips"),
    [
        (None, None, None),
        ("fail", None, False),
        ("skip", None, True),
        ("fail", "skip", True),
        ("skip", "fail", False),
    ],
)
def test_the_agent_decides_about_failures_then_the_processor_then_the_contract(hook, own, agents, skips):
    at = link(processor(on_error=own), on_error=agents)
    assert at.skips(hook) is (hook is Hook.OUTPUT_STREAM if skips is None else skips)


def test_a_processor_that_holds_parts_of_a_stream_fails_where_nothing_is_said():
    holder = processor(
        process_output_stream=lambda _self, _args: None, flush_stream=lambda _self, _args: None
    )
    assert not link(holder).skips(Hook.OUTPUT_STREAM)


async def test_a_skipped_failure_changes_nothing_and_is_counted():
    tally = calls()
    at = link(judged(raises(ValueError("x"))), on_error="skip")
    assert await tally.call(at, HOOK, None) is None
    assert tally.report(at, HOOK).errors == 1


async def test_the_log_says_once_which_hook_raised_what_and_where_but_not_with_which_text():
    logged: list[str] = []
    tally = Calls(clock=lambda: 0, environment=environment(log=logged.append))
    at = link(judged(raises(ValueError("secret"))), on_error="skip")
    line = raises.__code__.co_firstlineno + 2
    for _ in range(3):
        await tally.call(at, HOOK, SimpleNamespace(run_id="r"))
    place = f"{Path(__file__)}:{line}"
    assert logged == [f"p: processOutputStep of run r raised ValueError at {place}"]
    assert tally.report(at, HOOK).errors == 3


@pytest.mark.parametrize("on_error", ["fail", "skip"])
async def test_a_cancelled_hook_is_never_an_error(on_error):
    begun = asyncio.Event()

    async def waits(_args):
        begun.set()
        await asyncio.Event().wait()

    tally = calls()
    at = link(judged(waits), on_error=on_error)
    task = asyncio.create_task(tally.call(at, HOOK, None))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tally.report(at, HOOK).errors == 0


@pytest.mark.parametrize("made", RAISED)
async def test_whatever_a_hook_raises_is_its_error_and_ends_nobody_else(made):
    with pytest.raises(ProcessorError) as caught:
        await calls().call(link(judged(raising(made)), on_error="fail"), HOOK, None)
    assert caught.value.name == type(made()).__name__


async def test_ctrl_c_in_a_hook_is_no_error_of_it():
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            await calls().call(
                link(judged(lambda _: signal.raise_signal(signal.SIGINT)), on_error="skip"), HOOK, None
            )
    finally:
        signal.signal(signal.SIGINT, usual)


async def test_a_failure_of_another_processor_is_not_skipped_here():
    foreign = ProcessorError("theirs", processor_id="guardrail", hook="processOutputStream")
    with pytest.raises(ProcessorError) as caught:
        await calls().call(link(judged(raises(foreign)), on_error="skip"), HOOK, None)
    assert caught.value is foreign


async def test_a_processors_own_processor_error_is_skipped_like_any_other():
    own = ProcessorError("mine", processor_id="p", hook="x")
    assert await calls().call(link(judged(raises(own)), on_error="skip"), HOOK, None) is None


# --- timeouts --------------------------------------------------------------------------------


async def for_ever(_args):
    await asyncio.Event().wait()


async def test_a_hook_that_takes_too_long_fails():
    with pytest.raises(ProcessorError, match=r"timeout of 0\.01 s") as caught:
        await calls().call(link(judged(for_ever), timeout=0.01), HOOK, None)
    assert caught.value.code == "PROCESSOR_TIMEOUT"


async def test_a_hook_that_takes_too_long_can_be_skipped():
    assert await calls().call(link(judged(for_ever), timeout=0.01, on_error="skip"), HOOK, None) is None


@pytest.mark.parametrize("what", ["hook", "on_violation"])
async def test_a_timeout_holds_for_what_catches_its_cancellation(monkeypatch, what):
    monkeypatch.setattr("procession.awaiting._LEFT_SECONDS", 0.05)
    over = asyncio.Event()

    async def deaf(_args):
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()

    members = {} if what == "hook" else {"on_violation": deaf}
    timed = link(judged(deaf if what == "hook" else aborts(), **members), timeout=0.01)
    async with asyncio.timeout(10):
        with pytest.raises(ProcessorError if what == "hook" else TripWire):
            await calls().call(timed, HOOK, None)
    over.set()


async def test_a_timeout_of_the_hooks_own_is_not_called_ours():
    with pytest.raises(ProcessorError, match="the database") as caught:
        await calls().call(link(judged(raises(TimeoutError("the database"))), timeout=60), HOOK, None)
    assert caught.value.code == "PROCESSOR_FAILED"


async def test_within_leaves_a_foreign_timeout_alone():
    async def foreign():
        await asyncio.sleep(0)
        raise TimeoutError("theirs")

    with pytest.raises(TimeoutError, match="theirs"):
        await within(foreign(), 60)


# --- aborts and violations -------------------------------------------------------------------


async def aborted(kind, **how):
    """Calls a hook that aborts; gives the tripwire, what was stored, and the report."""
    stored = []

    async def sink(*violation):
        stored.append(violation)

    tally = Calls(clock=lambda: 0, violation=sink)
    at = link(kind, **how)
    with pytest.raises(TripWire) as caught:
        await tally.call(at, HOOK, None)
    return caught.value, stored, tally.report(at, HOOK)


async def test_an_abort_is_completed_counted_and_stored():
    tripwire, stored, report = await aborted(judged(aborts("bad", retry=True, metadata={"n": 1})))
    assert (tripwire.processor_id, tripwire.reason, tripwire.retry) == ("p", "bad", True)
    assert stored == [(Violation("p", "bad", {"n": 1}), HOOK, True)]
    assert (report.calls, report.aborts, report.errors) == (1, 1, 0)


async def test_an_abort_without_a_reason_names_the_processor():
    tripwire, *_ = await aborted(judged(aborts("")))
    assert tripwire.reason == "Tripwire triggered by p"


async def test_an_abort_is_a_decision_not_an_exception_to_skip():
    tripwire, *_ = await aborted(judged(aborts()), on_error="skip")
    assert tripwire.reason == "no"


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_on_violation_is_told_once_before_the_tripwire_goes_on(asynchronous):
    told = []

    async def later(_self, violation):
        await asyncio.sleep(0)
        told.append(violation)

    hook = later if asynchronous else lambda _self, violation: told.append(violation)
    await aborted(judged(aborts("bad", metadata=1), on_violation=hook))
    assert told == [Violation("p", "bad", 1)]


@pytest.mark.parametrize("raised", [RuntimeError, *RAISED])
async def test_what_on_violation_raises_changes_nothing_but_the_count(raised):
    tripwire, stored, report = await aborted(judged(aborts(), on_violation=raising(raised)))
    assert tripwire.reason == "no"
    assert len(stored) == 1
    assert (report.aborts, report.errors) == (1, 1)


async def test_on_violation_has_the_timeout_of_its_processor():
    async def hangs(_self, _violation):
        await asyncio.Event().wait()

    tripwire, _, report = await aborted(judged(aborts(), on_violation=hangs), timeout=0.01)
    assert (tripwire.reason, report.errors) == ("no", 1)


async def test_a_tripwire_on_its_way_is_nobody_elses_violation():
    tripwire, stored, report = await aborted(judged(aborts("theirs", processor_id="other", told=True)))
    assert tripwire.processor_id == "other"
    assert stored == []
    assert report.aborts == 0


async def test_an_abort_that_the_hook_catches_is_lost():
    def forgiving(_args):
        try:
            aborts()(None)
        except TripWire:
            return

    tally = calls()
    at = link(judged(forgiving))
    assert await tally.call(at, HOOK, None) is None
    assert tally.report(at, HOOK).aborts == 0


# --- the rest --------------------------------------------------------------------------------


async def test_reports_add_up_calls_and_time_per_processor_and_hook():
    tally = Calls(clock=itertools.count(0, 1500).__next__)
    at = link(judged(lambda _args: None))
    await tally.call(at, HOOK, None)
    await tally.call(at, HOOK, None)
    assert [(r.processor, r.hook, r.calls, r.micros) for r in tally.reports.values()] == [
        ("p", HOOK.value, 2, 3.0)
    ]
