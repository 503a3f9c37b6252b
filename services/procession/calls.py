"""Calls one hook of one processor: sync or async, timed, limited, and with errors that name where they come from."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Literal, NoReturn, TypeVar

from msgspec import Struct, field

from procession import signals
from procession.args import AbortSignal, Violation, Writer
from procession.authors import found_in, is_ours, place
from procession.awaiting import awaited
from procession.context import RunContext
from procession.errors import ProcessionError, ProcessorError, TripWire
from procession.json_values import error_text, is_true, leaf_fault, plain, text
from procession.processor import METHODS, Hook, Processor
from procession.services import (
    NO_ENVIRONMENT,
    Environment,
    KeyValueStore,
    ModelAnswer,
    ModelRequest,
    object_of,
)
from procession.signals import Signal
from procession.usage import SCOPES, Scope, UsageSum
from procession_schemas.messages import Message
from procession_schemas.run import HookReport

Clock = Callable[[], int]
"""Nanoseconds, monotonic."""
ViolationSink = Callable[[Violation, Hook, bool], Awaitable[None]]
_T = TypeVar("_T")


class Link(Struct):
    """A processor in its place in an array: the instance, its id there, and how its failures are treated."""

    processor: Processor[Any]
    id: str
    index: int = 0
    on_error: Literal["fail", "skip"] | None = None
    timeout: float | None = None

    def skips(self, hook: Hook) -> bool:
        """Whether an exception in this hook leaves the value unchanged in place of ending the run (D-1, D-2)."""
        default = "skip" if hook is Hook.OUTPUT_STREAM and not self.processor.holds_back() else "fail"
        return (self.on_error or self.processor.on_error or default) == "skip"


async def _ignore(_violation: Violation, _hook: Hook, _retry: bool) -> None:  # noqa: FBT001 - a callback's shape
    """The violation sink of a chain that nobody watches."""


class Calls(Struct):
    """What all hook calls of a command share."""

    clock: Clock
    abort_signal: AbortSignal = field(default_factory=AbortSignal)
    violation: ViolationSink = _ignore
    environment: Environment = NO_ENVIRONMENT
    reports: dict[tuple[str, str], HookReport] = {}

    def report(self, link: Link, hook: Hook) -> HookReport:
        """The running tally of a processor and hook."""
        name = str(hook)
        if (report := self.reports.get((link.id, name))) is None:
            report = self.reports[link.id, name] = HookReport(processor=link.id, hook=name)
        return report

    def add_reports(self, reports: Iterable[HookReport]) -> None:
        """Adds what hooks did elsewhere for this command."""
        for report in reports:
            key = (report.processor, report.hook)
            if (before := self.reports.get(key)) is not None:
                before.add(report)
            else:
                self.reports[key] = report.but()

    def services(
        self, ctx: RunContext, link: Link, hook: Hook, writer: Writer | None = None
    ) -> "LinkServices":
        """What `args.services` is in a hook of that processor."""
        return LinkServices(self, ctx, link, hook, writer, ctx.tenant, ctx.agent)

    async def call(self, link: Link, hook: Hook, args: Any) -> Any:
        """Calls the hook and returns what it returns; None where its failure is skipped.

        Raises:
            TripWire: The processor aborted; `on_violation` has been awaited (R-AB-6).
            ProcessorError: It raised anything else, or took longer than its timeout.
        """
        watch = self.environment.watch
        if watch is None:
            return await self._call(link, hook, args)
        with watch(link.id, hook.value, self.report(link, hook)):
            return await self._call(link, hook, args)

    async def _call(self, link: Link, hook: Hook, args: Any) -> Any:
        report = self.report(link, hook)
        report.calls += 1
        link.processor.processor_index = link.index
        started = self.clock()
        try:
            value = getattr(link.processor, METHODS[hook])(args)
            if inspect.isawaitable(value):
                value = await within(awaited(value), link.timeout)
        except TripWire as tripwire:
            await self.violated(link, hook, tripwire)
            raise
        except BaseException as error:  # whatever an author's code raises is reported with its place
            await self.violated_in(link, hook, error)
            if is_ours(error) or of_another(link, error):
                raise
            self.raised(link, hook, error, args)
            if link.skips(hook):
                return None
            raise failure(link, hook, error) from error
        finally:
            report.micros += (self.clock() - started) / 1000
        report.changed += _says_something(args, value)
        return value

    async def violated_in(self, link: Link, hook: Hook, error: BaseException) -> None:
        """Raises the tripwire that is in what a hook raised, once it was told of; see `violated`."""
        if tripwire := found_in(error, TripWire):
            try:
                await self.violated(link, hook, tripwire)
                raise tripwire from tripwire.__cause__
            finally:
                del tripwire  # no circle with its traceback (ADR 23)

    def raised(self, link: Link, hook: Hook, error: BaseException, args: Any = None) -> None:
        """Counts what an author's code raised, and logs the first one: its class and where, not its text."""
        report = self.report(link, hook)
        report.errors += 1
        if report.errors > 1:
            return  # a stream hook that is skipped may fail at every chunk
        run, at = getattr(args, "run_id", ""), place(error, type(link.processor).__module__)
        of, where = f" of run {run}" if run else "", f" at {at}" if at else ""
        self.environment.log(f"{link.id}: {hook.value}{of} raised {type(error).__name__}{where}")

    def taking(self, ctx: RunContext, link: Link, hook: Hook) -> "_Taking":
        """While what a hook returned is taken over: counts and logs it where that cannot be done."""
        return _Taking(self, link, hook, ctx.run_id)

    def refused(self, link: Link, hook: Hook, code: str, run: str) -> None:
        """Counts a return that cannot be taken over, and logs it: the code of its error, not its text."""
        self.report(link, hook).errors += 1
        self.environment.log(f"{link.id}: {hook.value} of run {run} failed with {code}")

    def blame(self, error: ProcessorError) -> None:
        """Names in an error about what hooks have left the processor, and its hook, if only one has run here."""
        ran = [place for place in self.reports if error.processor_id in ("", place[0])]
        if len({processor for processor, _ in ran}) == 1:
            error.processor_id = ran[0][0]
            error.hook = error.hook or (ran[0][1] if len(ran) == 1 else "")

    async def violated(self, link: Link, hook: Hook, tripwire: TripWire) -> None:
        """Completes the tripwire, counts it, tells `on_violation`, and stores the violation (R-VI, D-17).

        Once per tripwire: one that passes through another processor's hook on its way has been told already.
        """
        if tripwire.told:
            return
        tripwire.told = True
        self.report(link, hook).aborts += 1
        tripwire.complete(link.id)
        violation = Violation(link.id, tripwire.reason, tripwire.metadata)
        await self.tell(link, hook, violation, retry=tripwire.retry)

    async def tell(self, link: Link, hook: Hook, violation: Violation, *, retry: bool = False) -> None:
        """Tells `on_violation` and stores the violation."""
        try:
            told = link.processor.on_violation(violation)
            if inspect.isawaitable(told):
                await within(awaited(told), link.timeout)
        except BaseException as error:  # R-VI-4: counted, never changes the pipeline
            if is_ours(error):
                raise
            self.raised(link, hook, error)
        await self.violation(violation, hook, retry)


