"""Four processors to learn from; `PROCESSION_PLUGINS=procession_services.demo.processors` installs them.

Each shows one thing: `question-check` blocks a request, `email-redactor` changes a stream and is safe across
chunk boundaries, `word-counter` keeps state between hooks, `retry-once` decides about a failed model call.
"""

import re
import string
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from procession.args import (
    APIErrorArgs,
    APIErrorResult,
    InputArgs,
    InputReturn,
    MessagesReturn,
    OutputResultArgs,
    OutputStreamArgs,
    StreamReturn,
)
from procession.processor import Options, Processor
from procession.registry import Registry
from procession_schemas.chunks import Chunk
from procession_schemas.messages import Message

_LETTERS: Final = string.ascii_letters + "".join(map(chr, range(0xC0, 0x250)))
"""Latin ones, those with accents too."""
_WORD: Final = re.compile(rf"[{_LETTERS}0-9_.%+-]+(@[{_LETTERS}0-9_-]+(?:\.[{_LETTERS}0-9_-]+)+)?")
"""A word, and what makes an address of it: one that is none is passed over at once, however long it is."""
_IN_ADDRESSES: Final = _LETTERS + string.digits + "_.%+@-"


class QuestionCheckOptions(Options):
    """Options of `question-check`."""

    max_characters: int = Field(default=2000, gt=0, description="Longest question.")
    forbidden: tuple[str, ...] = Field(default=("password",), description="Words that block the request.")


class QuestionCheck(Processor[QuestionCheckOptions]):
    """Blocks a request without a question, with one that is too long, or with a forbidden word."""

    id = "question-check"
    description = "Blocks requests that are empty, too long, or ask for what is forbidden."
    on_error: ClassVar[Literal["fail", "skip"] | None] = "fail"

    def process_input(self, args: InputArgs) -> InputReturn:
        """Looks at the newest message of the user, before any model is called."""
        asked = [message for message in args.messages if message["role"] == "user"]
        question = text_of(asked[-1]).strip() if asked else ""
        if not question:
            args.abort("There is no question.")
        if len(question) > self.options.max_characters:
            args.abort(
                f"The question has {len(question)} characters; {self.options.max_characters} are allowed."
            )
        found = [word for word in self.options.forbidden if word.casefold() in question.casefold()]
        if found:
            args.abort("The question asks for something that is not given away.", metadata={"words": found})
        return None


class EmailRedactorOptions(Options):
    """Options of `email-redactor`."""

    replacement: str = Field(default="[e-mail removed]", description="What stands in for an address.")


class EmailRedactor(Processor[EmailRedactorOptions]):
    """Replaces e-mail addresses in the answer, wherever chunks cut them.

    Text is passed on up to the last character that no later text can make a part of an address; the rest,
    usually one word, is held back in the state until more text or the end of the block comes.
    """

    id = "email-redactor"
    description = "Replaces e-mail addresses in the answer, also those cut by chunks."
    on_error: ClassVar[Literal["fail", "skip"] | None] = "fail"

    def process_output_stream(self, args: OutputStreamArgs) -> StreamReturn:
        """Redacts what is certain and holds back what is not."""
        part, held = args.part, args.state.setdefault("held", {})
        block = part.get("payload", {}).get("id", "")
        match part["type"]:
            case "text-delta":
                text = held.get(block, "") + part["payload"]["text"]
                certain = len(text.rstrip(_IN_ADDRESSES))
                held[block] = text[certain:]
                passed = self._redacted(text[:certain], args.state)
                if passed == part["payload"]["text"]:
                    return part
                return _delta(part, passed) if passed else None
            case "text-end" if held.get(block):
                rest = self._redacted(held.pop(block), args.state)
                return [_delta({"type": "text-delta", "payload": {"id": block}}, rest), part]
        return part

    def _redacted(self, text: str, state: dict[str, Any]) -> str:
        def redact(word: re.Match[str]) -> str:
            if word[1] is None:
                return word[0]
            state["redacted"] = state.get("redacted", 0) + 1
            return self.options.replacement

        return _WORD.sub(redact, text)


class WordCounter(Processor[Options]):
    """Counts the words of the answer while it streams, and sends the count at the end."""

    id = "word-counter"
    description = "Counts words while they stream; sends `data-word-count` at the end."

    def process_output_stream(self, args: OutputStreamArgs) -> StreamReturn:
        """Counts the beginnings of words; a word that goes on in the next chunk has begun already."""
        if args.part["type"] == "text-delta":
            text = args.part["payload"]["text"]
            inside = bool(args.state.get("inside"))
            begun = len(text.split()) - (1 if inside and text[:1].strip() else 0)
            args.state["words"] = args.state.get("words", 0) + begun
            args.state["inside"] = bool(text[-1:].strip()) if text else inside
        return args.part

    async def process_output_result(self, args: OutputResultArgs) -> MessagesReturn:
        """Sends what was counted."""
        words = args.state.get("words", 0)
        await args.writer.custom({"type": "data-word-count", "data": {"words": words}, "transient": True})
        return None


class RetryOnce(Processor[Options]):
    """Asks for the step again when the provider fails with an error that may pass, once in a run."""

    id = "retry-once"
    description = "Tries a failed model call again, once in a run."

    def process_api_error(self, args: APIErrorArgs) -> APIErrorResult | None:
        """Remembers in the state that the one retry is used up."""
        if args.state.get("used") or args.error.is_retryable is False:
            return None
        args.state["used"] = True
        return {"retry": True}


def register(registry: Registry) -> None:
    """Installs the demonstration's processors."""
    for processor in (QuestionCheck, EmailRedactor, WordCounter, RetryOnce):
        registry.add_processor(processor)


def text_of(message: Message) -> str:
    """The text of a message: its text parts, one after another."""
    return "".join(part.get("text", "") for part in message["content"]["parts"] if part["type"] == "text")


def _delta(part: Mapping[str, Any], text: str) -> Chunk:
    return {**part, "payload": {**part["payload"], "text": text}}  # type: ignore[typeddict-item]  # same keys
