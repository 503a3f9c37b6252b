"""Model calls of processors, from their service to the LLM gateway."""

import asyncio

from pydantic import ValidationError

from procession.services import ModelAnswer, ModelCallError, ModelRequest
from procession_schemas import subjects
from procession_schemas.generate import GenerateReply, GenerateRequest
from procession_services.bus import Bus, NoResponderError, RequestTimeoutError

_AGAIN_SECONDS = 0.1


class GatewayModels:
    """Asks the gateway; waits within the call's timeout while none is up."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def generate(self, request: ModelRequest, *, tenant: str) -> ModelAnswer:
        """Asks once and returns the whole answer.

        Raises:
            ModelCallError: No answer came, whatever the reason.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + request.timeout
        subject = subjects.api("llm_gateway", tenant, "generate")
        while True:
            left = max(0.001, until - loop.time())
            try:
                body = _body(request, left)
                if len(body) > self._bus.max_payload:
                    raise ModelCallError(
                        f"the question has {len(body)} bytes; the broker takes {self._bus.max_payload}"
                    )
                answer = await self._bus.request(subject, body, left)
            except NoResponderError:
                if loop.time() + _AGAIN_SECONDS >= until:
                    raise ModelCallError("no llm_gateway is up") from None
                await asyncio.sleep(_AGAIN_SECONDS)
            except RequestTimeoutError:
                raise ModelCallError(f"{request.model} gave no answer within {request.timeout:g} s") from None
            else:
                return _answer(answer)


def _body(request: ModelRequest, seconds: float) -> bytes:
    return GenerateRequest(
        model=request.model,
        prompt=request.prompt,
        schema_=request.schema,
        json_prompt_injection=request.json_prompt_injection,
        model_settings=request.model_settings,
        provider_options=request.provider_options,
        timeout=seconds,
    ).to_json()


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