class _Taking:
    """See `Calls.taking`; a class, since two are made for each call of a hook."""

    __slots__ = ("_calls", "_hook", "_link", "_run")

    def __init__(self, calls: Calls, link: Link, hook: Hook, run: str) -> None:
        self._calls, self._link, self._hook, self._run = calls, link, hook, run

    def __enter__(self) -> None: ...

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ProcessorError):
            self._calls.refused(self._link, self._hook, error.code, self._run)


class LinkServices(Struct, eq=False):
    """`args.services` of one processor in one hook: what it uses is counted in its report."""

    _calls: Calls
    _ctx: RunContext
    _link: Link
    _hook: Hook
    _writer: Writer | None
    tenant: str
    agent: str

    def __repr__(self) -> str:
        """Not what it has of the run and of the process: whoever prints arguments does not mean that."""
        return f"LinkServices(tenant={self.tenant!r}, agent={self.agent!r})"

    @property
    def model(self) -> str:
        """The model of the step in hand, `provider/name`."""
        return self._ctx.config.model

    @property
    def store(self) -> KeyValueStore:
        """Values of this tenant that outlive the run."""
        return self._calls.environment.store(self.tenant)

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._calls.environment.now()

    def secret(self, name: str) -> bytes | None:
        """A secret of the operator, or None."""
        return self._calls.environment.secret(name)

    async def generate(self, request: ModelRequest) -> ModelAnswer:
        """Asks a model through the gateway; raises ModelCallError, or TypeError for what is no request."""
        if not isinstance(request, ModelRequest):
            allowed = "a `ModelRequest(model=..., prompt=[...])`"
            raise TypeError(f"`generate` was given a value of type {type(request).__name__}; give {allowed}")
        self.count_model(calls=1)
        answer = await self._calls.environment.models.generate(request, tenant=self.tenant)
        self.count_model(tokens=answer.usage.get("totalTokens") or 0, cost=answer.cost or 0)
        return answer

    def count_model(self, *, calls: int = 0, tokens: int = 0, cost: float = 0) -> None:
        """Counts model calls that were made for this processor elsewhere, in the report of this hook.

        Raises:
            TypeError: One of them is no such number, with which nobody could read the run any more.
        """
        for name, count in {"calls": calls, "tokens": tokens, "cost": cost}.items():
            kinds, needed = ((int, float), "a number") if name == "cost" else (int, "an integer")
            if not isinstance(count, kinds) or leaf_fault(float(count) if name == "cost" else count):
                raise TypeError(f"count_model: `{name}` is {text(repr(count)):.80}; give {needed}")
        report = self._calls.report(self._link, self._hook)
        report.model_calls += calls
        report.model_tokens += tokens
        report.model_cost += float(cost)

    async def generate_object(self, request: ModelRequest) -> Any:
        """Asks for JSON that fits `request.schema`; raises ModelCallError when it does not (R-COM-20)."""
        return object_of(await self.generate(request), request.schema or {})

    async def usage(self, scope: Scope, key: str, window_seconds: float | None) -> UsageSum:
        """What model calls used and cost in the last seconds, for one key of a scope.

        Raises:
            ValueError: There is no such scope: nothing is ever booked for it, so no limit would hold.
        """
        if scope not in SCOPES:
            raise ValueError(f"unknown usage scope {scope!r}; use one of {', '.join(SCOPES)}")
        return await self._calls.environment.usage.read(self.tenant, scope, key, window_seconds)

    async def violation(self, message: str, detail: Any = None) -> None:
        """Reports a violation that does not abort (D-17)."""
        violation = Violation(self._link.id, text(message), plain(detail))
        await self._calls.tell(self._link, self._hook, violation)

    async def send_signal(self, signal: Signal) -> Message:
        """Adds a message of role `signal` to the conversation, and tells the client where it listens already.

        Raises:
            InvalidSignalError: A key of the signal is missing or wrong.
            ProcessionError: Called in `process_output_stream`.
        """
        if self._hook is Hook.OUTPUT_STREAM:
            raise ProcessionError(
                "signals cannot be sent from process_output_stream; send them from process_output_step"
            )
        message = signals.add(self._ctx.messages, signal, response_id=self._ctx.message_id)
        if self._writer is not None:
            await self._writer.custom(signals.to_chunk(message))
        return message

    def warn(self, text: str) -> None:
        """Counts a warning and logs it; the text must hold nothing of the conversation."""
        self._calls.report(self._link, self._hook).warnings += 1
        self._calls.environment.log(f"{self._link.id}: {text}")


