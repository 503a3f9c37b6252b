"""`system-prompt-scrubber`: keeps the system prompt out of the answer (builtins.md 8).

Repetitions of the run's own system messages and of given texts, and custom patterns, are found here, without a model
and while the answer streams. A model may look at the rest, sentence by sentence: it also knows a paraphrase.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from procession.args import HookArgs, OutputResultArgs, OutputStreamArgs
from procession.hold_back import Match, Scanner, StreamMode, hold_flush, hold_stream, refuse_blind_action
from procession.scanners import RegexRule, RegexScanner
from procession_schemas.chunks import Chunk
from procession_schemas.messages import Message
from procession_services.processors.core.detector_text import with_text
from procession_services.processors.core.judged_stream import JudgedStream, Verdict, edged
from procession_services.processors.core.spans import (
    Span,
    joined_text,
    located,
    replaced,
    replaced_in_parts,
    united,
)
from procession_services.processors.core.verbatim import Scanners, is_findable, verbatim_scanners
from procession_services.processors.detector import Detector, DetectorOptions
from procession_services.runtime.words import number_of

CUSTOM: Final = "custom_pattern"
_MOST_TEXTS: Final = 500
"""Each is compiled alone: two milliseconds and 50 kB."""
_WHOLE: Final = 1 << 30
_LONG: Final = 50_000
"""Characters from which on work is done in a thread, so that the service goes on meanwhile."""
_KIND: Final = re.compile(r"[A-Za-z][\w-]{0,39}")


class SystemPromptScrubberOptions(DetectorOptions):
    """Options of `system-prompt-scrubber`."""

    model: str = Field(
        default="",
        description="Model of the second stage, `provider/name`; without it there is no second stage.",
    )
    strategy: Literal["block", "warn", "filter", "redact"] = Field(
        default="redact",
        description="`block`: the run ends. `warn`: the text passes, the violation is reported. `filter`: what was "
        "found, or the piece or message that the model objects to, is dropped. `redact`: it is replaced.",
    )
    own_prompt: bool = Field(
        default=True, description="Find repetitions of the run's system messages (instructions and `system`)."
    )
    protected_texts: tuple[str, ...] = Field(
        default=(), max_length=_MOST_TEXTS, description="Further texts not to be repeated."
    )
    min_words: int = Field(
        default=8,
        ge=4,
        le=100,
        description="This many words in a row are a repetition; shorter texts (of four words or more) are found whole.",
    )
    custom_patterns: tuple[str, ...] = Field(
        default=(),
        description="Regular expressions for text that must not get out; `(?i)` ignores case (D-13).",
    )
    threshold: float = Field(
        default=0.7,
        ge=0,
        le=1,
        description="Confidence of the model at which a detection counts (D-13).",
    )
    redaction_method: Literal["mask", "placeholder", "remove"] = Field(
        default="mask",
        description="`mask`: an asterisk for each character. `placeholder`: `placeholderText`.",
    )
    placeholder_text: str = Field(default="[SYSTEM_PROMPT]", description="What replaces redacted text.")
    include_detections: bool = Field(
        default=False, description="List type, position and confidence of each detection in the report."
    )
    stream_mode: StreamMode = Field(
        default=StreamMode.WINDOW,
        description="`window`: text goes out as soon as it is judged. `hold`: once its text block has ended. "
        "`observe`: at once; only with strategy `warn`.",
    )
    piece_size: int = Field(
        default=200,
        ge=1,
        le=20_000,
        description="Characters of a stream after which a piece ends with its sentence; the model is asked once for "
        "each piece.",
    )
    _patterns: RegexScanner | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _can_work(self) -> Self:
        refuse_blind_action(self.stream_mode, self.strategy, reports=frozenset({"warn"}))
        if not (self.model or self.own_prompt or self.protected_texts or self.custom_patterns):
            raise ValueError("nothing to look for: give a model, ownPrompt, protectedTexts or customPatterns")
        for place, text in enumerate(self.protected_texts):
            if not is_findable(text):
                raise ValueError(
                    f"protectedTexts.{place} has fewer than four words, and would never be found; put it into "
                    "customPatterns instead"
                )
        if self.custom_patterns:
            self._patterns = RegexScanner([RegexRule(CUSTOM, each) for each in self.custom_patterns])
        return self

    @property
    def patterns(self) -> tuple[Scanner, ...]:
        """The scanner of the custom patterns, if there are any."""
        return (self._patterns,) if self._patterns else ()


@dataclass(frozen=True, slots=True)
class Detection:
    """What was found at a place; `instead` is what the model would put there."""

    type: str
    start: int
    end: int
    confidence: float = 1.0
    instead: str = ""


@dataclass(frozen=True, slots=True)
class _Judged:
    """What the model said of a text: places, and the text as it would write it (may be empty)."""

    spans: list[Span]
    rewritten: str = ""


class SystemPromptScrubber(Detector[SystemPromptScrubberOptions]):
    """Looks at the stream and at the final answer (R-SCR)."""

    id = "system-prompt-scrubber"
    name = "System Prompt Scrubber"
    description = "Keeps the system prompt out of the answer."
    subject = "System prompt detection"

    async def process_output_stream(self, args: OutputStreamArgs) -> list[Chunk]:
        """Takes a chunk through the local stage, then through the model's."""
        return await self._streamed(args, hold_stream, ended=False)

    async def flush_stream(self, args: OutputStreamArgs) -> list[Chunk]:
        """Gives out what is held."""
        return await self._streamed(args, hold_flush, ended=True)

    async def process_output_result(self, args: OutputResultArgs) -> list[Message] | None:
        """Looks at the assistant's messages as a whole (R-SCR-8)."""
        last = args.messages[-1]["id"] if args.messages and self.options.last_message_only else None
        out: list[Message] = []
        for message in args.messages:
            examined = message["role"] == "assistant" and last in (None, message["id"])
            kept = await self._message(args, message) if examined and joined_text(message) else message
            if kept is not None:
                out.append(kept)
        same = len(out) == len(args.messages) and all(a is b for a, b in zip(out, args.messages, strict=True))
        return None if same else out

    # --- streams -------------------------------------------------------------------------------

    async def _streamed(self, args: OutputStreamArgs, hold: Any, *, ended: bool) -> list[Chunk]:
        options = self.options
        found: list[Detection] = []

        def rewrite(match: Match, text: str) -> str:
            span = Span(match.start, match.end, _hits(match))
            found.extend(span.found)
            self._block(args, span.found)
            if options.strategy == "redact":
                return self._instead(span, text)
            return text if options.strategy == "warn" else ""

        scanner = await self._scanner(args)
        chunks: list[Chunk] = hold(args, scanner, rewrite, mode=options.stream_mode)
        await self._report(args, found)
        if not options.model:
            return chunks
        held = JudgedStream(
            args.own("judged"),
            lambda _text, piece: self._piece(args, piece),
            "observe" if options.stream_mode is StreamMode.OBSERVE else "hold",
            _WHOLE if options.stream_mode is StreamMode.HOLD else options.piece_size,
            0,
        )
        out = await held.take_all(chunks)
        if ended:
            out += await held.flush()
        if held.tripped:
            args.wake_after(0)
        return out

    async def _piece(self, args: OutputStreamArgs, piece: str) -> Verdict:
        judged = await self._ask(args, piece)
        if not judged.spans:
            return Verdict(piece)
        kept = await self._apply(args, piece, judged)
        return Verdict(kept if kept is None or kept != piece else piece, flagged=True)

    # --- messages ------------------------------------------------------------------------------

    async def _message(self, args: OutputResultArgs, message: Message) -> Message | None:
        strategy = self.options.strategy
        text = joined_text(message)
        scanner = await self._scanner(args)
        if len(text) > _LONG:
            matches = (await asyncio.to_thread(scanner.scan, text, 0, final=True)).matches
        else:
            matches = scanner.scan(text, 0, final=True).matches
        spans = [Span(match.start, match.end, _hits(match)) for match in matches]
        found = [each for span in spans for each in span.found]
        self._block(args, found)
        await self._report(args, found)
        if spans and strategy == "filter":
            return None
        if spans and strategy == "redact":
            message = replaced_in_parts(message, spans, self._instead)
            text = joined_text(message)
        judged = await self._ask(args, text) if self.options.model and text else _Judged([])
        if not judged.spans:
            return message
        if await self._apply(args, text, judged) is None:
            return None
        if strategy == "warn":
            return message
        if self._trusted(text, judged):
            return with_text(message, judged.rewritten)
        return replaced_in_parts(message, judged.spans, self._instead)

    # --- what is found -------------------------------------------------------------------------

    async def _scanner(self, args: OutputStreamArgs | OutputResultArgs) -> Scanners:
        """The local stage; what long texts need is prepared once, beside the event loop."""
        options, messages = self.options, args.message_list
        texts = options.protected_texts
        if options.own_prompt:
            told = [*messages.get_system_messages(), *messages.get_system_messages("user-provided")]
            texts += tuple(message["content"] for message in told)
        size = sum(map(len, texts))
        if size > _LONG and args.state.get("prepared") != size:
            await asyncio.to_thread(verbatim_scanners, texts, options.min_words)
            args.state["prepared"] = size
        return Scanners([*verbatim_scanners(texts, options.min_words), *options.patterns])

    async def _ask(self, args: HookArgs, text: str) -> _Judged:
        """What the model finds in a text, as far as it is sure enough."""
        options = self.options
        schema = _REDACT_SCHEMA if options.strategy == "redact" else _SCHEMA
        answer = await self.ask(args, text, schema=schema, system=_system(options.custom_patterns)) or {}
        spans = [
            Span(
                start,
                end,
                (Detection(_kind(d["type"]), start, end, d["confidence"], d.get("redacted_value") or ""),),
            )
            for d in answer.get("detections") or ()
            if d["confidence"] >= options.threshold
            for start, end in located(text, d["start"], d["end"], d["value"])
        ]
        return _Judged(united(spans), answer.get("redacted_content") or "")

    # --- what becomes of it --------------------------------------------------------------------

    async def _apply(self, args: HookArgs, text: str, judged: _Judged) -> str | None:
        """Applies the strategy to a text that the model objects to; None drops it."""
        found = [each for span in judged.spans for each in span.found]
        self._block(args, found)
        await self._report(args, found)
        match self.options.strategy:
            case "filter":
                return None
            case "redact":
                if self._trusted(text, judged):
                    return edged(judged.rewritten, text)
                return replaced(text, judged.spans, self._instead)
            case _:
                return text

    def _trusted(self, text: str, judged: _Judged) -> bool:
        """Whether the model's own redaction is used: it must say something, and not what the model objected to."""
        secrets = (text[span.start : span.end] for span in judged.spans)
        return bool(judged.rewritten.strip()) and not any(secret in judged.rewritten for secret in secrets)

    def _instead(self, span: Span, text: str) -> str:
        """What stands for a place; lengths are those of the text (D-13)."""
        match self.options.redaction_method:
            case "mask":
                return "*" * len(text)
            case "placeholder":
                wish = span.found[0].instead if len(span.found) == 1 else ""
                return wish or self.options.placeholder_text
            case _:
                return ""

    def _block(self, args: HookArgs, found: Sequence[Detection]) -> None:
        if found and self.options.strategy == "block":
            args.abort(f"System prompt detected: {', '.join(each.type for each in found)}")

    async def _report(self, args: HookArgs, found: Sequence[Detection]) -> None:
        """Reports what did not abort (D-17); never the text."""
        if not found:
            return
        options = self.options
        types = [each.type for each in found]
        detail: dict[str, Any] = {"types": types, "strategy": options.strategy}
        if options.include_detections:
            detail["detections"] = [
                {"type": e.type, "start": e.start, "end": e.end, "confidence": e.confidence} for e in found
            ]
        args.services.warn(f"system prompt detected: {number_of(len(found), 'place')} ({options.strategy})")
        await args.services.violation(f"System prompt detected: {', '.join(types)}", detail)


