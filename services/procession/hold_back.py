"""The hold-back buffer: text processors change a stream as if they had the whole text, and nothing leaks.

A detector that looks at one chunk misses what two chunks share, and one that looks at the whole answer makes the client
wait for it. The buffer does neither: of each text block it lets go what no later text can change, and holds the rest.
Joined, what comes out is the rewrite of the whole text, however the text was split (D-8).

    def process_output_stream(self, args):
        return hold_stream(args, self.scanner, lambda match, text: "[REMOVED]", limit=65_536)

    def flush_stream(self, args):
        return hold_flush(args, self.scanner, lambda match, text: "[REMOVED]", limit=65_536)

What a `Scanner` must tell is where matches are and from where on it is not sure (`Scan`); `procession.scanners` has one
for regular expressions and one for words.

**Bounds.** Every `limit / 4` characters of a block it is checked that no more than `limit` characters are held, so no
more than 1.25 times `limit` ever are. More is a `HoldOverflowError`: `hold_stream` ends the run with it, whatever the
processor's failure policy, since the text in hand may be half of what must not leave. The checks are at places of the
text, not of its chunks: all splits of a text overflow alike. A long hold is scanned again when an eighth of it is new,
so the cost of a stream is linear in its text for a scanner that is.

**JSON.** Where the text is a structured answer (`args.json_text`), scanners see what its strings mean, `rewrite` gets
that, and what it returns is escaped: a line end hides no word behind it, and the JSON stays valid.

**Order.** Text blocks are independent; each keeps its order. A chunk that is no text and arrives while a block holds
text (a tool call, a source) waits behind that text. The end of a block or of the stream decides all that is held. A
new attempt (`step-start`) finds nothing of a rejected one.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, cast

from procession.args import OutputStreamArgs
from procession.json_text import JsonScanner, rewrites_strings
from procession.text_hold import (
    HoldOverflowError,
    Match,
    Piece,
    Rewrite,
    Scan,
    ScanError,
    Scanner,
    TextHold,
)
from procession_schemas.chunks import ENDING_TYPES, Chunk

__all__ = [
    "DEFAULT_LIMIT",
    "HoldOverflowError",
    "Match",
    "Piece",
    "Rewrite",
    "Scan",
    "ScanError",
    "Scanner",
    "StreamMode",
    "TextHold",
    "hold_flush",
    "hold_stream",
    "refuse_blind_action",
]

DEFAULT_LIMIT = 65_536
"""Characters that are held at most, where a processor has no reason for another bound."""

_STREAM_ENDS = ENDING_TYPES | {"step-finish", "abort", "reset"}
_MAX_WAITING = 10_000  # chunks behind held text
_WHOLE = 16  # mode `hold` keeps blocks of that many times the limit


class StreamMode(StrEnum):
    """When the text of a stream leaves a guardrail.

    `hold`: when the text block has ended without an objection. `window`: as soon as no later text can make it a part of
    a match. `observe`: at once; violations are only reported.
    """

    HOLD = "hold"
    WINDOW = "window"
    OBSERVE = "observe"


def refuse_blind_action(mode: StreamMode | None, strategy: str, *, reports: frozenset[str]) -> None:
    """For validators of options: `observe` goes only with a strategy that reports, one of `reports`.

    Raises:
        ValueError: The strategy would have to change or stop text that has left already.
    """
    if mode is StreamMode.OBSERVE and strategy not in reports:
        allowed = ", ".join(sorted(reports))
        raise ValueError(
            f"streamMode 'observe' lets text out before it is judged, so strategy {strategy!r} could not act; "
            f"use streamMode 'window' or 'hold', or a strategy that only reports ({allowed})"
        )


def hold_stream(
    args: OutputStreamArgs,
    scanner: Scanner,
    rewrite: Rewrite,
    *,
    limit: int = DEFAULT_LIMIT,
    context: int = 64,
    mode: StreamMode = StreamMode.WINDOW,
    key: str = "held",
) -> list[Chunk]:
    """Takes a chunk through the buffer of its text block and returns the chunks that may go on, in order.

    The memory is `args.own(key)`. With `mode=observe` the chunk itself comes back and what
    `rewrite` returns is not used; with `mode=hold` a block comes back when it has ended.

    Raises:
        TripWire: A bound was exceeded; or `rewrite` aborts.
        ScanError: The scanner failed. The text in hand and what was held before it are then in `args.part`, so that a
            processor with `on_error: skip` loses nothing.
    """
    if args.part["type"] == "raw" and mode is not StreamMode.OBSERVE:
        return []  # the provider's own event has the text as it was (D-89)
    scanner, rewrite = _reading(args, scanner, rewrite)
    return _Blocks(args, scanner, rewrite, limit, context, mode, args.own(key)).take(args.part)


def hold_flush(
    args: OutputStreamArgs,
    scanner: Scanner,
    rewrite: Rewrite,
    *,
    limit: int = DEFAULT_LIMIT,
    context: int = 64,
    mode: StreamMode = StreamMode.WINDOW,
    key: str = "held",
) -> list[Chunk]:
    """For `flush_stream` at the end of a stream: returns all that is still held; arguments as in `hold_stream`."""
    scanner, rewrite = _reading(args, scanner, rewrite)
    return _Blocks(args, scanner, rewrite, limit, context, mode, args.own(key)).close_all()


def _reading(args: OutputStreamArgs, scanner: Scanner, rewrite: Rewrite) -> tuple[Scanner, Rewrite]:
    """Both, reading text that is JSON as its strings mean it."""
    return (JsonScanner(scanner), rewrites_strings(rewrite)) if args.json_text else (scanner, rewrite)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The open text blocks of a stream.

    Memory of a block, by its id: `text` (of TextHold), `like` (the chunk that began what is held, without its text),
    `ready` (spans that mode `hold` keeps: `[start, end, new text, whether it is plain]`), `waiting`
    (`[position, chunk]`: chunks that go out behind the text up to there), and `memory` (of the rewrite).
    """

    args: OutputStreamArgs
    scanner: Scanner
    rewrite: Rewrite
    limit: int
    context: int
    mode: StreamMode
    blocks: dict[str, dict[str, Any]]

    def take(self, part: Chunk) -> list[Chunk]:
        kind = part["type"]
        payload = part.get("payload") or {}
        if kind == "text-delta":
            text = payload.get("text")
            return self._delta(part, str(payload.get("id", "")), text) if text else [part]
        if kind in ("text-start", "text-end") and "id" in payload:
            return [*self._close(str(payload["id"])), part]
        if kind == "step-start":
            self.blocks.clear()
            return [part]
        if kind == "text-end" or kind in _STREAM_ENDS:
            return [*self.close_all(), part]
        return self._behind(part)

    def close_all(self) -> list[Chunk]:
        return [chunk for text_id in list(self.blocks) for chunk in self._close(text_id)]

    def _hold(self, block: dict[str, Any]) -> TextHold:
        return TextHold(block["text"], self.scanner, limit=self.limit, context=self.context)

    def _delta(self, part: Chunk, text_id: str, text: str) -> list[Chunk]:
        block = self.blocks.pop(text_id, None) or {"text": {}, "ready": [], "waiting": [], "memory": {}}
        self.blocks[text_id] = block  # the last one is the one that got text last
        hold = self._hold(block)
        if not _holds(block):
            block["like"] = {**part, "payload": {k: v for k, v in part["payload"].items() if k != "text"}}
        before = dict(block["text"])
        try:
            pieces = hold.feed(text)
        except HoldOverflowError as error:
            if self.mode is not StreamMode.OBSERVE:
                self.args.abort(f"A text was stopped: {error}.", metadata={"limit": self.limit})
            hold.give_up()
            pieces = []
        except ScanError:
            block["text"].update(before, fresh=before["fresh"] + text)
            unseen = hold.give_up()
            if self.mode is not StreamMode.OBSERVE:
                part["payload"]["text"] = "".join(span[2] for span in block["ready"]) + unseen
                block["ready"].clear()
            raise
        spans = self._rewritten(text_id, block, pieces)
        if self.mode is StreamMode.OBSERVE:
            return [part]
        if self.mode is StreamMode.HOLD:
            block["ready"] += spans
            if hold.released > _WHOLE * self.limit:
                most = f"{_WHOLE * self.limit} characters, the most that streamMode 'hold' keeps"
                self.args.abort(
                    f"A text was stopped: it is longer than {most}.", metadata={"limit": self.limit}
                )
            return []
        out = _chunks(spans, block["waiting"], hold.released, part)
        return [part] if len(out) == 1 and out[0] == part else out

    def _behind(self, part: Chunk) -> list[Chunk]:
        """Lets a chunk wait behind the text that is held, where there is some."""
        holding = [block for block in self.blocks.values() if _holds(block)]
        if not holding or self.mode is StreamMode.OBSERVE:
            return [part]
        block = next((block for block in holding if block["waiting"]), holding[-1])
        if len(block["waiting"]) >= _MAX_WAITING:
            self.args.abort(
                f"A stream was stopped: {_MAX_WAITING} chunks wait behind a text that does not end."
            )
        hold = self._hold(block)
        block["waiting"].append([hold.released + hold.held, part])
        return []

    def _close(self, text_id: str) -> list[Chunk]:
        block = self.blocks.get(text_id)
        if block is None:
            return []
        hold = self._hold(block)
        try:
            spans = self._rewritten(text_id, block, hold.flush())
        except ScanError:  # where failures are skipped, the text comes out with the next end
            begin, unseen = hold.released, hold.give_up()
            block["ready"].append([begin, hold.released, unseen, True])
            raise
        del self.blocks[text_id]
        if self.mode is StreamMode.OBSERVE:
            return []
        return _chunks([*block["ready"], *spans], block["waiting"], hold.released, block["like"])

    def _rewritten(self, text_id: str, block: dict[str, Any], pieces: list[Piece]) -> list[list[Any]]:
        """Spans of the pieces; every match is rewritten."""
        spans: list[list[Any]] = []
        place = block["text"]["at"] - sum(len(text) for text, _ in pieces)
        for text, match in pieces:
            new = text
            if match is not None:
                new = self.rewrite(replace(match, text_id=text_id, memory=block["memory"]), text)
            spans.append([place, place + len(text), new, match is None])
            place += len(text)
        return spans


def _holds(block: dict[str, Any]) -> bool:
    text = block["text"]
    return bool(text.get("held") or text.get("fresh") or block["ready"])


def _chunks(spans: list[list[Any]], waiting: list[list[Any]], released: int, like: Any) -> list[Chunk]:
    """Makes chunks of spans; each chunk that waited comes out at its place, or behind the match that it fell into."""
    out: list[Chunk] = []
    texts: list[str] = []

    def emit() -> None:
        if text := "".join(texts):
            out.append(cast("Chunk", {**like, "payload": {**like["payload"], "text": text}}))
        texts.clear()

    for begin, end, new, plain in spans:
        start, text = begin, new
        while waiting and waiting[0][0] < end and (plain or waiting[0][0] <= start):
            place = max(waiting[0][0], start)
            texts.append(text[: place - start])
            start, text = place, text[place - start :]
            emit()
            out.append(waiting.pop(0)[1])
        texts.append(text)
    emit()
    while waiting and waiting[0][0] <= released:
        out.append(waiting.pop(0)[1])
    return out
