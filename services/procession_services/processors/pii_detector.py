"""`pii-detector`: finds personal data and secrets; rejects, warns, drops or redacts (builtins.md 6).

Two stages. The first one is local and exact: shapes, check digits, the words around. The second one, with `model`, asks
a model about what only the context tells, such as names. In a stream the first stage holds back what may still become
a match; what passes it is put to the model in pieces (D-8, D-55).
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

from procession.args import (
    HookArgs,
    InputArgs,
    LLMRequestArgs,
    LLMRequestResult,
    OutputResultArgs,
    OutputStreamArgs,
)
from procession.errors import TripWire
from procession.hold_back import Match, Rewrite, StreamMode, hold_flush, hold_stream
from procession.messages import clone, map_text
from procession.processor import Hook
from procession_schemas.chunks import Chunk
from procession_schemas.messages import Message
from procession_services.processors.core.detector_text import JS_SPACE, detector_text, with_text
from procession_services.processors.core.judged_stream import JudgedStream, Verdict, edged
from procession_services.processors.core.pii.family import Hit
from procession_services.processors.core.pii.prompts import restored, with_tokens
from procession_services.processors.core.pii.redaction import Replace, redacted, redacted_parts, replacer
from procession_services.processors.core.pii.scanner import LOCAL_TYPES, LocalScanner
from procession_services.processors.core.pii.tokens import TokenScanner
from procession_services.processors.core.pii.verdict import (
    PROMPT,
    PROMPT_REDACT,
    Findings,
    judged,
    pii_schema,
)
from procession_services.processors.detector import Detector
from procession_services.processors.pii_options import PIIDetectorOptions
from procession_services.processors.pii_vault import Vault

_TOKENS = TokenScanner()
_HELD = 20_000
"""Characters of a stream that may be undecided: more than the longest key."""
_ALL = 1 << 40
"""The size of pieces where a block is judged as a whole."""
_LONG = 20_000
"""Texts from this length on are searched beside the event loop."""


_Found = tuple[Match, str]
"""A match of the first stage in a stream, with its text."""


@dataclass(frozen=True, slots=True)
class PIIDetection:
    """What was found in one message, or in a piece of a stream (R-PII-12).

    Attributes:
        result: `{"categories": [...], "detections": [...]}` of both stages; detections hold the values in clear. For
            the first stage in a stream, positions count from the beginning of the text block.
        text: What was examined; for the first stage in a stream the values that were found.
        flagged: Whether something reaches the threshold.
        strategy_applied: The strategy where flagged, else `none`.
    """

    result: dict[str, Any]
    text: str
    flagged: bool
    strategy_applied: str


class PIIDetector(Detector[PIIDetectorOptions]):
    """Examines messages, streams and answers (R-PII)."""

    id = "pii-detector"
    name = "PII Detector"
    description = (
        "Finds personal data and secrets, with a model or without; blocks, warns, filters or redacts."
    )
    subject = "PII detection"

    def __init__(self, options: PIIDetectorOptions) -> None:
        super().__init__(options)
        self._rewrites = options.strategy == "redact" and options.redaction_method != "token"
        self._scanner = LocalScanner(
            set(options.types) & set(LOCAL_TYPES),
            regions=options.phone_regions,
            custom=[each.rule() for each in options.custom],
        )
        self._schema = pii_schema(options.types, rewrites=self._rewrites)
        prompt = PROMPT + PROMPT_REDACT if self._rewrites else PROMPT
        self._system = prompt.format(types="\n".join(f"- {each}" for each in options.types))
        self._replace = replacer(options.redaction_method, keep_form=options.preserve_format)

    @classmethod
    def hooks_for(cls, options: dict[str, Any]) -> frozenset[Hook]:
        """Only reversible masking looks at the prompt."""
        method = options.get("redactionMethod", options.get("redaction_method"))
        return super().hooks_for(options) - ({Hook.LLM_REQUEST} if method != "token" else set())

    async def on_detection(self, detection: PIIDetection) -> None:
        """Hears of every examined message or piece, flagged or not; override it. Only a `TripWire` of it counts."""

    # --- whole messages ------------------------------------------------------------------------

    async def process_input(self, args: InputArgs) -> list[Message] | None:
        """Examines the request's messages."""
        if not self._masks:
            return await self._messages(args, self._replace)
        vault = await self._vault(args)
        out = await self._messages(args, vault.keep)
        await vault.save(args, self.options.token_ttl)
        return out

    async def process_output_result(self, args: OutputResultArgs) -> list[Message] | None:
        """Examines the answer as it is kept."""
        if not self._masks:
            return await self._messages(args, self._replace)
        vault = await self._vault(args)
        known = vault.values()
        hidden = [with_tokens(message, known) for message in args.messages]
        out = await self._messages(replace(args, messages=hidden), vault.token)
        kept = hidden if out is None else out
        if self.options.restore.answer:
            kept = [map_text(message, lambda text: restored(text, vault.value)) for message in kept]
        return None if kept == args.messages else kept

    async def process_llm_request(self, args: LLMRequestArgs) -> LLMRequestResult | None:
        """Puts tokens where the prompt has a value in clear that this conversation masks."""
        prompt = with_tokens(args.prompt, (await self._vault(args)).values())
        return None if prompt == args.prompt else {"prompt": prompt}

    async def _messages(self, args: InputArgs | OutputResultArgs, replacing: Replace) -> list[Message] | None:
        async def judge(message: Message, text: str) -> Message | None:
            findings = await self._find(args, text, local=True)
            if not findings.types:
                return message
            await self._object(args, findings)
            if self.options.strategy != "redact":
                return message if self.options.strategy == "warn" else None
            if findings.rewritten:
                hits = self._scanner.find(findings.rewritten)
                new = redacted(findings.rewritten, hits, replacing)
                return _flat(with_text(message, new), new)
            if findings.lost:
                return None
            new = redacted(text, findings.hits, replacing)
            return _flat(_redacted(message, findings, replacing), new)

        return await self.each_message(args, judge)

    async def _find(self, args: HookArgs, text: str, *, local: bool) -> Findings:
        """Both stages about one text."""
        options = self.options
        hits: list[Hit] = []
        if local:
            find = self._scanner.find
            hits = find(text) if len(text) < _LONG else await asyncio.to_thread(find, text)
        answer = None
        if options.model:
            answer = await self.ask(args, text, schema=self._schema, system=self._system)
        findings = judged(
            text,
            hits,
            answer,
            threshold=options.threshold,
            known=options.types,
            rewrites=self._rewrites,
        )
        await self._tell(args, text, findings.result, flagged=bool(findings.types))
        return findings

    # --- streams -------------------------------------------------------------------------------

    async def process_output_stream(self, args: OutputStreamArgs) -> list[Chunk]:
        """Takes a chunk through the stages: local, model, tokens back to values."""
        vault = await self._vault(args) if self._masks else None
        found: list[_Found] = []
        step = replace(args, part=self._with_arguments(args.part, vault))
        rewrite, mode = self._rewriter(vault, found), self.options.mode
        chunks = hold_stream(step, self._scanner, rewrite, limit=_HELD, mode=mode)
        return await self._further(args, chunks, found, vault)

    async def flush_stream(self, args: OutputStreamArgs) -> list[Chunk]:
        """Gives out what is held."""
        vault = await self._vault(args) if self._masks else None
        found: list[_Found] = []
        rewrite, mode = self._rewriter(vault, found), self.options.mode
        chunks = hold_flush(args, self._scanner, rewrite, limit=_HELD, mode=mode)
        return await self._further(args, chunks, found, vault, final=True)

    def _rewriter(self, vault: Vault | None, found: list[_Found]) -> Rewrite:
        replacing = vault.token if vault else self._replace
        strategy = self.options.strategy

        def rewrite(match: Match, text: str) -> str:
            found.append((match, text))
            if strategy == "redact":
                return replacing(match.label, text)
            return text if strategy == "warn" else ""

        return rewrite

    async def _further(
        self,
        args: OutputStreamArgs,
        chunks: list[Chunk],
        found: list[_Found],
        vault: Vault | None,
        *,
        final: bool = False,
    ) -> list[Chunk]:
        """Judges what the first stage found, and takes its chunks through the stages behind it."""
        if found:
            await self._found_locally(args, found)
        if self.options.model_types:
            stream = self._piecewise(args, vault)
            chunks = await stream.take_all(chunks)
            chunks += await stream.flush() if final else []
            if stream.tripped:
                args.wake_after(0)
        if vault and self.options.restore.answer:
            chunks = _restored_stream(args, chunks, vault, final=final)
        return chunks

    async def _found_locally(self, args: OutputStreamArgs, found: list[_Found]) -> None:
        types = list(dict.fromkeys(match.label for match, _ in found))
        detections = [
            {"type": match.label, "value": value, "confidence": 1.0, "start": match.start, "end": match.end}
            for match, value in found
        ]
        result = {"categories": [{"type": kind, "score": 1.0} for kind in types], "detections": detections}
        await self._tell(args, "".join(value for _, value in found), result, flagged=True)
        await self._violate(args, types, len(found))

    def _piecewise(self, args: OutputStreamArgs, vault: Vault | None) -> JudgedStream:
        """The model's stage: it judges pieces, and holds them until its verdict (R-PII-25)."""

        async def judge(_text: str, piece: str) -> Verdict:
            findings = await self._find(args, piece, local=False)
            if not findings.types:
                return Verdict(piece)
            await self._object(args, findings)
            if self.options.strategy == "warn":
                return Verdict(piece, flagged=True)
            if self.options.strategy == "filter" or findings.lost:
                return Verdict(None, flagged=True)
            replacing = vault.token if vault else self._replace
            if findings.rewritten:
                return Verdict(edged(findings.rewritten, piece), flagged=True)
            return Verdict(redacted(piece, findings.hits, replacing), flagged=True)

        mode = self.options.mode
        size = _ALL if mode is StreamMode.HOLD else self.options.buffer_size
        return JudgedStream(args.own("pieces"), judge, mode.value, size, 0)

    # --- what both have ------------------------------------------------------------------------

    async def _object(self, args: HookArgs, findings: Findings) -> None:
        """Reports what is flagged; aborts where that is the strategy, or where there is nothing to redact (D-3)."""
        options = self.options
        if options.strategy == "redact" and findings.lost:
            lost = ", ".join(dict.fromkeys(findings.lost))
            if options.on_unlocatable == "abort":
                args.abort(f"{_report(findings.types)}. It is not known where to redact: {lost}")
            args.services.warn(f"dropped a text, since it is not known where to redact {lost}")
        await self._violate(args, findings.types, len(findings.result["detections"]))

    async def _violate(self, args: HookArgs, types: list[str], count: int) -> None:
        """Every flag is a violation, whatever the strategy (D-17); its text holds types only."""
        options = self.options
        report = _report(types)
        if options.include_detections:
            report += f". Places: {count}"
        if options.strategy == "block":
            args.abort(report)
        await args.services.violation(report, {"types": types, "places": count, "strategy": options.strategy})
        args.services.warn(f"found {', '.join(types)} ({options.strategy})")

    async def _tell(self, args: HookArgs, text: str, result: dict[str, Any], *, flagged: bool) -> None:
        applied = self.options.strategy if flagged else "none"
        try:
            await self.on_detection(PIIDetection(result, text, flagged, applied))
        except TripWire:
            raise
        except Exception as error:  # noqa: BLE001 - R-PII-12: a listener never changes the verdict
            args.services.warn(f"on_detection raised {type(error).__name__}")

    # --- tokens --------------------------------------------------------------------------------

    @property
    def _masks(self) -> bool:
        return self.options.redaction_method == "token"

    async def _vault(self, args: HookArgs) -> Vault:
        return await Vault.open(args, self.options.masking_key)

    def _with_arguments(self, part: Chunk, vault: Vault | None) -> Chunk:
        """A tool call whose arguments hold values in the place of their tokens: what then runs (D-20)."""
        if vault is None or part["type"] != "tool-call" or not self.options.restore.tool_arguments:
            return part
        payload = part.get("payload") or {}
        arguments = restored(payload.get("args"), vault.value)
        return (
            part if arguments == payload.get("args") else {**part, "payload": {**payload, "args": arguments}}
        )