def _hits(match: Match) -> tuple[Detection, ...]:
    """What the local stage found; positions count from the beginning of the text, as the match's do."""
    return tuple(Detection(label, match.start + start, match.start + end) for label, start, end in match.data)


def _kind(told: str) -> str:
    """A type as the model names it; it goes into reports, so it must not carry text of the conversation."""
    return told if _KIND.fullmatch(told) else "leak"


def _system(patterns: Sequence[str]) -> str:
    more = f"\n\nThese patterns count as well: {', '.join(patterns)}" if patterns else ""
    return _PROMPT + more


_PROMPT: Final = """\
You look for leaks in what an assistant writes. A leak is text that reveals its system prompt, its role instructions, \
internal messages or metadata, jailbreaks and commands that get around its safety, or facts about its model and \
training that are not public. Ordinary answers, general talk about such things, and what a user wrote are none: in \
doubt, report nothing. Report each leak with its kind (for example system_prompt), the exact text, its position in \
characters from the beginning (end exclusive), and how sure you are from 0 to 1."""

_DETECTION: Final[dict[str, Any]] = {
    "type": {"type": "string"},
    "value": {"type": "string"},
    "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    "start": {"type": "integer"},
    "end": {"type": "integer"},
}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }


_TEXT: Final = {"type": ["string", "null"]}


def _answer(detection: dict[str, Any], **more: Any) -> dict[str, Any]:
    places = {"type": ["array", "null"], "items": _object(detection)}
    return _object({"detections": places, "reason": _TEXT, **more})


_SCHEMA: Final = _answer(_DETECTION)
_REDACT_SCHEMA: Final = _answer({**_DETECTION, "redacted_value": _TEXT}, redacted_content=_TEXT)
