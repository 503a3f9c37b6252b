"""A run, whatever happens to it: one terminal event, each tool call once, and always somebody who has the word."""

import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from procession.processor import Hook
from procession_schemas.agent import ModelEntry, ProcessorRef
from procession_schemas.work import Control, OpenOp, StepConfig
from procession_services.runs.state import Line, Placed, Plan, RunState
from tests.stateful.services import Choose
from tests.stateful.world import World

DELIVERIES = 600
"""More than any run needs: at most 3 steps (or 4), 2 retries and 2 models, some dozen commands each."""
INPUT = [Hook.INPUT, Hook.INPUT_STEP, Hook.LLM_REQUEST, Hook.LLM_RESPONSE]
OUTPUT = [Hook.OUTPUT_STREAM, Hook.OUTPUT_STEP, Hook.TOOL_RESULT, Hook.OUTPUT_RESULT]


def placed(name: str, hooks: list[Hook], hosts: list[str]) -> st.SearchStrategy[Placed]:
    return st.builds(
        Placed,
        ref=st.just(ProcessorRef(id=name)),
        hooks=st.frozensets(st.sampled_from(hooks)),
        host=st.sampled_from(hosts),
    )


BESIDE = st.just(
    Placed(ref=ProcessorRef(id="guard"), hooks=frozenset(), host="input_processors", beside=True)
)


PLANS = st.builds(
    Plan,
    config=st.just(StepConfig(model="m/0")),
    input=st.lists(placed("in", INPUT, ["input_processors", "memory"]) | BESIDE, max_size=2),
    output=st.lists(placed("out", OUTPUT, ["output_processors", "memory"]), max_size=2),
    error=st.lists(placed("err", [Hook.API_ERROR], ["error_recovery", "memory"]), max_size=2),
    models=st.integers(1, 2).map(lambda n: [ModelEntry(model=f"m/{i}") for i in range(n)]),
    budget=st.sampled_from([1, 2, 0, None]),
    max_steps=st.sampled_from([2, 3, 1]),
) | st.builds(
    Plan,
    config=st.just(StepConfig(model="m/0")),
    models=st.just([ModelEntry(model="m/0")]),
    budget=st.sampled_from([1, None]),
    max_steps=st.sampled_from([None, 2]),
    stop_when=st.just([ProcessorRef(id="stop")]),
)
LINES = st.sampled_from(
    [None, Line(resource="r", thread="t"), Line(resource="r", thread="t", policy="interrupt")]
)
CHOICES = st.lists(st.sampled_from([0] * 8 + list(range(7))), max_size=30)
"""What operations come to, in order; then whatever is usual."""
NUMBER = st.integers(0, 20)


def chooser(numbers: list[int]) -> Choose:
    left = iter(numbers)
    return lambda options: options[next(left, 0) % len(options)]


