"""Provider events -> chunks (core.md 11.4): OpenAI-shaped stream deltas in, the contract's chunks out.

Pure and incremental: the reader of the provider's stream feeds every event as it comes and sends on what it
gets. Chunks are `{"type", "payload"}`; `runId` and `from` are the runtime's.
"""

from datetime import UTC, datetime
from typing import Any, Final

from procession_schemas.chunks import Chunk
from procession_services.llm_gateway.core.text import objects, sendable, valid_unicode
from procession_services.llm_gateway.core.tool_calls import ToolCallAssembler
from procession_services.llm_gateway.core.usage import Usage

_WORDS: Final = {
    "stop": ("stop", "STOP", "end_turn", "stop_sequence", "STOP_SEQUENCE", "COMPLETE", "eos", "eos_token"),
    "tool-calls": ("tool_calls", "function_call", "tool_use", "TOOL_CALL"),
    "length": (
        "length",
        "max_tokens",
        "MAX_TOKENS",
        "model_length",
        "model_context_window_exceeded",
        "compaction",
    ),
    "content-filter": (
        "content_filter",
        "content_filtered",
        "guardrail_intervened",
        "refusal",
        "sensitive",
        "ERROR_TOXIC",
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "OTHER",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "ESCALATION",
        "NO_IMAGE",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
        "IMAGE_OTHER",
    ),
    "error": (
        "error",
        "ERROR",
        "network_error",
        "malformed_function_call",
        "MALFORMED_FUNCTION_CALL",
        "MALFORMED_RESPONSE",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "MISSING_THOUGHT_SIGNATURE",
        "malformed_model_output",
        "malformed_tool_use",
    ),
}
REASONS: Final = {word: reason for reason, words in _WORDS.items() for word in words}
"""What providers say about why the model stopped -> the contract's word; any other is `other`."""
_WHOLE: Final = frozenset({"stop", "tool-calls"})
_CUT: Final = frozenset({"length", "content-filter", "error"})
_UNSAID: Final = frozenset({"error", "other"})
"""Words of the contract that say less than the provider did."""
_YEAR_3000: Final = 32_503_680_000
_ONLY_TEXT: Final = frozenset({"role", "content"})
_MADE_UP: Final = "mistral"
"""LiteLLM's signature of each piece of a thought of Mistral's, which has none."""
_BLOCK_IDS: Final = {"text": "txt", "reasoning": "rsn"}


