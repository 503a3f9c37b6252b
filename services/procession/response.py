"""Collects what a model's answer amounts to once the stream hooks have had it (R-OS-7).

Run control (finish reason, usage) is read from the chunks as the provider sent them; text, reasoning and tool calls
from the chunks as the processors left them, so dropping a control chunk only hides it (A-12), and dropping or editing a
`tool-call` decides what runs (D-20).
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Final

from procession_schemas.chunks import Chunk
from procession_schemas.messages import Part

REPLAYED: Final = ("warnings", "request", "rawResponse")
"""What a cached response tells beside its chunks (R-CA-1)."""
_BESIDE: Final = frozenset({"object", "object-result"})
"""Chunks that are made of the answer, and no part of it."""
_CALL_FIELDS = ("toolCallId", "toolName", "args", "argsText", "providerExecuted")


def local_calls(calls: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls that our tools have to run: those that the provider has not executed itself (R-TX-7)."""
    return [call for call in calls if not call.get("providerExecuted")]


def _call(payload: dict[str, Any]) -> dict[str, Any]:
    """What counts of a tool call.

    Raises:
        TypeError: A stream hook has made in place of its id or name what is no text.
    """
    call = {k: payload[k] for k in _CALL_FIELDS if k in payload}
    if not (isinstance(call["toolCallId"], str) and isinstance(call["toolName"], str)):
        raise TypeError("the id or the name of a tool call is no text")
    return call


