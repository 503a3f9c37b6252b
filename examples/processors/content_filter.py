"""`content-filter`: a guardrail for both arrays, and the factory that makes it for each request."""

from typing import Annotated, Any

from pydantic import Field

from procession import Chunk, InputArgs, Options, OutputStreamArgs, Processor, RequestContext, StreamReturn


class ContentFilterOptions(Options):
    """Options of `content-filter`."""

    blocked_words: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="Texts that block, wherever they occur; upper and lower case differ."
    )


class ContentFilter(Processor[ContentFilterOptions]):
    """Blocks requests and answers that contain one of the words.

    In the answer, the end of the text is held back while a blocked word could begin there. So nothing of a word
    leaves before it is certain that it is none, and the verdict is the same for every way of cutting the text (D-8).
    """

    id = "content-filter"
    description = "Blocks requests and answers with certain words."
    on_error = "fail"

    def process_input(self, args: InputArgs) -> None:
        """Looks at each message; its text parts count as separated by a space."""
        for message in args.messages:
            parts = message["content"]["parts"]
            if self._blocked(" ".join(part["text"] for part in parts if part["type"] == "text")):
                args.abort("Blocked content detected in input")

    def process_output_stream(self, args: OutputStreamArgs) -> StreamReturn:
        """Passes on what is certain; a block's end and the answer's end release the rest."""
        part, held = args.part, args.state.setdefault("held", {})
        payload = part.get("payload", {})
        if part["type"] == "text-delta":
            block = payload["id"]
            text = held.pop(block, "") + payload["text"]
            if self._blocked(text):
                args.abort("Blocked content detected in output")
            certain = len(text) - self._open_end(text)
            if certain < len(text):
                held[block] = text[certain:]
            if text[:certain] == payload["text"]:
                return part
            return {**part, "payload": {**payload, "text": text[:certain]}} if certain else None
        if part["type"] == "text-end" and payload["id"] in held:
            return [_delta(payload["id"], held.pop(payload["id"])), part]
        if part["type"] == "finish" and held:
            rest = [_delta(block, text) for block, text in held.items()]
            held.clear()
            return [*rest, part]
        return part

    def _blocked(self, text: str) -> bool:
        return any(word in text for word in self.options.blocked_words)

    def _open_end(self, text: str) -> int:
        """How many characters at the end may be the beginning of a blocked word."""
        beginnings = (word[:size] for word in self.options.blocked_words for size in range(1, len(word)))
        return max((len(beginning) for beginning in beginnings if text.endswith(beginning)), default=0)


def blocked_words_of_request(context: RequestContext, _options: dict[str, Any]) -> list[Any]:
    """The factory `blocked-words`: a content filter with the words that the caller sent with the request."""
    words = context.get("blockedWords") or []
    return [{"id": ContentFilter.id, "options": {"blockedWords": words}}]


def _delta(block: str, text: str) -> Chunk:
    return {"type": "text-delta", "payload": {"id": block, "text": text}}
