"""Mends readers of LiteLLM's for providers whose streams it reads itself.

A reader's `chunk_parser` makes a chunk of one decoded event.
"""

from collections.abc import Callable
from typing import Any, Final

from procession_services.llm_gateway.providers.event_errors import EventError, raise_told

_PARSE: Final = "chunk_parser"
_NO_EVENT: Final = "{}"
_THOUGHT, _THOUGHT_END = "<think>", "</think>"
_UNSEEN_THOUGHTS: Final = {
    "reasoning_content": None,
    "completion_response": {"content": [{"type": "redacted_thinking"}]},
}
"""An answer of which LiteLLM cannot estimate how many of its tokens were thoughts."""


def mend_readers() -> None:
    """Mends the readers of Anthropic's and Cohere's streams, of both of Ollama's, and of OpenAI's Responses API."""
    _mend_anthropic()
    _mend_cohere()
    _mend_ollama_chat()
    _mend_ollama_generate()
    _mend_responses()


def _replace(reader: type, method: str, by: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces a method and returns it as it was; raises AttributeError where there is none."""
    replaced: Callable[..., Any] = getattr(reader, method)
    setattr(reader, method, by)
    return replaced


def _mend_anthropic() -> None:
    """Has an answer keep its id, and tell no tokens of thoughts that Anthropic does not tell: they were estimated."""
    from litellm.llms.anthropic.chat.handler import ModelResponseIterator as Reader  # noqa: PLC0415 - takes seconds
    from litellm.llms.anthropic.chat.transformation import AnthropicConfig as Config  # noqa: PLC0415

    def chunk_parser(self: Any, chunk: dict[str, Any]) -> Any:
        if chunk.get("type") == "message_start":
            self.response_id = (chunk.get("message") or {}).get("id") or self.response_id
        return parse(self, chunk)

    def details(self: Any, **told: Any) -> Any:
        return count(self, **told | _UNSEEN_THOUGHTS)

    parse = _replace(Reader, _PARSE, chunk_parser)
    count = _replace(Config, "_build_completion_token_details", details)


def _mend_cohere() -> None:
    """Adds server-sent events, thoughts, and the end: LiteLLM looks for it where Cohere does not tell it."""
    from litellm.llms.cohere.common_utils import CohereV2ModelResponseIterator as Reader  # noqa: PLC0415 - takes seconds
    from litellm.types.utils import Delta, ModelResponseStream, StreamingChoices  # noqa: PLC0415

    def chunk_parser(self: Any, chunk: dict[str, Any]) -> Any:
        raise_told(chunk)
        delta = chunk.get("delta") or {}
        if error := delta.get("error"):
            raise EventError(error)
        content = (delta.get("message") or {}).get("content")
        if thought := isinstance(content, dict) and content.get("thinking"):
            return ModelResponseStream(choices=[StreamingChoices(delta=Delta(reasoning_content=thought))])
        return parse(self, {**chunk, "event": chunk.get("type"), "data": chunk})

    def convert(self: Any, chunk: str) -> Any:
        data = chunk.removeprefix("data:").strip()
        is_event = data and data != "[DONE]" and not data.startswith("event:")
        return read(self, data if is_event else _NO_EVENT)

    parse = _replace(Reader, _PARSE, chunk_parser)
    read = _replace(Reader, "convert_str_chunk_to_generic_chunk", convert)


def _mend_ollama_chat() -> None:
    """Has errors told in Ollama's words; and thoughts in tags, of which only the first piece was one, stay thoughts.

    Only an answer that begins with the tag thinks: another one may tell of it.
    """
    from litellm.llms.ollama.chat.transformation import OllamaChatCompletionResponseIterator as Reader  # noqa: PLC0415

    def chunk_parser(self: Any, chunk: dict[str, Any]) -> Any:
        raise_told(chunk)
        message = chunk.get("message") or {}
        text = message.get("content") or ""
        thinks = getattr(self, "thinks", None)  # until it is known
        if thinks is None and (begun := text.lstrip()):
            thinks = begun.startswith(_THOUGHT)
            text = begun.removeprefix(_THOUGHT) if thinks else text
        if thinks:
            message["thinking"], end, text = text.partition(_THOUGHT_END)
            thinks = not end
        self.thinks = thinks
        message["content"] = ""  # in which LiteLLM would look for tags
        made = parse(self, chunk)
        made.choices[0].delta.content = text or None
        return made

    parse = _replace(Reader, _PARSE, chunk_parser)


def _mend_ollama_generate() -> None:
    """Has errors told in Ollama's words, and an answer that was cut off say so: every end was a stop."""
    from litellm.llms.ollama.completion.transformation import (  # noqa: PLC0415
        OllamaTextCompletionResponseIterator as Reader,
    )

    def chunk_parser(self: Any, chunk: dict[str, Any]) -> Any:
        raise_told(chunk)
        made: Any = parse(self, chunk)
        if chunk.get("done") is True and made["finish_reason"] == "stop":
            made["finish_reason"] = chunk.get("done_reason") or "stop"
        return made

    parse = _replace(Reader, _PARSE, chunk_parser)


def _mend_responses() -> None:
    """Adds refusals and citations, which are events of their own there, and has errors told in the provider's words."""
    from litellm.completion_extras.litellm_responses_transformation.transformation import (  # noqa: PLC0415
        OpenAiResponsesToChatCompletionStreamIterator as Reader,
    )
    from litellm.responses.streaming_iterator import BaseResponsesAPIStreamingIterator as Source  # noqa: PLC0415
    from litellm.types.utils import Delta, ModelResponseStream, StreamingChoices  # noqa: PLC0415

    def chunk_parser(self: Any, chunk: dict[str, Any]) -> Any:
        made = parse(self, chunk)
        match chunk.get("type"):
            case "response.refusal.delta":
                delta = Delta(refusal=chunk.get("delta"))
            case "response.output_text.annotation.added":
                delta = Delta(annotations=[chunk["annotation"]])
            case _:
                return made
        return ModelResponseStream(id=made.id, choices=[StreamingChoices(delta=delta)])

    def raise_error(_: Any, result: Any) -> None:
        kind = getattr(result, "type", None)
        if kind == "response.failed":
            raise EventError(result.model_dump(warnings=False)["response"]["error"])
        if kind == "error":
            told = result.model_dump(warnings=False)
            raise EventError(told.get("error") or told)

    parse = _replace(Reader, _PARSE, chunk_parser)
    _replace(Source, "_maybe_raise_for_error_event", raise_error)