class ResponseCollector:
    """Builds the parts of the assistant message and the facts of one response."""

    def __init__(self, *, keep_chunks: bool = False) -> None:
        self._parts: list[Part] = []
        self.tool_calls: list[dict[str, Any]] = []
        self.finish_reason = "other"
        self.usage: dict[str, int | None] = {}
        self.metadata: dict[str, Any] = {}
        self.chunks: list[dict[str, Any]] = []
        self.object: Chunk | None = None
        self.error: Any = None
        self._keep = keep_chunks
        self._used: set[str] = set()
        self._open: dict[tuple[str, str], Part] = {}
        self._unplaced: dict[int, Part] = {}
        self._pieces: dict[int, list[str]] = {}

    def arrived(self, chunk: Chunk) -> None:
        """Notes what the provider said, whatever processors do with the chunk."""
        kind = chunk["type"]
        if kind == "finish":
            payload = chunk.get("payload") or {}
            self.finish_reason = (payload.get("stepResult") or {}).get("reason") or "other"
            usage = (payload.get("output") or {}).get("usage") or {}
            self.usage = {name: count for name, count in usage.items() if name != "raw"}
            provider = (payload.get("metadata") or {}).get("providerMetadata")
            if provider:
                self.metadata["providerMetadata"] = provider
        elif kind == "response-metadata":
            self.metadata.update(chunk.get("payload") or {})
        elif kind == "tool-call" and chunk["payload"].get("repeated"):
            self._used.add(chunk["payload"]["toolCallId"])

    def repeated(self, chunk: Chunk) -> bool:
        """Takes a tool call whose id the run has used before: it runs, but there is one `tool-call` per id (R-CH-6)."""
        if chunk["type"] != "tool-call":
            return False
        payload = chunk.get("payload") or {}
        if payload.get("toolCallId") not in self._used:
            return False
        call = _call(payload)
        self.tool_calls.append({**call, "repeated": True})
        return True

    def passed(self, chunk: Chunk) -> None:
        """Takes a chunk that got through the processors."""
        kind = chunk["type"]
        if self._keep and kind not in _BESIDE and not kind.startswith("data-"):
            self.chunks.append({"type": kind, "payload": chunk.get("payload")})
        if (take := self._takers.get(kind)) is not None:
            take(self, chunk.get("payload") or {})
        elif kind == "object-result":
            self.object = chunk
        elif kind.startswith("data-") and not chunk.get("transient"):
            self._parts.append({"type": kind, "data": chunk.get("data")})

    def _end(self, payload: dict[str, Any], kind: str) -> None:
        closed = self._open.pop((kind, str(payload.get("id"))), None)
        if closed is not None and id(closed) in self._unplaced:
            self._parts.append(self._unplaced.pop(id(closed)))

    def _begin(self, key: tuple[str, str], part: Part) -> Part:
        """Opens a block, behind all that is open."""
        self._place_open()
        self._open[key] = self._unplaced[id(part)] = part
        self._pieces[id(part)] = []
        return part

    def _place_open(self) -> None:
        self._parts += self._unplaced.values()
        self._unplaced.clear()

    def _source(self, payload: dict[str, Any]) -> None:
        self._place_open()
        self._parts.append({"type": "source", "source": payload})

    def _error(self, payload: dict[str, Any]) -> None:
        self.error = payload.get("error")

    def _file(self, payload: dict[str, Any]) -> None:
        self._place_open()
        self._parts.append(
            {"type": "file", "data": payload.get("data"), "mimeType": payload.get("mimeType", "")}
        )

    def _text(self, payload: dict[str, Any]) -> None:
        key = ("text", str(payload.get("id")))
        part = self._open.get(key) or self._begin(key, {"type": "text", "text": ""})
        self._pieces[id(part)].append(payload.get("text") or "")
        told = payload.get("providerMetadata")
        if told and isinstance(told, dict):
            part["providerMetadata"] = told

    def _reasoning(self, payload: dict[str, Any], kind: str) -> None:
        key = ("reasoning", str(payload.get("id")))
        part = self._open.get(key) or self._begin(key, {"type": "reasoning", "reasoning": "", "details": []})
        details = part["details"]
        if kind == "redacted-reasoning":
            details.append({"type": "redacted", "data": payload.get("data")})
            return
        if not details or details[-1]["type"] != "text":
            details.append({"type": "text", "text": ""})
        if kind == "reasoning-signature":
            details[-1]["signature"] = payload.get("signature")
        else:
            self._pieces[id(part)].append(payload.get("text") or "")

    def _tool_call(self, payload: dict[str, Any]) -> None:
        call = _call(payload)
        if any(known["toolCallId"] == call["toolCallId"] for known in self.tool_calls):
            return
        self.tool_calls.append(call)
        self._place_open()
        part: Part = {
            "type": "tool-invocation",
            "toolInvocation": {
                "state": "call",
                "toolCallId": call["toolCallId"],
                "toolName": call["toolName"],
                "args": call.get("args"),
            },
        }
        if call.get("providerExecuted"):
            part["providerExecuted"] = True
        self._parts.append(part)

    def _provider_result(self, payload: dict[str, Any]) -> None:
        if not payload.get("providerExecuted"):
            return
        for part in self._parts:
            invocation = part.get("toolInvocation")
            if invocation and invocation["toolCallId"] == payload.get("toolCallId"):
                invocation["state"] = "result"
                invocation["result"] = payload.get("result")

    @property
    def parts(self) -> list[Part]:
        """The parts of the assistant message; a block takes its place when it ends, behind data written meanwhile.

        Pieces are joined here, so that the cost stays linear. A text of which processors have left nothing is no part:
        providers refuse an empty one in the next prompt.
        """
        parts = [*self._parts, *self._unplaced.values()]
        for part in parts:
            joined = "".join(self._pieces.get(id(part), ()))
            if part["type"] == "text":
                part["text"] = joined
            elif part["type"] == "reasoning":
                part["reasoning"] = joined
                texts = [d for d in part["details"] if d["type"] == "text"]
                if texts:
                    texts[-1]["text"] = joined
        return [
            part for part in parts if part["type"] != "text" or part["text"] or "providerMetadata" in part
        ]

    @property
    def text(self) -> str:
        """The text of the answer as the processors left it."""
        return "".join(p["text"] for p in self.parts if p["type"] == "text")

    def to_dict(self) -> dict[str, Any]:
        """The response as the run's context keeps it."""
        reasoning = "".join(p["reasoning"] for p in self.parts if p["type"] == "reasoning")
        response: dict[str, Any] = {
            "text": self.text,
            "toolCalls": self.tool_calls,
            "finishReason": self.finish_reason,
            "usage": self.usage,
            "metadata": self.metadata,
            "warnings": [],
        }
        if reasoning:
            response["reasoningText"] = reasoning
        if self.object is not None:
            response["object"] = self.object
        if self._keep:
            response["chunks"] = self.chunks
        return response

    _takers: ClassVar[dict[str, Callable[[Any, dict[str, Any]], None]]] = {
        "text-delta": _text,
        "text-end": partial(_end, kind="text"),
        "reasoning-delta": partial(_reasoning, kind="reasoning-delta"),
        "reasoning-signature": partial(_reasoning, kind="reasoning-signature"),
        "redacted-reasoning": partial(_reasoning, kind="redacted-reasoning"),
        "reasoning-end": partial(_end, kind="reasoning"),
        "tool-call": _tool_call,
        "tool-result": _provider_result,
        "source": _source,
        "file": _file,
        "error": _error,
    }
