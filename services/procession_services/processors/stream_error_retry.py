"""`stream-error-retry-processor`: tries again when a model failed for a reason that passes by itself (R-SER).

No model, no cost but the calls that are made again. Error hook only. How many retries a run really gets is limited by
its `maxProcessorRetries` as well (R-BUD).
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pydantic import Field

from procession.args import AbortSignal, APIErrorArgs, APIErrorResult
from procession.processor import Options, Processor
from procession_services.processors.core import api_errors
from procession_services.processors.core.api_errors import Facts, is_bad_request, is_transient_openai_event

__all__ = [
    "ErrorMatcher",
    "StreamErrorRetryOptions",
    "StreamErrorRetryProcessor",
    "is_bad_request",
    "is_transient_openai_event",
]


class StreamErrorRetryOptions(Options):
    """Options of `stream-error-retry-processor`; times are in milliseconds."""

    max_retries: int = Field(
        default=1, ge=0, description="Most retries that this processor asks for in a run."
    )
    retry_unknown_errors: bool = Field(
        default=False,
        description="Also try again after unknown errors, unless access was denied.",
    )
    delay_ms: float = Field(default=0, description="Wait before a retry; a negative value counts as 0.")
    max_retry_after_ms: float = Field(
        default=30_000,
        description="The longest wait that a provider may ask for; a negative value counts as 0.",
    )


@dataclass(frozen=True, slots=True)
class ErrorMatcher:
    """One kind of error, and what is done about it; for `StreamErrorRetryProcessor.matchers`.

    Attributes:
        match: Gets the facts of one error (`message`, `statusCode`, `code`, `type`, ... as on the wire).
        max_retries: In place of the option.
        delay_ms: Milliseconds, or a function of the hook's arguments; in place of the option.
        on_retry: Told before the wait, with the hook's arguments and the delay in milliseconds. What it raises is an
            error of the hook.
    """

    match: Callable[[Facts], bool]
    max_retries: int | None = None
    delay_ms: float | Callable[[APIErrorArgs], float] | None = None
    on_retry: Callable[[APIErrorArgs, float], Awaitable[None] | None] | None = None


_OWN = ErrorMatcher(match=lambda _: True)
"""The policy of errors that no matcher of a subclass knows: the options."""


class StreamErrorRetryProcessor(Processor[StreamErrorRetryOptions]):
    """Decides by the error and its causes, waits, and asks for the step again.

    Override `matchers` for errors of your own, `delay` for a wait that grows.
    """

    id = "stream-error-retry-processor"
    name = "Stream Error Retry Processor"
    description = "Repeats a model call that failed for a temporary reason."

    def matchers(self) -> Sequence[ErrorMatcher]:
        """Further errors that are tried again; asked in order, after the built-in one."""
        return ()

    def delay(self, args: APIErrorArgs) -> float:  # noqa: ARG002 - for overriding
        """Milliseconds before a retry, where the matcher does not say."""
        return self.options.delay_ms

    async def process_api_error(self, args: APIErrorArgs) -> APIErrorResult | None:
        """Waits and asks for a retry, or leaves the error to others (R-SER-1..8)."""
        policy = self._policy(args)
        if policy is None:
            return None
        limit = self.options.max_retries if policy.max_retries is None else policy.max_retries
        if args.retry_count >= limit:
            return None
        wait = self._wait(policy, args)
        if policy.on_retry is not None:
            told = policy.on_retry(args, wait)
            if inspect.isawaitable(told):
                await told
        await _pause(wait / 1000, args.abort_signal)
        return {"retry": True}

    def _policy(self, args: APIErrorArgs) -> ErrorMatcher | None:
        """The first hit along the causes; at each the built-in one, then the matchers, then the error's own word."""
        own = self.matchers()
        found = list(api_errors.chain(args.error))
        for error in found:
            if is_transient_openai_event(error):
                return _OWN
            for matcher in own:
                if matcher.match(error):
                    return matcher
            if error.get("isRetryable") is True:
                return _OWN
        if self.options.retry_unknown_errors and not any(map(api_errors.is_refused, found)):
            return _OWN
        return None

    def _wait(self, policy: ErrorMatcher, args: APIErrorArgs) -> float:
        """The longer of the configured wait and the provider's, which is limited (R-SER-6)."""
        told = policy.delay_ms
        given = self.delay(args) if told is None else told(args) if callable(told) else told
        asked = api_errors.wait_asked(api_errors.chain(args.error), args.services.now()) or 0
        limit = api_errors.at_least_zero(self.options.max_retry_after_ms)
        return max(api_errors.at_least_zero(given), min(asked, limit))


async def _pause(seconds: float, signal: AbortSignal) -> None:
    """Waits, but no longer than until the run is cancelled (R-SER-7)."""
    if seconds <= 0:
        return
    cancelled = asyncio.Event()
    signal.on_abort(cancelled.set)
    try:
        async with asyncio.timeout(seconds):
            await cancelled.wait()
    except TimeoutError:
        return
