"""Model calls of processors, from their service to the LLM gateway."""

import asyncio

from pydantic import ValidationError

from procession.services import ModelAnswer, ModelCallError, ModelRequest
from procession_schemas import subjects
from procession_schemas.generate import GenerateReply, GenerateRequest
from procession_services.bus import Bus, NoResponderError, RequestTimeoutError
from procession_services.bus.alive import first_answer


class GatewayModels:
    """Asks the gateway; another one where that falls silent. Waits within the call's timeout while none is up."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def generate(self, request: ModelRequest, *, tenant: str) -> ModelAnswer:
        """Asks once and returns the whole answer.

        Raises:
            ModelCallError: No answer came, whatever the reason.
        """
        try:
            return _answer(await self._told(request, tenant))
        except (TimeoutError, NoResponderError, RequestTimeoutError):
            raise ModelCallError(
                f"{request.model} gave no answer within {request.timeout:g} s; is llm_gateway up?"
            ) from None

    async def _told(self, request: ModelRequest, tenant: str) -> bytes:
        at = ("llm_gateway", tenant, "generate")
        if self._bus.is_nearby(subject := subjects.api(*at)):
            return await self._bus.request(subject, self._body(request, request.timeout), request.timeout)
        clock = asyncio.get_running_loop().time
        until = clock() + request.timeout
        async with asyncio.timeout_at(until), self._bus.inbox() as inbox:
            return await first_answer(
                self._bus,
                inbox,
                at,
                lambda: self._body(request, max(0.001, until - clock()), inbox.address),
            )

    def _body(self, request: ModelRequest, seconds: float, beats: str | None = None) -> bytes:
        body = GenerateRequest(
            model=request.model,
            prompt=request.prompt,
            schema_=request.schema,
            json_prompt_injection=request.json_prompt_injection,
            model_settings=request.model_settings,
            provider_options=request.provider_options,
            timeout=seconds,
            beats=beats,
        ).to_json()
        if len(body) > self._bus.max_payload:
            raise ModelCallError(
                f"the question has {len(body)} bytes; the broker takes {self._bus.max_payload}"
            )
        return body


def _answer(body: bytes) -> ModelAnswer:
    try:
        reply = GenerateReply.model_validate_json(body)
    except ValidationError as error:
        raise ModelCallError("the llm_gateway's reply cannot be read; is it of another version?") from error
    if reply.error is not None:
        raise ModelCallError(reply.error)
    return ModelAnswer(
        text=reply.text,
        finish_reason=reply.finish_reason,
        usage=reply.usage,
        cost=reply.cost,
        chunks=list(reply.chunks),
    )
