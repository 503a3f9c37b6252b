"""Model-level retries: a failed call is repeated as long as nobody has seen anything of its answer."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from procession_schemas.chunks import Chunk
from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.failures import ProviderError, may_retry, retry_delay
from procession_services.llm_gateway.providers import Provider


async def stream_with_retries(
    provider: Provider, call: ModelCall, max_retries: int, sleep: Callable[[float], Awaitable[None]]
) -> AsyncGenerator[list[Chunk], None]:
    """Stream an answer, repeating the call up to `max_retries` times (R-MS-3, R-MS-4).

    Only a call that failed before its first chunk is repeated, so a retry never shows. `sleep` waits that
    many seconds.

    Raises:
        ProviderError: the last one, when it may not be retried or no retry is left.
    """
    attempt = 0
    while True:
        begun = False
        try:
            async with aclosing(provider.stream(call)) as answer:
                async for chunks in answer:
                    begun = True
                    yield chunks
        except ProviderError as error:
            if begun or attempt >= max_retries or not may_retry(error):
                raise
            delay = retry_delay(attempt, error)
        else:
            return
        await sleep(delay)
        attempt += 1
