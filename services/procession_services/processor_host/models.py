"""Model calls of processors, from their service to the LLM gateway."""

from functools import partial

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from procession.services import ModelAnswer, ModelCallError, ModelRequest
from procession_schemas.generate import GenerateReply, GenerateRequest
from procession_schemas.model_settings import misspelt
from procession_schemas.validation import in_words, wrong_fields
from procession_services.bus import Bus, oversized
from procession_services.bus.alive import answer_within


class GatewayModels:
    """Asks the gateway; another one where that falls silent. Waits within the call's timeout while none is up."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def generate(self, request: ModelRequest, *, tenant: str) -> ModelAnswer:
        """Asks once and returns the whole answer.

        Raises:
            ModelCallError: No answer came, whatever the reason.
        """
        body = partial(self._body, request)
        try:
            told = await answer_within(self._bus, ("llm_gateway", tenant, "generate"), request.timeout, body)
        except TimeoutError:
            raise ModelCallError(
                f"{request.model} gave no answer within {request.timeout:g} s; is llm_gateway up?"
            ) from None
        return _answer(told)

    def _body(self, request: ModelRequest, seconds: float, beats: str | None) -> bytes:
        try:
            asked = GenerateRequest(
                model=request.model,
                prompt=request.prompt,
                schema_=request.schema,
                json_prompt_injection=request.json_prompt_injection,
                model_settings=request.model_settings,
                provider_options=request.provider_options,
                timeout=seconds,
                beats=beats,
            )
            body = asked.to_json()
        except ValidationError as error:
            wrong = in_words(((path.rstrip("_"), what) for path, what in wrong_fields(error).items()), "it")
            raise ModelCallError(f"the request to {request.model} is invalid: {wrong}") from error
        except PydanticSerializationError as error:
            raise ModelCallError(
                f"the request to {request.model} cannot be written as JSON: {error}"
            ) from error
        if told := misspelt(asked.model_settings):
            raise ModelCallError(f"the request to {request.model} is invalid: {told}")
        if not self._bus.fits(body):
            raise ModelCallError(
                f"the request to {request.model} {oversized(len(body), self._bus.max_payload)}"
            )
        return body


def _answer(body: bytes) -> ModelAnswer:
    try:
        reply = GenerateReply.model_validate_json(body)
    except ValidationError as error:
        raise ModelCallError(
            "the llm_gateway's reply cannot be read; does it run another version?"
        ) from error
    if reply.error is not None:
        raise ModelCallError(reply.error)
    return ModelAnswer(
        text=reply.text,
        finish_reason=reply.finish_reason,
        usage=reply.usage,
        cost=reply.cost,
        chunks=list(reply.chunks),
    )