def _report(types: Iterable[str]) -> str:
    return f"PII detected. Types: {', '.join(types)}"


def _redacted(message: Message, findings: Findings, replacing: Replace) -> Message:
    """The message with each text part redacted; hits count in the text as detectors see it (D-6, R-COM-12)."""
    copy = clone(message)
    content = cast("dict[str, Any]", copy["content"])
    parts = [part for part in content["parts"] if part["type"] == "text"]
    if not parts:
        return with_text(message, redacted(detector_text(message), findings.hits, replacing))
    texts = [part["text"] for part in parts]
    joined = " ".join(texts)
    trimmed = len(joined) - len(joined.lstrip(JS_SPACE))
    hits = [replace(hit, start=hit.start + trimmed, end=hit.end + trimmed) for hit in findings.hits]
    for part, text in zip(parts, redacted_parts(texts, hits, replacing), strict=True):
        part["text"] = text
    return copy


def _flat(message: Message, text: str) -> Message:
    """The message with its text as the legacy flat copy too (R-COM-23)."""
    cast("dict[str, Any]", message["content"])["content"] = text
    return message


def _restored_stream(
    args: OutputStreamArgs, chunks: list[Chunk], vault: Vault, *, final: bool
) -> list[Chunk]:
    """Chunks with values in the place of the tokens; one that is not whole yet is held back."""

    def rewrite(_match: Match, text: str) -> str:
        return vault.value(text)

    out = [
        piece
        for chunk in chunks
        for piece in hold_stream(replace(args, part=chunk), _TOKENS, rewrite, key="tokens")
    ]
    return [*out, *hold_flush(args, _TOKENS, rewrite, key="tokens")] if final else out
