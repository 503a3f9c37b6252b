"""Text of a stream, judged piece by piece before it goes out (D-8, D-14).

Pieces do not depend on how the provider cut its text, and a model is asked once for each. The state is JSON and
belongs into `args.state`; nothing here waits, asks or tells the time.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from procession.errors import TripWire
from procession_schemas.chunks import Chunk
from procession_services.processors.core.detector_text import cut_pieces

StreamMode = Literal["hold", "window", "observe"]
"""`hold`: a piece goes out once every text that it was judged in has passed. `window`: once it was judged itself.
`observe`: at once; what it says is judged at the end of its text block."""

OBSERVED_AT_ONCE: Final = 16
"""`observe` judges earlier when so many pieces wait for it, which bounds what is kept."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a piece: the text that goes out in its place, or None; and whether it was objected to."""

    keep: str | None
    flagged: bool = False


Judge = Callable[[str, str], Awaitable[Verdict]]
"""Judges `(text, piece)`: the piece with the earlier ones before it, and the piece, which is the end of it."""


@dataclass(frozen=True, slots=True)
class JudgedStream:
    """Holds, judges and releases the text of one processor and run.

    Attributes:
        state: What is kept between chunks.
        judge: May raise; then nothing that is held goes out.
        mode: When a piece goes out.
        size: Characters from which on a piece may end.
        window: How many earlier pieces are judged along.
    """

    state: dict[str, Any]
    judge: Judge
    mode: StreamMode
    size: int
    window: int

    @property
    def holds(self) -> bool:
        """Whether text waits to be judged or to go out."""
        return bool(self.state.get("text") or self.state.get("waiting"))

    @property
    def tripped(self) -> bool:
        """Whether the next call raises."""
        return "tripped" in self.state

    async def take(self, part: Chunk) -> list[Chunk]:
        """Takes one chunk; returns those that go out now, in order.

        Raises:
            TripWire: The judge aborted. Where something that had passed came in the same chunk, it goes out first, and
                the next call raises: a client gets the same text however the provider cut it.
        """
        if part["type"] == "step-start":
            self.state.clear()  # what an attempt that was taken back left here must not go out with the next one
            return [part]
        if part["type"] == "raw":  # beside each text: a piece would end, and be judged, with each
            return [part]
        if part["type"] != "text-delta":
            return [*await self.flush(), part]
        self._raise_tripped()
        if not part["payload"]["text"]:
            return []
        last = self.state.get("last")
        same = last is not None and last["payload"].get("id") == part["payload"].get("id")
        out = [] if same else await self.flush()
        self.state["last"] = {**part, "payload": {**part["payload"], "text": ""}}
        pieces, self.state["text"] = cut_pieces(
            self.state.get("text", "") + part["payload"]["text"], self.size
        )
        if self.mode == "observe":
            return [*out, *await self._observe(pieces, part)]
        try:
            return [*out, *self._chunks(await self._pieces(pieces))]
        except TripWire as tripwire:
            return self._deferred(tripwire, out)

    async def take_all(self, parts: Iterable[Chunk]) -> list[Chunk]:
        """Takes several chunks that an earlier stage gives out at once; raises as `take` does."""
        out: list[Chunk] = []
        for part in parts:
            try:
                out += await self.take(part)
            except TripWire as tripwire:
                return self._deferred(tripwire, out)
        return out

    async def flush(self) -> list[Chunk]:
        """Judges the rest and gives out all that is held; raises as `take` does."""
        self._raise_tripped()
        rest = self.state.pop("text", "")
        if self.mode == "observe":
            for piece in [*self.state.pop("seen", []), rest]:
                await self._piece(piece)
            self.state.pop("waiting", None)
            return []
        out = await self._piece(rest)
        return self._chunks([*out, *self.state.pop("waiting", [])])

    async def _observe(self, pieces: list[str], part: Chunk) -> list[Chunk]:
        seen = [*self.state.get("seen", []), *pieces]
        if len(seen) >= OBSERVED_AT_ONCE:
            for piece in seen:
                await self._piece(piece)
            seen = []
        self.state["seen"], self.state["waiting"] = seen, []
        return [part]

    async def _pieces(self, pieces: list[str]) -> list[str]:
        texts: list[str] = []
        for piece in pieces:
            try:
                texts += await self._piece(piece)
            except TripWire as tripwire:
                return self._deferred(tripwire, texts)
        return texts

    def _deferred(self, tripwire: TripWire, passed: list[Any]) -> list[Any]:
        """What had passed before an abort; the next call raises that. Raises it at once where nothing had."""
        if not passed:
            raise tripwire
        self.state["tripped"] = [tripwire.reason, tripwire.retry, tripwire.metadata]
        self.state["text"], self.state["waiting"] = "", []
        return passed

    def _raise_tripped(self) -> None:
        if "tripped" in self.state:
            reason, retry, metadata = self.state.pop("tripped")
            self.state.clear()
            raise TripWire(reason, retry=retry, metadata=metadata)

    async def _piece(self, piece: str) -> list[str]:
        """Judges one piece and returns the texts that may go out now."""
        if not piece:
            return []
        context: list[str] = self.state.get("context", [])
        waiting: list[str] = self.state.get("waiting", [])
        verdict = Verdict(piece)
        if piece.strip():
            verdict = await self.judge("".join([*context, piece]), piece)
        # What waits was part of the text: only what is out already stays, as context.
        if verdict.keep is None:
            self.state["context"], self.state["waiting"] = context[: len(context) - len(waiting)], []
            return []
        if verdict.flagged:  # reported once: later pieces are judged without it
            self.state["context"], self.state["waiting"] = [], []
            return [*waiting, verdict.keep]
        self.state["context"] = [*context, verdict.keep][-self.window :] if self.window else []
        waiting = [*waiting, verdict.keep]
        stay = self.window if self.mode == "hold" else 0
        self.state["waiting"] = waiting[-stay:] if stay else []
        return waiting[:-stay] if stay else waiting

    def _chunks(self, texts: list[str]) -> list[Chunk]:
        text = "".join(texts)
        if not text:
            return []
        last: Chunk = self.state["last"]
        return [{**last, "payload": {**last.get("payload", {}), "text": text}}]


def edged(text: str, piece: str) -> str:
    """What a model wrote in the place of a piece, with the piece's own white space around it, which models trim."""
    body = piece.strip()
    begin = piece.index(body)
    return piece[:begin] + text.strip() + piece[begin + len(body) :]
