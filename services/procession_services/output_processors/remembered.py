"""What models have told the processors of a stream, for the replica that takes the stream over.

It makes all chunks again from those of the provider (docs/adr/0017). A model that were asked again would cost again,
and might say something else than what clients have got because of its first answer.
"""

import asyncio
import hashlib
import logging
from collections import Counter
from dataclasses import asdict, replace
from typing import Any, Final

from procession.services import KeyValueStore, ModelAnswer, ModelCallError, ModelRequest, Models
from procession_services.runtime.redis_client import AWAY

__all__ = ["RememberedModels"]

log = logging.getLogger(__name__)
_KEPT_SECONDS: Final = 3600.0
_PATIENCE_SECONDS: Final = 2.0
"""How long Redis may keep an answer waiting."""


class RememberedModels:
    """The models of one stream, wherever it is served: each question is asked once.

    Equal questions are told apart by their order. What was not answered, since the replica died meanwhile, is asked
    again.
    """

    def __init__(self, models: Models, store: KeyValueStore, stream: str, *, moved: bool) -> None:
        """`moved`: another replica had the stream before, so there may be answers."""
        self._models, self._store, self._stream, self._moved = models, store, stream, moved
        self._asked: Counter[str] = Counter()

    async def generate(self, request: ModelRequest, *, tenant: str) -> ModelAnswer:
        """Asks, unless the stream had the answer before.

        Raises:
            ModelCallError: No answer came, or none had come then.
        """
        question = repr(replace(request, timeout=0)).encode(errors="surrogatepass")
        digest = hashlib.blake2b(question, digest_size=16).hexdigest()
        self._asked[digest] += 1
        key = f"stream:answer:{self._stream}:{digest}:{self._asked[digest]}"
        told = await self._before(key) if self._moved else None
        if told is None:
            told = await self._first(key, await _told(self._models, request, tenant))
        if "error" in told:
            raise ModelCallError(told["error"])
        return ModelAnswer(**told)

    async def _before(self, key: str) -> dict[str, Any] | None:
        """What was told before; where Redis is away, it has to be asked again."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                told: dict[str, Any] | None = await self._store.get(key)
        except AWAY as error:
            log.warning("stream %s asks a model again, since Redis does not answer: %s", self._stream, error)
            return None
        return told

    async def _first(self, key: str, told: dict[str, Any]) -> dict[str, Any]:
        """Keeps what was told; a replica that stood still may have asked, too, and what was first is everybody's."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                if await self._store.put(key, told, ttl=_KEPT_SECONDS, only_new=True):
                    return told
                return await self._store.get(key) or told
        except AWAY as error:  # a guard must not fail for what only matters where its replica dies
            log.warning(
                "a model's answer for stream %s could not be stored, since Redis does not answer: %s",
                self._stream,
                error,
            )
            return told


async def _told(models: Models, request: ModelRequest, tenant: str) -> dict[str, Any]:
    try:
        return asdict(await models.generate(request, tenant=tenant))
    except ModelCallError as error:
        return {"error": str(error)}
