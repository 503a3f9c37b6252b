"""Whether the configured models could be called: for `procession check --deploy`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from pydantic import ValidationError

from procession_schemas.admin import ModelsRequest, ModelUse
from procession_schemas.validation import misfit
from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.providers import Provider
from procession_services.processor_host.admin import Admin
from procession_services.runtime.problems import Problem

__all__ = ["ModelsAnswers"]

_CALL_SECONDS = 30.0
_QUESTION = [{"role": "user", "content": [{"type": "text", "text": "Answer with the word yes."}]}]


class ModelsAnswers:
    """Answers `procession.v1.admin.models`.

    Args:
        admin: Who says which replica this is.
        provider: Whom to ask.
        missing: The variables with keys that a model needs and that are not set, or only as in the example.
    """

    def __init__(
        self, admin: Admin, provider: Provider, missing: Callable[[ModelUse], Iterable[str]]
    ) -> None:
        self._admin, self._provider, self._missing = admin, provider, missing

    async def answer(self, _subject: str, body: bytes) -> bytes:
        """A status with what is wrong with the models."""
        try:
            request = ModelsRequest.model_validate_json(body)
        except ValidationError as error:
            problem = Problem("models", "", f"the request cannot be read: {misfit(error).message}")
            return self._admin.says([problem]).to_json()
        told = await asyncio.gather(*(self._wrong(use, call=request.call) for use in request.models))
        return self._admin.says([each for each in told if each is not None]).to_json()

    async def _wrong(self, use: ModelUse, *, call: bool) -> Problem | None:
        if not self._provider.knows(use.model):
            return Problem(
                "models", use.model, "unknown: write provider/name, with a provider that LiteLLM knows"
            )
        if missing := ", ".join(self._missing(use)):
            told = f"needs {missing} in the environment of the gateway (in compose: secrets/providers.env)"
            return Problem("models", use.model, told)
        why = await self._refusal(use) if call else ""
        return Problem("models", use.model, why) if why else None

    async def _refusal(self, use: ModelUse) -> str:
        """Asks the model something; why that failed."""
        settings = {"maxOutputTokens": 16}
        call = ModelCall(model=use.model, prompt=_QUESTION, model_settings=settings, api_base=use.api_base)
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await _drained(self._provider.stream(call))
        except TimeoutError:
            return f"gave no answer within {_CALL_SECONDS:g} seconds"
        except ProviderError as error:
            return f"cannot be called: {error}"
        return ""


async def _drained(chunks: AsyncIterator[object]) -> None:
    async for _ in chunks:
        pass
