"""Which errors are tried again, after how long, and what a cancelled run does."""

import asyncio
from typing import Any

import pytest

from procession.args import APIError
from procession.errors import InvalidOptionsError
from procession.testing import ProcessorKit, check_processor, environment
from procession_services.processors.core import api_errors
from procession_services.processors.stream_error_retry import ErrorMatcher, StreamErrorRetryProcessor

OVERLOADED: Any = {"is_retryable": True}


def retrying(*matchers, grows=None):
    class Own(StreamErrorRetryProcessor):
        def matchers(self):
            return matchers

        def delay(self, args):
            return grows(args) if grows else super().delay(args)

    return Own


async def asked(processor=StreamErrorRetryProcessor, options=None, retries=0, **error):
    kit = ProcessorKit(processor, options, environment=environment(now=lambda: 1_000_000.0))
    kit.context.retry_count = retries
    return (await kit.api_error(**error)).retry


class TestPolicy:
    async def test_what_says_that_it_may_be_tried_again_is_tried_again_once(self):
        assert await asked(**OVERLOADED)
        assert not await asked(retries=1, **OVERLOADED)
        assert await asked(options={"maxRetries": 2}, retries=1, **OVERLOADED)

    async def test_an_error_event_in_mid_stream_is_found_among_the_causes(self):
        event = {"type": "error", "error": {"message": "x", "type": "server_error"}}
        assert await asked(name="StreamError", kind="stream", cause=APIError("", data=event, type="error"))

    async def test_a_refusal_is_not_tried_again(self):
        assert not await asked(status_code=400)

    async def test_unknown_errors_are_tried_again_when_asked_for_unless_access_was_denied(self):
        unknown = {"retryUnknownErrors": True}
        assert await asked(options=unknown, status_code=400)
        assert not await asked(options=unknown, status_code=401)
        denied = APIError("", data={"error": {"code": "forbidden"}})
        assert not await asked(options=unknown, cause=denied)

    async def test_a_matcher_of_a_subclass_decides_with_its_own_limit(self):
        reset = ErrorMatcher(lambda error: error.get("code") == "ECONNRESET", max_retries=3)
        assert await asked(retrying(reset), retries=2, code="ECONNRESET")
        assert not await asked(retrying(reset), retries=3, code="ECONNRESET")
        assert not await asked(retrying(reset), code="EPIPE")

    async def test_what_a_matcher_raises_is_an_error_of_the_hook(self):
        def on_retry(_args, _delay):
            raise RuntimeError("not today")

        kit = ProcessorKit(retrying(ErrorMatcher(lambda _: True, on_retry=on_retry)))
        out = await kit.api_error()
        assert not out.retry  # R-AE-7: counted, and the next error processor is asked
        (tally,) = kit.calls.reports.values()
        assert tally.errors == 1


class TestWaiting:
    async def delay(self, options=None, *, told=None, **error):
        delays = []

        async def on_retry(_args, delay):
            delays.append(delay)

        await asked(
            retrying(ErrorMatcher(lambda _: True, delay_ms=told, on_retry=on_retry)), options, **error
        )
        return delays[0]

    async def test_the_provider_may_ask_for_a_longer_wait_up_to_a_limit(self):
        asks = {"response_headers": {"Retry-After": "3"}}
        assert await self.delay({"maxRetryAfterMs": 5}, **asks) == 5
        assert await self.delay({"maxRetryAfterMs": 5, "delayMs": 7}, **asks) == 7

    async def test_a_date_counts_from_now(self):
        at = "Mon, 12 Jan 1970 13:46:40 GMT"  # 1,000,000 s after the epoch is now
        assert await self.delay(response_headers={"retry-after": at}) == 0
        later = "Mon, 12 Jan 1970 13:46:41 GMT"
        assert await self.delay({"maxRetryAfterMs": 12}, response_headers={"retry-after": later}) == 12

    async def test_a_wait_may_grow(self):
        delays = []
        matcher = ErrorMatcher(
            lambda _: True, max_retries=9, on_retry=lambda _args, delay: delays.append(delay)
        )
        processor = retrying(matcher, grows=lambda args: 2.0**args.retry_count)
        for retries in range(3):
            await asked(processor, retries=retries)
        assert delays == [1, 2, 4]

    async def test_a_cancelled_run_does_not_wait_for_the_end(self):
        kit = ProcessorKit(StreamErrorRetryProcessor, {"delayMs": 60_000})
        asking = asyncio.ensure_future(kit.api_error(**OVERLOADED))
        await asyncio.sleep(0)
        kit.calls.abort_signal.abort()
        async with asyncio.timeout(20):
            assert (await asking).retry

    async def test_a_run_that_was_cancelled_before_does_not_wait_at_all(self):
        kit = ProcessorKit(StreamErrorRetryProcessor, {"delayMs": 60_000})
        kit.calls.abort_signal.abort()
        async with asyncio.timeout(20):
            assert (await kit.api_error(**OVERLOADED)).retry

    async def test_a_timeout_of_the_link_ends_the_wait(self):
        kit = ProcessorKit(StreamErrorRetryProcessor, {"delayMs": 60_000}, timeout=0.01)
        async with asyncio.timeout(20):
            assert not (await kit.api_error(**OVERLOADED)).retry


class TestOptions:
    def test_fewer_than_no_retries_are_refused(self):
        with pytest.raises(InvalidOptionsError, match="maxRetries"):
            StreamErrorRetryProcessor.build({"maxRetries": -1})

    def test_matchers_are_no_option(self):
        with pytest.raises(InvalidOptionsError, match="matchers"):
            StreamErrorRetryProcessor.build({"matchers": []})

    async def test_conformance(self):
        await check_processor(StreamErrorRetryProcessor)


def test_a_deep_body_and_a_long_chain_take_no_time():
    error = APIError("")
    for _ in range(2_000):
        error = APIError("", data={"responseBody": "[" * 100_000}, cause=error)
    assert not any(map(api_errors.is_refused, list(api_errors.chain(error))[:50]))
    assert api_errors.wait_asked(api_errors.chain(error), 0) is None