class RunMachine(RuleBasedStateMachine):
    @initialize(
        plan=PLANS, line=LINES, queued=st.booleans(), seed=st.integers(0, 9999), ahead=st.integers(0, 14),
        choices=CHOICES,
    )  # fmt: skip
    def request(  # noqa: PLR0917 - whatever a run may be
        self,
        plan: Plan,
        line: Line | None,
        queued: bool,
        seed: int,
        ahead: int,
        choices: list[int],
    ) -> None:
        self.random = random.Random(seed)
        fresh = RunState(
            run="r",
            tenant="t",
            agent="a",
            plan=plan,
            open=OpenOp(input=["hello"]),
            line=line,
            message_id="msg-r",
            fingerprint="f",
            accepted_at="2026-01-01T00:00:00Z",
            deadline_ms=1,
            queued=queued and line is not None,
        )
        self.world = World(fresh, chooser(choices))
        self.world.publish("request", b"")
        for _ in range(ahead):  # the trouble begins here
            self.undisturbed()

    def one(self, some: list[Any], number: int) -> Any:
        return some[number % len(some)]

    @rule(times=st.integers(1, 12), choices=CHOICES)
    def go_on(self, times: int, choices: list[int]) -> None:
        self.world.choose = chooser(choices)
        for _ in range(times):
            self.undisturbed()

    @precondition(lambda self: self.world.queue)
    @rule(number=NUMBER, choices=CHOICES)
    def deliver_and_finish(self, number: int, choices: list[int]) -> None:
        self.world.choose = chooser(choices)
        self.world.finish(self.world.deliver(self.one(self.world.queue, number)))

    @precondition(lambda self: self.world.queue)
    @rule(number=NUMBER)
    def deliver(self, number: int) -> None:
        self.world.deliver(self.one(self.world.queue, number))

    @precondition(lambda self: self.world.handlers)
    @rule(number=NUMBER, times=st.integers(1, 8), choices=CHOICES)
    def advance(self, number: int, times: int, choices: list[int]) -> None:
        self.world.choose = chooser(choices)
        handler = self.one(self.world.handlers, number)
        for _ in range(times):
            if handler in self.world.handlers:
                self.world.advance(handler)

    @precondition(lambda self: self.world.handlers)
    @rule(number=NUMBER)
    def crash(self, number: int) -> None:
        self.world.crash(self.one(self.world.handlers, number))

    @rule()
    def kill_tools(self) -> None:
        self.world.kill_tools()

    @rule()
    def cancel(self) -> None:
        self.world.publish("control", Control(type="cancel").to_json())

    @precondition(lambda self: self.waiting())
    @rule(number=NUMBER, how=st.integers(0, 3))
    def resume(self, number: int, how: int) -> None:
        self.answer(self.one(self.waiting(), number), how)

    @precondition(lambda self: self.world.fresh.queued)
    @rule()
    def turn(self) -> None:
        self.world.publish("turn", b"")

    @rule()
    def deadline(self) -> None:
        self.world.pass_deadline()

    @rule(number=NUMBER)
    def say_again(self, number: int) -> None:
        self.world.repeat(self.one(self.world.archive, number))

    @rule()
    def forget_ids(self) -> None:
        self.world.known_ids.clear()

    @precondition(lambda self: self.world.past)
    @rule(moments=st.integers(0, 39))
    def redis_forgets(self, moments: int) -> None:
        self.world.forget(moments)

    @precondition(lambda self: self.world.queue)
    @rule(number=NUMBER)
    def give_up(self, number: int) -> None:
        message = self.one(self.world.queue, number)
        if message.kind != "request":
            self.world.give_up(message)

    def undisturbed(self) -> bool:
        """Lets somebody work who has something to do; tells whether there was anybody."""
        world = self.world
        if world.handlers:
            world.finish(world.handlers[0])
        elif world.queue:
            world.finish(world.deliver(world.queue[0]))
        else:
            return False
        return True

    def waiting(self) -> list[dict[str, Any]]:
        state = self.world.state()
        return state.waiting if state and state.status == "suspended" else []

    def answer(self, entry: dict[str, Any], how: int) -> None:
        call_id = entry["toolCallId"]
        controls = [
            Control(type="resume", tool_call_id=call_id, approved=True, resume_data={"x": 1}),
            Control(type="resume", tool_call_id=call_id, approved=False, reason="no"),
            Control(type="resume", tool_call_id=call_id, approved=True),
            Control(type="resume", tool_call_id="nobody's", approved=True),
        ]
        self.world.publish("control", controls[how].to_json())

    def teardown(self) -> None:
        """No more faults: what is left gets done, and the run has ended."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.choose = lambda options: self.random.choice([options[0], *options])
        for _ in range(DELIVERIES):
            if self.undisturbed():
                continue
            if world.forgot and (recalled := world.recall()):
                world.finish(recalled)
                continue
            state = world.state()
            if state is None or (state.status == "done" and world.finished):
                break
            if state.queued:
                world.publish("turn", b"")
            elif state.status == "suspended":
                self.answer(state.waiting[0], self.random.choice([0, 1]))
            else:
                assert world.store.listed or world.buried, f"nobody works on {state.sent}"
                world.finish(world.pass_deadline())
        final = world.state()
        assert final is not None
        assert final.status == "done"
        assert world.finished == [world.finished[0]] * len(world.finished)
        assert world.passed or not world.fresh.line, "nobody lets the next one on the thread begin"
        for message in world.archive:  # and late repeats of anything change nothing
            world.repeat(message)
            world.finish(world.deliver(world.queue[-1]))
        assert world.state() == final


RunMachine.TestCase.settings = settings(
    max_examples=max(200, settings().max_examples), stateful_step_count=30, deadline=None
)
TestRun = RunMachine.TestCase
