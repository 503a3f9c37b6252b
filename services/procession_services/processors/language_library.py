"""Language detection without a model: py3langid, 140 languages, 3.4 MB of model data (docs/adr/0010).

The data are loaded on first use, once for the process, off the event loop: about one second and 120 MB.
"""

import asyncio
import importlib.util
from functools import lru_cache
from typing import Any, Final

from procession_services.processors.core.languages import Found, sample

__all__ = ["identify", "installed"]

_CODES: Final = {"nn": "no", "yue": "zh", "wuu": "zh"}
"""Codes that the table of languages counts to another one."""
_NOTHING: Final = "zxx"


def installed() -> bool:
    """Whether the library is there: extra `guardrails`."""
    return importlib.util.find_spec("py3langid") is not None


async def identify(text: str) -> Found:
    """The language of a text; no code where there is none in it, such as in numbers or code."""
    identifier = _load() if _load.cache_info().currsize else await asyncio.to_thread(_load)
    code, confidence = identifier.classify(sample(text))
    if code == _NOTHING:
        return Found()
    return Found(_CODES.get(code, code), round(confidence, 4))


@lru_cache(maxsize=1)
def _load() -> Any:
    # Here because it is an extra, and slow to import.
    from py3langid.langid import LanguageIdentifier  # type: ignore[import-untyped]  # noqa: PLC0415

    return LanguageIdentifier.from_model_file("data/model.npz.xz", norm_probs=True)
