"""Answers the questions that processors of other services ask a model: whole answers, not streams."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from pydantic import ValidationError

from procession.response import ResponseCollector
from procession_schemas import subjects
from procession_schemas.generate import GenerateReply, GenerateRequest
from procession_schemas.model_settings import retries_of
from procession_schemas.validation import misfit
from procession_services.bus import oversized
from procession_services.bus.alive import beating
from procession_services.llm_gateway.core.call import ModelCall, unknown_model
from procession_services.llm_gateway.core.ending import Ending
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.providers import Provider
from procession_services.llm_gateway.providers.retrying import stream_with_retries
from procession_services.runtime.gates import Gates
from procession_services.runtime.ledger import Ledger

log = logging.getLogger(__name__)
CONCURRENCY = 64
"""Questions that one gateway asks at the same time for one tenant; further ones wait."""
BUSY = GenerateReply(error="the llm_gateway has too many open requests; ask again later").to_json()


class Generator:
    """Asks the provider on behalf of processors."""

    def __init__(
        self,
        provider: Provider,
        ledger: Ledger,
        publish: Callable[[str, bytes], Awaitable[None]],
        api_base: str | None,
        *,
        max_reply: int,
    ) -> None:
        self._provider, self._ledger, self._publish = provider, ledger, publish
        self._api_base, self._max_reply = api_base, max_reply
        self._gates = Gates(CONCURRENCY)

    async def answer(self, subject: str, body: bytes) -> bytes:
        """The reply to one request, errors included; what it cost is booked for the tenant of the subject."""
        try:
            request = GenerateRequest.model_validate_json(body)
        except ValidationError as error:
            return GenerateReply(error=f"the request cannot be read: {misfit(error).message}").to_json()
        _, _, tenant, *_ = subjects.parse(subject)
        try:
            reply = await self._reply(request, tenant)
            told = reply.to_json()
            if len(told) > self._max_reply:
                told = reply.model_copy(update={"chunks": []}).to_json()
        except Exception as error:  # whatever it is: without an answer, another gateway would be asked
            log.exception("a processor's request to %s failed unexpectedly", request.model)
            return GenerateReply(error=f"{request.model} failed: {type(error).__name__}").to_json()
        if len(told) > self._max_reply:
            return GenerateReply(error=f"the answer {oversized(len(told), self._max_reply)}").to_json()
        return told

    async def _reply(self, request: GenerateRequest, tenant: str) -> GenerateReply:
        try:
            async with (
                beating(self._publish, request.beats),
                asyncio.timeout(request.timeout),
                self._gates.of(tenant),
            ):
                reply = await self._ask(request)
                if reply.error is None or reply.usage:  # some fail when they have been paid
                    self._ledger.add(tenant, {}, request.model, reply.usage, reply.cost)
        except TimeoutError:
            return GenerateReply(error=f"{request.model} gave no answer within {request.timeout:g} s")
        except ProviderError as error:
            return GenerateReply(error=_failed(request, error))
        return reply

    async def _ask(self, request: GenerateRequest) -> GenerateReply:
        call = self._call(request)
        if not self._provider.knows(call.model):
            return GenerateReply(error=unknown_model(call.model))
        try:
            retries = retries_of(request.model_settings) or 0
        except ValueError as error:
            return GenerateReply(error=f"modelSettings: {error}")
        collector, ending, failure = ResponseCollector(keep_chunks=True), Ending(call), None
        async for chunks in stream_with_retries(self._provider, call, retries, asyncio.sleep):
            failure = ending.failure(chunks)
            for chunk in chunks:
                collector.arrived(chunk)
                collector.passed(chunk)
        response = collector.to_dict()
        if failure:
            cost = self._provider.cost(call, response["usage"])
            return GenerateReply(error=_failed(request, failure), usage=response["usage"], cost=cost)
        return GenerateReply(
            text=response["text"],
            finish_reason=response["finishReason"],
            usage=response["usage"],
            cost=self._provider.cost(call, response["usage"]),
            chunks=response["chunks"],
        )

    def _call(self, request: GenerateRequest) -> ModelCall:
        prompt: list[dict[str, Any]] = request.prompt
        if request.schema_ is not None and request.json_prompt_injection:
            schema = orjson.dumps(request.schema_).decode()
            told = f"Answer with one JSON value that fits this JSON Schema, and nothing else:\n{schema}"
            prompt = [{"role": "system", "content": told}, *prompt]
        return ModelCall(
            model=request.model,
            prompt=prompt,
            model_settings=request.model_settings,
            provider_options=request.provider_options,
            response_format=None if request.json_prompt_injection else request.schema_,
            api_base=self._api_base,
        )


def _failed(request: GenerateRequest, error: ProviderError) -> str:
    return f"{request.model} failed: {error}"
