"""`regex-filter`: blocks, redacts or reports what regular expressions find (builtins.md 12).

No model, no cost. Input, stream and result; streams go through the hold-back buffer, whatever the strategy (D-8).
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from procession.args import HookArgs, InputArgs, OutputResultArgs, OutputStreamArgs
from procession.hold_back import (
    DEFAULT_LIMIT,
    Match,
    StreamMode,
    hold_flush,
    hold_stream,
    refuse_blind_action,
)
from procession.messages import clone, refresh_flat
from procession.processor import Hook, Options, Processor
from procession.scanners import Allowance
from procession_schemas.chunks import Chunk
from procession_schemas.messages import Message
from procession_services.processors.core.lenient_options import LenientOptions
from procession_services.processors.core.regex_rules import (
    PRESETS,
    REDACTED,
    Region,
    Rules,
    make_rule,
    names,
    replaced,
)

_LITERAL = re.compile(r"/((?:[^/\\\[\n]|\\.|\[(?:[^\]\\]|\\.)*\])+)/([dgimsuvy]*)")
_SIGN = re.compile(r"[\\\[({|^$*+?]")
"""What says that a text between slashes is a pattern, and no path."""
_MAX_SAFE = 2**53 - 1
_MUCH = 100_000
"""Characters, each counted for each rule: from so many on texts are searched beside the event loop."""


class Pattern(Options):
    """A JavaScript regular expression: `/regex/flags`."""

    regex: str = Field(description="The expression, without slashes.")
    flags: str = Field(
        default="g", description="Its flags; without `g` only the first match of a text counts."
    )


class RegexFilterRule(Options):
    """One rule."""

    name: str = Field(description="Name in reports.")
    pattern: Pattern | str = Field(description="A regular expression of JavaScript; a string means flag `g`.")
    replacement: str = Field(
        default=REDACTED, description="What replaces the match; `$&`, `$1`, `$<name>` work."
    )

    @field_validator("pattern", mode="after")
    @classmethod
    def _no_literal(cls, pattern: Pattern | str) -> Pattern | str:
        """Text with slashes around it is hardly ever meant, so that the rule would find nothing, without a word."""
        literal = _LITERAL.fullmatch(pattern) if isinstance(pattern, str) else None
        if literal and (literal[2] or _SIGN.search(literal[1])):
            raise ValueError(
                f"{pattern} is written as a JavaScript literal; give {{regex: '{literal[1]}', flags: '{literal[2]}'}}, "
                "or write \\/ where a slash is to be matched"
            )
        return pattern


class RegexFilterOptions(LenientOptions):
    """Options of `regex-filter`; null counts as not given."""

    rules: list[RegexFilterRule] = Field(
        default_factory=list, description="Your own rules, after those of presets."
    )
    presets: list[str] = Field(
        default_factory=list,
        description="Ready-made rules: `pii`, `secrets`, `urls`; other names are ignored.",
    )
    strategy: Literal["block", "redact", "warn"] = Field(
        default="block", description="What happens with a match: end the run, replace it, or only report it."
    )
    phase: Literal["input", "output", "all"] = Field(default="all", description="Which side is examined.")
    include_redacted_values: bool = Field(
        default=False, description="Put the text that was replaced into the report of a violation."
    )
    stream_carryover_size: int = Field(
        default=128,
        ge=1,
        le=_MAX_SAFE,
        description="Lower bound of `maxHeld`; the buffer holds only what may become a match, so no tail is needed.",
    )
    max_held: int = Field(
        default=DEFAULT_LIMIT,
        ge=1,
        description="Characters of a stream that may be undecided; a longer candidate ends the run.",
    )
    stream_mode: StreamMode | None = Field(
        default=None,
        description="`window`: text goes out when it is decided. `hold`: when its block has ended. `observe`: at once, "
        "with strategy `warn`. By default `window`, and `observe` for `warn`.",
    )
    scope: Literal["new", "all"] = Field(
        default="new",
        description="`new`: examine what this request brings. `all`: recalled history too (D-7).",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "RegexFilterOptions":
        refuse_blind_action(self.stream_mode, self.strategy, reports=frozenset({"warn"}))
        _ = self.compiled
        return self

    @cached_property
    def compiled(self) -> Rules:
        """The rules: presets first.

        Raises:
            ValueError: There are no rules, or one is not a valid regular expression.
        """
        told = [rule for preset in self.presets for rule in PRESETS.get(preset, ())]
        for rule in self.rules:
            pattern = Pattern(regex=rule.pattern) if isinstance(rule.pattern, str) else rule.pattern
            told.append((rule.name, pattern.regex, pattern.flags, rule.replacement))
        if not told:
            raise ValueError(f"there are no rules; give rules, or presets: {', '.join(PRESETS)}")
        return Rules([make_rule(*each) for each in told], empty=self.strategy != "redact")


class RegexFilter(Processor[RegexFilterOptions]):
    """Looks for patterns in the text parts of messages and in the text of streams.

    Every violation is reported (D-17): override `on_violation`.
    """

    id = "regex-filter"
    name = "Regex Filter"
    description = "Blocks, redacts or reports what regular expressions find."
    on_error: ClassVar[Literal["fail", "skip"] | None] = "fail"

    def __init__(self, options: RegexFilterOptions) -> None:
        super().__init__(options)
        self._rules = options.compiled
        reporting = options.strategy == "warn"
        self._mode = options.stream_mode or (StreamMode.OBSERVE if reporting else StreamMode.WINDOW)
        self._limit = max(options.max_held, min(options.stream_carryover_size, DEFAULT_LIMIT))

    @classmethod
    def hooks_for(cls, options: dict[str, Any]) -> frozenset[Hook]:
        """The hooks of the phase."""
        phase = options.get("phase") or "all"
        sides = {"input": {Hook.INPUT}, "output": {Hook.OUTPUT_STREAM, Hook.OUTPUT_RESULT}}
        return frozenset(sides[phase] if phase in sides else sides["input"] | sides["output"])

    async def process_input(self, args: InputArgs) -> list[Message] | None:
        """Examines the new messages (D-7)."""
        if self.options.scope == "all":
            return await self._messages(args, args.messages, Hook.INPUT)
        new = {message["id"] for message in args.message_list.get.input.db()}
        return await self._messages(args, [m for m in args.messages if m["id"] in new], Hook.INPUT)

    async def process_output_result(self, args: OutputResultArgs) -> list[Message] | None:
        """Examines the final messages."""
        return await self._messages(args, args.messages, Hook.OUTPUT_RESULT)

    async def process_output_stream(self, args: OutputStreamArgs) -> Chunk | list[Chunk]:
        """Examines text as far as no later text can change the verdict."""
        out = await self._stream(args, hold_stream)
        return out[0] if len(out) == 1 else out

    async def flush_stream(self, args: OutputStreamArgs) -> list[Chunk]:
        """Decides what is held: the stream has ended."""
        return await self._stream(args, hold_flush)

    async def _stream(self, args: OutputStreamArgs, take: Callable[..., list[Chunk]]) -> list[Chunk]:
        found: list[Region] = []
        values: list[str] = []
        allowance = Allowance(0)

        def rewrite(match: Match, text: str) -> str:
            here = self._rules.later(match, text, match.memory.setdefault("spent", []), allowance)
            found.extend(here)
            values.extend(text[r.start - match.start : r.end - match.start] for r in here)
            return replaced(text, match.start, here) if self.options.strategy == "redact" else text

        out = take(args, self._rules.scanner, rewrite, limit=self._limit, mode=self._mode)
        if found:
            await self._act(args, found, values, {"phase": Hook.OUTPUT_STREAM.value})
        return out

    async def _messages(self, args: Any, messages: Sequence[Message], hook: Hook) -> list[Message] | None:
        """The messages with what was replaced; None where nothing was."""
        found: dict[str, list[tuple[int, str, list[Region]]]] = {}
        for message in messages:
            for index, part in enumerate(message["content"].get("parts") or ()):
                if part["type"] == "text" and part["text"] and (here := await self._found(part["text"])):
                    found.setdefault(message["id"], []).append((index, part["text"], here))
        if not found:
            return None
        if self.options.strategy == "block":
            self._block(args, [here for texts in found.values() for _, _, here in texts])
        for message_id, texts in found.items():
            for index, text, here in texts:
                values = [text[region.start : region.end] for region in here]
                place = {"phase": hook.value, "messageId": message_id, "partIndex": index}
                await self._act(args, here, values, place)
        if self.options.strategy == "warn":
            return None
        return [_redacted(m, found[m["id"]]) if m["id"] in found else m for m in args.messages]

    async def _found(self, text: str) -> list[Region]:
        """The regions of a whole text; other runs go on meanwhile where it is much work."""
        find = self._rules.find
        return find(text) if len(text) * len(self._rules) < _MUCH else await asyncio.to_thread(find, text)

    async def _act(
        self, args: HookArgs, found: list[Region], values: list[str], place: dict[str, Any]
    ) -> None:
        """Blocks, or reports what was found in one text."""
        if self.options.strategy == "block":
            self._block(args, [found])
        detail: dict[str, Any] = {"strategy": self.options.strategy, **place}
        if self.options.strategy == "redact":
            rules = ", ".join(names(found))
            detail["redactions"] = [
                self._redaction(region, value) for region, value in zip(found, values, strict=True)
            ]
            await args.services.violation(f"Redacted what these rules match: {rules}", detail)
            return
        rules = ", ".join(names(found, hits=True))
        detail["matches"] = _matches(found)
        args.services.warn(f"regex-filter: matched by {rules}")
        await args.services.violation(f"Matched by these rules: {rules}", detail)

    def _block(self, args: HookArgs, texts: Sequence[Sequence[Region]]) -> None:
        """Aborts; the matches in the metadata are those of one text after the other (R-REG-6)."""
        rules = ", ".join(names([region for found in texts for region in found], hits=True))
        matches = [match for found in texts for match in _matches(found)]
        metadata = {"processorId": self.id, "matches": matches, "strategy": "block"}
        args.abort(f"Blocked: the text matches these rules: {rules}", metadata=metadata)

    def _redaction(self, region: Region, value: str) -> dict[str, Any]:
        """One replacement in a report (R-REG-9)."""
        told: dict[str, Any] = {
            "rule": region.rule,
            "index": region.start,
            "length": region.end - region.start,
            "replacement": region.replacement,
        }
        overlapping = list(dict.fromkeys(hit.rule for hit in region.hits))
        if len(overlapping) > 1:
            told["overlappingRules"] = overlapping
        if self.options.include_redacted_values:
            told["value"] = value
        return told


def _matches(found: Sequence[Region]) -> list[dict[str, Any]]:
    """All hits of a text, in rule order (R-REG-6)."""
    hits = sorted((hit for region in found for hit in region.hits), key=lambda hit: (hit.rank, hit.start))
    return [{"rule": hit.rule, "match": "[REDACTED_MATCH]", "index": hit.start} for hit in hits]


def _redacted(message: Message, found: Sequence[tuple[int, str, list[Region]]]) -> Message:
    copy = clone(message)
    for index, text, regions in found:
        copy["content"]["parts"][index]["text"] = replaced(text, 0, regions)
    refresh_flat(copy)
    return copy