class ChunkAdapter:
    """Adapts the events of one answer.

    Blocks never overlap: text ends before reasoning or a tool call begins, and the other way round.

    Args:
        provider: Name under which provider metadata is given on.
        include_raw: Put a `raw` chunk with the event itself before what the event becomes.

    Attributes:
        usage: What the answer has used so far.
        reasons: How often the provider has said why the model stopped; some do with every event.
    """

    def __init__(self, provider: str = "", *, include_raw: bool = False) -> None:
        self._provider = provider
        self._include_raw = include_raw
        self._response_id = ""
        self._begun = False
        self._block: tuple[str, str] | None = None
        self._signed = False
        self._numbers = {"text": 0, "reasoning": 0, "source": 0}
        self._cited: set[str] = set()
        self._calls = ToolCallAssembler()
        self._reason: str | None = None
        self.reasons = 0
        self.usage = Usage()
        self._metadata: dict[str, Any] = {}

    def feed(self, event: dict[str, Any]) -> list[Chunk]:
        """Return the chunks of one event, possibly none.

        `event` is a `chat.completion.chunk` as a dict; keys without a value may be missing. Only the choice
        with index 0 counts.
        """
        if metadata := event.get("provider_specific_fields"):
            self._metadata.update(sendable(metadata))
        choices: list[dict[str, Any]] = event.get("choices") or []
        choice = choices[0] if choices else {}
        if choice.get("index"):
            choice = next((each for each in choices if not each.get("index")), {})
        usage = event.get("usage") or choice.get("usage")  # Moonshot's is in the choice
        if isinstance(usage, dict):
            self.usage.add(usage)
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            self.reasons += 1
            if reason != "stop" or self._reason is None:
                self._reason = reason
        if not self._response_id:
            self._response_id = event.get("id") or ""
        chunks = self._delta(choice.get("delta") or self._whole(choice))
        if usage and event.get("citations"):  # they come with the usage: most events are not asked
            chunks += self._citations(event)
        if not self._begun and (chunks or self._response_id):
            self._begun = True
            chunks.insert(0, self._response_metadata(event))
        return [{"type": "raw", "payload": sendable(event)}, *chunks] if self._include_raw else chunks

    def finish(self, *, over: bool = False) -> list[Chunk]:
        """Return the last chunks: the ends of what is still open, and `finish`.

        `over`: the provider has said that nothing follows, rather than just gone.
        """
        reason = REASONS.get(self._reason or "", "other")
        metadata = {"providerMetadata": {self._provider: self._metadata}} if self._metadata else {}
        said = {"rawReason": self._reason} if reason in _UNSAID and self._reason not in (None, reason) else {}
        payload = {
            "stepResult": {"reason": reason, **said},
            "output": {"usage": self.usage.told()},
            "metadata": metadata,
        }
        cut = reason in _CUT or not (self._reason or over)
        ends = [*self._close_block(), *self._calls.close_all(repair=reason in _WHOLE, cut=cut)]
        return [*ends, {"type": "finish", "payload": payload}]

    def _response_metadata(self, event: dict[str, Any]) -> Chunk:
        payload = {
            "id": self._response_id or None,
            "modelId": event.get("model"),
            "timestamp": _timestamp(event.get("created")),
        }
        known = {name: value for name, value in payload.items() if value is not None}
        return {"type": "response-metadata", "payload": known}

    def _whole(self, choice: dict[str, Any]) -> dict[str, Any]:
        """The message of an answer that comes whole in a stream; behind deltas, some tell all of it again."""
        message = choice.get("message")
        if not isinstance(message, dict) or not choice.get("finish_reason"):
            return {}
        begun = self._calls.begun or any(self._numbers.values())
        return {} if begun else message

    def _delta(self, delta: dict[str, Any]) -> list[Chunk]:
        text = delta.get("content")
        if text and not isinstance(text, str):
            delta = {"reasoning": _thought(text), **delta}
            text = _joined(text)
        if delta.keys() <= _ONLY_TEXT:  # most are
            return self._text("text", text) if text else []
        chunks = self._reasoning(delta)
        if text := text or delta.get("refusal"):
            chunks += self._text("text", text)
        for annotation in objects(delta.get("annotations")):
            chunks += self._source(annotation)
        for image in objects(delta.get("images")):
            chunks += _file(image)
        told = delta.get("tool_calls")
        calls = objects([told] if isinstance(told, dict) else told)  # an object where old TGI has one call
        if not calls and isinstance(function := delta.get("function_call"), dict):
            calls = [{"function": function}]  # as OpenAI told calls at first
        if calls:
            chunks += self._close_block()
            for place, call in enumerate(calls):
                known = len(calls) == 1 or call.get("index") is not None
                placed = call if known else {**call, "index": place}
                chunks += self._calls.feed(placed, self._response_id, self._provider)
        if own := delta.get("provider_specific_fields"):
            chunks += self._executed(sendable(own))
        return chunks

    def _executed(self, own: dict[str, Any]) -> list[Chunk]:
        """Take which of its own tools Anthropic has called, what they found, and what the text cites of it."""
        chunks: list[Chunk] = []
        for call in own.get("server_tool_calls") or ():
            if begun := self._calls.take_own(call):
                chunks += [*self._close_block(), *begun]
        for block in (*(own.get("web_search_results") or ()), *(own.get("tool_results") or ())):
            if result := self._calls.take_result(block):
                chunks += [*self._close_block(), *result]
                found = block.get("content")
                for each in found if isinstance(found, list) else ():
                    chunks += self._url_source(each)
        if citation := own.get("citation"):
            cited = {name: value for name, value in citation.items() if name not in ("url", "title")}
            chunks += self._url_source(citation, providerMetadata={self._provider: cited})
        return chunks

    def _text(self, kind: str, text: str) -> list[Chunk]:
        """Add text to the open block of this kind, and open one if there is none."""
        chunks = self._open_block(kind)
        payload = {"id": self._block_id(), "text": valid_unicode(text)}
        chunks.append({"type": f"{kind}-delta", "payload": payload})
        return chunks

    def _reasoning(self, delta: dict[str, Any]) -> list[Chunk]:
        blocks = delta.get("thinking_blocks") or ()
        text = delta.get("reasoning_content") or delta.get("reasoning")
        apart = bool(text) and text != "".join(block.get("thinking") or "" for block in blocks)
        chunks = self._thought(text) if apart and isinstance(text, str) else []
        for block in blocks:
            if not apart and (thinking := block.get("thinking")):
                chunks += self._thought(thinking)
            if (signature := block.get("signature")) and signature != _MADE_UP:
                chunks += [*self._end_signed(), *self._open_block("reasoning")]
                self._signed = True
                payload = {"id": self._block_id(), "signature": signature}
                chunks.append({"type": "reasoning-signature", "payload": payload})
            elif block.get("data"):
                chunks += [*self._close_block(), *self._calls.close_complete()]
                payload = {"id": self._next_id("reasoning"), "data": block["data"]}
                chunks.append({"type": "redacted-reasoning", "payload": payload})
        return chunks

    def _thought(self, text: str) -> list[Chunk]:
        return [*self._end_signed(), *self._text("reasoning", text)]

    def _end_signed(self) -> list[Chunk]:
        """End a block of reasoning that has its signature: what follows belongs to another one."""
        return self._close_block() if self._signed else []

    def _source(self, annotation: dict[str, Any]) -> list[Chunk]:
        if annotation.get("type") != "url_citation":
            return []
        return self._url_source(annotation.get("url_citation") or annotation)

    def _citations(self, event: dict[str, Any]) -> list[Chunk]:
        """Take the pages that the whole answer rests on; Perplexity names them all again and again."""
        titles = {str(page.get("url")): page.get("title") for page in objects(event.get("search_results"))}
        named = event["citations"] if isinstance(event["citations"], list) else []
        urls = [url for url in named if isinstance(url, str) and url not in self._cited]
        self._cited.update(urls)
        sources = [self._url_source({"url": url, "title": titles.get(url)}) for url in dict.fromkeys(urls)]
        return [chunk for source in sources for chunk in source]

    def _url_source(self, cited: dict[str, Any], **besides: Any) -> list[Chunk]:
        if not cited.get("url"):
            return []
        number = self._numbers["source"]
        self._numbers["source"] += 1
        payload = {
            "id": f"src-{number}",
            "sourceType": "url",
            "url": cited["url"],
            "title": cited.get("title") or "",
            **besides,
        }
        return [{"type": "source", "payload": payload}]

    def _open_block(self, kind: str) -> list[Chunk]:
        if self._block is not None and self._block[0] == kind:
            return []
        chunks = [*self._close_block(), *self._calls.close_complete()]
        self._block = (kind, self._next_id(kind))
        return [*chunks, {"type": f"{kind}-start", "payload": {"id": self._block_id()}}]

    def _close_block(self) -> list[Chunk]:
        if self._block is None:
            return []
        (kind, block_id), self._block = self._block, None
        self._signed = False
        return [{"type": f"{kind}-end", "payload": {"id": block_id}}]

    def _block_id(self) -> str:
        return self._block[1] if self._block else ""

    def _next_id(self, kind: str) -> str:
        number = self._numbers[kind]
        self._numbers[kind] += 1
        return f"{_BLOCK_IDS[kind]}-{number}"


def _timestamp(created: Any) -> str | None:
    """Return seconds since 1970 as ISO 8601; None for what cannot be such a time."""
    if not isinstance(created, int | float) or not 0 < created < _YEAR_3000:
        return None
    return datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _file(image: dict[str, Any]) -> list[Chunk]:
    url = (image.get("image_url") or {}).get("url") or ""
    if not url.startswith("data:"):
        payload = {"data": url, "mimeType": "image/*"}
        return [{"type": "file", "payload": payload}] if url else []
    head, _, data = url.removeprefix("data:").partition(",")
    payload = {"data": data, "base64": data, "mimeType": head.partition(";")[0] or "image/png"}
    return [{"type": "file", "payload": payload}]


def _thought(content: Any) -> str:
    """Return the thoughts of content that is a list of parts, as Mistral tells them."""
    return "".join(
        _joined(part.get("thinking")) for part in objects(content) if part.get("type") == "thinking"
    )


def _joined(content: Any) -> str:
    """Return the text of content that is a list of parts."""
    texts = [part.get("text") for part in objects(content) if part.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))
