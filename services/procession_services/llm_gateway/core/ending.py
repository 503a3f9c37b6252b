"""Which ends of an answer are failures of the call, though the provider reports none (R-AE-3c)."""

from collections.abc import Sequence
from typing import Final

from procession_schemas.chunks import Chunk
from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.failures import ProviderError

_OUTPUT: Final = frozenset(
    {
        "text-delta",
        "reasoning-delta",
        "redacted-reasoning",
        "tool-call",
        "tool-call-delta",
        "tool-result",
        "source",
        "file",
    }
)
_CODE: Final = "AGENT_STREAM_ERROR"
"""As the reference names these failures."""


class Ending:
    """Watches the chunks of one answer, as the provider made them."""

    def __init__(self, call: ModelCall) -> None:
        self._call = call
        self._has_output = False

    def failure(self, chunks: Sequence[Chunk]) -> ProviderError | None:
        """The failure with which these chunks, the next ones of the answer, end it; `finish` is always the last one."""
        if not self._has_output:
            self._has_output = any(chunk["type"] in _OUTPUT for chunk in chunks)
        if not chunks or chunks[-1]["type"] != "finish":
            return None
        end = (chunks[-1].get("payload") or {}).get("stepResult") or {}
        reason = end.get("reason") or "other"
        said = end.get("rawReason") or reason
        if reason == "error":
            return self._failed(f"the answer ended with finish reason {said!r}, but no error was reported")
        if reason == "other" and not self._has_output:
            return self._failed(f"the answer ended with finish reason {said!r}, and it was empty")
        return None

    def _failed(self, message: str) -> ProviderError:
        call = self._call
        return ProviderError(message, kind="stream", provider=call.provider, model=call.model, code=_CODE)
