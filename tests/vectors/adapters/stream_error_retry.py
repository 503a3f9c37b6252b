"""`stream-error-retry.json`: two functions, and the decision and the wait of the error hook."""

import asyncio
import time
from typing import Any

from procession.args import APIErrorArgs
from procession.testing import environment as make_environment
from procession_services.processors.stream_error_retry import (
    ErrorMatcher,
    StreamErrorRetryProcessor,
    is_bad_request,
    is_transient_openai_event,
)
from tests.vectors.adapters.by_hand import Run, error_of, raw_value

FUNCTIONS = {
    "isRetryableOpenAIResponsesStreamError": is_transient_openai_event,
    "isBadRequestError": is_bad_request,
}
PREDICATES = {
    "always": lambda _: True,
    "never": lambda _: False,
    "is400": is_bad_request,
    "econn": lambda error: str(error.get("code", "")).startswith("ECONN"),
}


async def observe(vector: dict[str, Any]) -> Any:
    """Calls the function or the hook; waits are real."""
    given = vector["input"]
    if "call" in given:
        return {"result": FUNCTIONS[given["call"]](raw_value(given["error"]))}
    retried: list[dict[str, Any]] = []
    processor = _processor(dict(vector["options"]), retried)
    run = Run(processor, make_environment(now=time.time))
    args = run.api_error(error_of(given["error"]), given.get("retryCount", 0))
    started = time.monotonic()
    decision, raised = None, None
    _cancel(run, given)
    try:
        decision = await processor.process_api_error(args)
    except RuntimeError as error:
        raised = str(error)
    waited = (time.monotonic() - started) * 1000
    observed: dict[str, Any] = (
        {"retry": bool(decision and decision["retry"])} if raised is None else {"throws": raised}
    )
    if retried:
        observed["onRetry"] = retried
    return observed | _waits(vector["expected"], waited)


def _waits(expected: dict[str, Any], waited: float) -> dict[str, Any]:
    """The limits of the vector, and whether the wait was within them."""
    limits = {key: expected[key] for key in ("waitedAtLeastMs", "waitedLessThanMs") if key in expected}
    fits = limits.get("waitedAtLeastMs", 0) <= waited + 1 and waited < limits.get(
        "waitedLessThanMs", float("inf")
    )
    return limits | ({"waitOk": fits} if "waitOk" in expected else {})


def _cancel(run: Run, given: dict[str, Any]) -> None:
    """Cancels the run when the vector says so."""
    after = next((v for k, v in given.items() if "abort" in k.lower() and k.lower().endswith("ms")), None)
    if isinstance(after, int | float) and not isinstance(after, bool):
        asyncio.get_running_loop().call_later(after / 1000, run.calls.abort_signal.abort)
    elif any("abort" in key.lower() and value for key, value in given.items()):
        run.calls.abort_signal.abort()


def _processor(options: dict[str, Any], retried: list[dict[str, Any]]) -> StreamErrorRetryProcessor:
    """The processor with the callbacks that the options name."""
    named, factor = options.pop("matchers", []), options.pop("delayFn", None)

    def on_retry(args: APIErrorArgs, delay: float) -> None:
        retried.append({"delayMs": delay, "retryCount": args.retry_count})

    def failing(_args: APIErrorArgs, _delay: float) -> None:
        raise RuntimeError("onRetry failed")

    def matcher(told: Any) -> ErrorMatcher:
        if isinstance(told, str):
            return ErrorMatcher(PREDICATES[told])
        times = told.get("delayFn")
        delay = told.get("delayMs") if times is None else lambda args: times * (args.retry_count + 1)
        throws = any("throw" in f"{key} {value}".lower() for key, value in told.items())
        return ErrorMatcher(
            PREDICATES[told["match"]], told.get("maxRetries"), delay, failing if throws else on_retry
        )

    class Configured(StreamErrorRetryProcessor):
        def matchers(self) -> list[ErrorMatcher]:
            return [matcher(told) for told in named]

        def delay(self, args: APIErrorArgs) -> float:
            return super().delay(args) if factor is None else float(factor) * (args.retry_count + 1)

    return Configured.build(options)


def override(_vector: dict[str, Any], _observed: Any, _differences: list[str]) -> str | None:
    """Nothing differs."""
    return None
