"""What models have told the processors of a stream, for the replica that takes the stream over.

It makes all chunks again from those of the provider (docs/adr/0017). A model that were asked again would cost again,
and might say something else than what clients have got because of its first answer.
"""

import hashlib
from collections import Counter
from dataclasses import asdict, replace
from typing import Any, Final

from procession.services import KeyValueStore, ModelAnswer, ModelCallError, ModelRequest, Models

__all__ = ["RememberedModels"]

_KEPT_SECONDS: Final = 3600.0


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
        told = await self._store.get(key) if self._moved else None
        if told is None:
            told = await _told(self._models, request, tenant)
            # A replica that stood still meanwhile may have asked, too; then the answer that was first is everybody's.
            if not await self._store.put(key, told, ttl=_KEPT_SECONDS, only_new=True):
                told = await self._store.get(key) or told
        if "error" in told:
            raise ModelCallError(told["error"])
        return ModelAnswer(**told)


async def _told(models: Models, request: ModelRequest, tenant: str) -> dict[str, Any]:
    try:
        return asdict(await models.generate(request, tenant=tenant))
    except ModelCallError as error:
        return {"error": str(error)}