class HookTimeoutError(Exception):
    """A hook took longer than the timeout of its link."""


async def within(value: Awaitable[_T], limit: float | None) -> _T:
    """Awaits what a hook returned, for at most `limit` seconds.

    Raises:
        HookTimeoutError: The time is up; a `TimeoutError` of the hook's own comes out as it is.
    """
    if limit is None:
        return await value
    scope = asyncio.timeout(limit)
    try:
        async with scope:
            return await value
    except TimeoutError as error:
        if scope.expired():
            raise HookTimeoutError(f"took longer than its timeout of {limit:g} s") from error
        raise


def of_another(link: Link, error: BaseException) -> bool:
    """Whether an error is a processor's whose stream this link wrote into: that one's policy counts, not ours."""
    return isinstance(error, ProcessorError) and error.processor_id not in ("", link.id)


def _says_something(args: Any, value: Any) -> bool:
    """Whether a return value asks for a change; edits in place do not show here."""
    if isinstance(value, list):
        with suppress(Exception):  # arrays in it do not tell whether they are equal
            return bool(value) and value != getattr(args, "messages", None)
        return True
    return isinstance(value, dict) and bool(value)


def failure(link: Link, hook: Hook, error: BaseException) -> ProcessorError:
    """Wraps what a hook raised; an error that already names a processor stays as it is, one that names none gets it."""
    if isinstance(error, ProcessorError):
        if not error.processor_id:
            error.processor_id, error.hook = link.id, hook.value
        return error
    if isinstance(error, HookTimeoutError):
        return ProcessorError(
            str(error), processor_id=link.id, hook=hook.value, code="PROCESSOR_TIMEOUT", name="TimeoutError"
        )
    return ProcessorError(error_text(error), processor_id=link.id, hook=hook.value, name=type(error).__name__)


def abort(
    reason: str = "", options: Any = None, *_: Any, retry: bool = False, metadata: Any = None, **__: Any
) -> NoReturn:
    """The `abort` that hooks get, which nothing wrong that it is given prevents; the runtime fills in who it was."""
    given = options if isinstance(options, dict) else {}
    told = reason if is_true(reason, unknown=True) else ""
    again = is_true(retry, unknown=False) or is_true(given.get("retry"), unknown=False)
    raise TripWire(told, retry=again, metadata=given.get("metadata") if metadata is None else metadata)


__all__ = ["Calls", "Clock", "HookTimeoutError", "Link", "abort", "failure", "of_another", "within"]
