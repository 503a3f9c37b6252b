"""Puts tool calls together from the deltas of a stream (core.md 11.4, R-CH-6)."""

from dataclasses import dataclass, field
from typing import Any, Final

from procession.json_values import NotJsonError, given
from procession_schemas.chunks import Chunk
from procession_services.llm_gateway.core.messages import compact_json
from procession_services.llm_gateway.core.text import (
    InvalidJsonError,
    close_json,
    parse_json,
    sendable,
    valid_unicode,
)

_PROVIDERS_OWN: Final = "srvtoolu_"
"""How Anthropic's ids of calls begin that it executes itself."""


@dataclass(slots=True)
class _Call:
    """One call that is being received; `announced` once its arguments are being streamed on."""

    id: str
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    announced: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The arguments so far, without the `{}` that some send before the real ones."""
        text = valid_unicode("".join(self.pieces))
        return text[2:] if text.startswith("{}{") else text

    def complete(self) -> bool:
        """Whether the arguments are a whole JSON object, to which nothing can be added.

        Some are asked at every piece: the end of the last one tells most of them.
        """
        last = next((told for piece in reversed(self.pieces) if (told := piece.rstrip())), "")
        if not last.endswith("}"):
            return False
        try:
            return isinstance(parse_json(self.text), dict)
        except InvalidJsonError:
            return False

    def add(self, piece: str) -> list[Chunk]:
        """Take a piece of the arguments; announce the call when there is a second one."""
        if piece or not self.pieces:
            self.pieces.append(piece)
        if self.announced:
            return [self._delta(piece)] if piece else []
        if len(self.pieces) == 1 or not self.name:
            return []
        self.announced = True
        return [
            {"type": "tool-call-input-streaming-start", "payload": self._head()},
            *(self._delta(each) for each in self.pieces if each),
        ]

    def end(self, *, repair: bool, cut: bool) -> list[Chunk]:
        """Return the chunks that end the call."""
        payload = {**self._head(), **_arguments(self.text, repair=repair, cut=cut)}
        if self.metadata:
            payload["providerMetadata"] = self.metadata
        chunks: list[Chunk] = [{"type": "tool-call", "payload": payload}]
        if self.announced:
            chunks.insert(0, {"type": "tool-call-input-streaming-end", "payload": {"toolCallId": self.id}})
        return chunks

    def result(self, result: Any) -> Chunk:
        """Return what the provider says came of the call."""
        payload = {**self._head(), **_arguments(self.text), "result": result}
        if isinstance(result, dict) and str(result.get("type")).endswith("_error"):
            payload["isError"] = True
        return {"type": "tool-result", "payload": payload}

    def _head(self) -> dict[str, Any]:
        head: dict[str, Any] = {"toolCallId": self.id, "toolName": self.name}
        return {**head, "providerExecuted": True} if self.id.startswith(_PROVIDERS_OWN) else head

    def _delta(self, piece: str) -> Chunk:
        payload = {"toolCallId": self.id, "toolName": self.name, "argsTextDelta": valid_unicode(piece)}
        return {"type": "tool-call-delta", "payload": payload}


class ToolCallAssembler:
    """Turns tool-call deltas into chunks.

    A call whose arguments come in one delta becomes one `tool-call`. As soon as a second piece of arguments
    arrives, the call is announced and streamed: `tool-call-input-streaming-start`, `tool-call-delta`..., and
    at its end `tool-call-input-streaming-end` and `tool-call`. Calls end in the order in which they began.

    Attributes:
        begun: How many calls have begun.
    """

    def __init__(self) -> None:
        self._open: list[tuple[Any, _Call]] = []
        self._ended: dict[str, _Call] = {}
        self._results: set[str] = set()
        self.begun = 0

    def feed(self, delta: dict[str, Any], response_id: str, provider: str) -> list[Chunk]:
        """Take one entry of `delta.tool_calls`.

        `response_id` names calls that the provider left nameless; `provider` is the key of
        `providerMetadata`.

        Raises:
            TypeError, AttributeError: It is not of the shape of such an entry.
        """
        function = delta.get("function") or {}
        name = function.get("name")
        if not isinstance(name, str | None):
            raise TypeError("the name of a tool is not a string")
        if not isinstance(delta.get("id"), str | None):  # some count
            delta = {**delta, "id": str(delta["id"])}
        call, chunks = self._find(delta, function), []
        if call is not None and name and self._is_another(delta, call):
            return []  # of calls with one id, the first counts (R-CH-6)
        if call is None:
            if delta.get("id") in self._ended or not (delta.get("id") or name):
                return []  # an afterthought to a call that was complete
            chunks = self.close_complete()
            call = self._begin(delta, response_id)
        call.name = call.name or name or ""
        if own := delta.get("provider_specific_fields"):
            call.metadata.setdefault(provider, {}).update(sendable(own))
        arguments = function.get("arguments") or ""
        return chunks + call.add(arguments if isinstance(arguments, str) else compact_json(arguments))

    def take_own(self, call: dict[str, Any]) -> list[Chunk]:
        """Take a whole call that the provider executes; LiteLLM tells each one again with the next."""
        call_id = call["id"]
        if call_id in self._ended or any(each.id == call_id for _, each in self._open):
            return []
        # Its index is one among the provider's own calls.
        return self.feed({"id": call_id, "function": call["function"]}, "", "")

    def take_result(self, block: dict[str, Any]) -> list[Chunk]:
        """Take the result of a call that the provider has executed; LiteLLM tells each one again with the next."""
        call_id = str(block.get("tool_use_id"))
        if call_id in self._results:
            return []
        chunks = self.close_complete()
        if any(call.id == call_id for _, call in self._open):
            chunks += self.close_all()  # who has its result has all that was said before
        if call_id not in self._ended:
            return chunks
        self._results.add(call_id)
        return [*chunks, self._ended[call_id].result(block.get("content"))]

    def close_complete(self) -> list[Chunk]:
        """End the calls, oldest first, until one still lacks arguments."""
        chunks: list[Chunk] = []
        while self._open and self._open[0][1].complete():
            chunks += self._end(self._open.pop(0)[1])
        return chunks

    def close_all(self, *, repair: bool = False, cut: bool = False) -> list[Chunk]:
        """End every call.

        Args:
            repair: Close arguments that stop too early. Only for an answer that the provider calls whole: with one that
                was cut off, the tool would run with half a value.
            cut: The answer was cut off: in a call without arguments they were still to come.
        """
        calls, self._open = self._open, []
        return [chunk for _, call in calls for chunk in self._end(call, repair=repair, cut=cut)]

    def _find(self, delta: dict[str, Any], function: dict[str, Any]) -> _Call | None:
        """Find the open call that a delta belongs to; None for a new one.

        Ids tell calls apart, since some providers number every call 0. Where only the index is known, a name
        behind whole arguments begins another call, unless it is the same name with nothing to add; an id
        without a name does not, since some providers have a new id for every delta.
        """
        index, call_id, name = delta.get("index"), delta.get("id"), function.get("name")
        if call_id:
            for _, call in self._open[::-1]:
                if call_id == call.id:
                    return call
            if name or index is None or call_id in self._ended:
                return None
        for key, call in self._open[::-1]:
            if index in (None, key):
                news = name and call.name and (name != call.name or function.get("arguments"))
                return None if news and call.complete() else call
        return None

    def _is_another(self, delta: dict[str, Any], call: _Call) -> bool:
        """Whether a delta begins a second call with the id of one that is whole: it has an index of its own."""
        indexes = [None, *(key for key, each in self._open if each is call)]
        return delta.get("id") == call.id and delta.get("index") not in indexes and call.complete()

    def _begin(self, delta: dict[str, Any], response_id: str) -> _Call:
        call = _Call(id=delta.get("id") or f"{response_id or 'call'}-{self.begun}")
        self.begun += 1
        self._open.append((delta.get("index"), call))
        return call

    def _end(self, call: _Call, *, repair: bool = False, cut: bool = False) -> list[Chunk]:
        self._ended[call.id] = call
        return call.end(repair=repair, cut=cut)


def _arguments(text: str, *, repair: bool = False, cut: bool = False) -> dict[str, Any]:
    """Return `{"args": ...}`, or `{"argsText": ...}` when the text is no JSON that travels even after a repair.

    Nothing and `null` are what some send for a tool without parameters.
    """
    if not text.strip():
        return {"argsText": text} if cut else {"args": {}}
    for candidate in (text, close_json(text)) if repair else (text,):
        try:
            args = parse_json(candidate)
            given(args, "arguments")
        except (InvalidJsonError, NotJsonError):
            continue
        return {"args": {} if args is None else args}
    return {"argsText": text}
