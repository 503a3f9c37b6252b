"""Processors that do something else with each chunk: what, follows from its number and from what it says."""

import asyncio
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from procession.calls import Calls, Link
from procession.context import RunContext
from procession.message_list import MessageList
from procession.processor import Options, Processor
from procession.stream import StreamChain
from procession_schemas.chunks import Chunk

__all__ = ["MADE", "Writes", "made", "said", "text_of", "told_by"]

_ACTS = {
    "pass": 6,
    "wait": 3,
    "hold": 2,
    "mark": 2,
    "halve": 2,
    "drop": 1,
    "twice": 1,
    "write": 2,
    "writes": 1,
}
_KINDS = ("text-delta", "data-made")
_SECONDS = 0.004
_TOLD = 8


class MadeOptions(Options):
    waits: bool = True


class _Made(Processor[MadeOptions]):
    async def process_output_stream(self, args: Any) -> Any:
        part, state = args.part, args.state
        if part["type"] not in _KINDS:
            return self._released(state, part)
        number = state["seen"] = state.get("seen", 0) + 1
        rng = random.Random(f"{self.id} {number} {said([part])}")
        (act,) = rng.choices(list(_ACTS), list(_ACTS.values()))
        if act == "hold":
            state.setdefault("held", []).append(part)
            return None
        if act == "wait" and self.options.waits:
            await asyncio.sleep(rng.uniform(0, _SECONDS))
        for each in range({"write": 1, "writes": 3}.get(act, 0)):
            if self.options.waits:
                await asyncio.sleep(rng.uniform(0, _SECONDS))
            await args.writer.custom({"type": "data-made", "data": f"{self.id} {number} {each}"})
        return self._released(state, *self._made(act, number, part))

    def flush_stream(self, args: Any) -> Any:
        return self._released(args.state)

    def _made(self, act: str, number: int, part: Chunk) -> list[Chunk]:
        text = part["payload"]["text"] if part["type"] == "text-delta" else None
        if text is None:
            return [part]
        match act:
            case "twice":
                return [part, _with(part, "+")]
            case "drop":
                return []
            case "mark":
                return [_with(part, f"{text}<{self.id[-1]}{number}>")]
            case "halve":
                return [_with(part, text[: len(text) // 2]), _with(part, text[len(text) // 2 :])]
            case _:
                return [part]

    @staticmethod
    def _released(state: dict[str, Any], *behind: Chunk) -> list[Chunk]:
        return [*state.pop("held", []), *behind]


class Made1(_Made):
    id = "chaos-made-1"


class Made2(_Made):
    id = "chaos-made-2"
    process_data_parts = True


class Made3(_Made):
    id = "chaos-made-3"
    process_data_parts = True


class Writes(Processor[Options]):
    """Writes before the answer, behind it, and at the end of all, where no other processor gets it."""

    id = "chaos-writes"

    async def process_input_step(self, args: Any) -> None:
        await self._write(args, "before")

    async def process_output_step(self, args: Any) -> None:
        await self._write(args, "behind")

    async def process_output_result(self, args: Any) -> None:
        await self._write(args, "at the end")

    @staticmethod
    async def _write(args: Any, whom: str) -> None:
        for chunk in told_by(whom):
            await args.writer.custom(chunk)
            await asyncio.sleep(_SECONDS)


MADE = (Made1, Made2, Made3)


def _with(part: Chunk, text: str) -> Chunk:
    return {**part, "payload": {**part["payload"], "text": text, "host": os.getpid()}}


def said(chunks: Sequence[Mapping[str, Any]]) -> list[str]:
    """What chunks say, each piece apart."""
    return [
        str(chunk["data"] if chunk["type"] == "data-made" else chunk["payload"]["text"])
        for chunk in chunks
        if chunk["type"] in _KINDS
    ]


def told_by(whom: str) -> list[Chunk]:
    """What somebody writes beside the answer."""
    return [{"type": "data-made", "data": f"{whom} {number}"} for number in range(_TOLD)]


_Streams = Sequence[Sequence[Chunk]]


def made(words: list[str], *, before: _Streams = (), behind: _Streams = ()) -> list[Chunk]:
    """What the chain makes of an answer in these pieces, in one process that nothing happens to.

    `before` and `behind` the answer are what others have written through the chain: a tool all that it writes as one
    stream, a hook each chunk as one.
    """
    with ThreadPoolExecutor(1) as another:  # which has no event loop
        return another.submit(asyncio.run, _made(words, before, behind)).result()


def text_of(chunks: Iterable[Chunk]) -> str:
    """The text of chunks."""
    return "".join(chunk["payload"]["text"] for chunk in chunks if chunk["type"] == "text-delta")


async def _made(words: list[str], before: _Streams, behind: _Streams) -> list[Chunk]:
    chunks: list[Chunk] = []
    messages = MessageList(new_id=lambda: "m", now=lambda: "2026-01-01T00:00:00.000Z")
    context = RunContext(run_id="r", tenant="t", agent="a", message_id="m", messages=messages)
    links = [Link(kind.build({"waits": False}), kind.id, place) for place, kind in enumerate(MADE)]
    answer: list[Chunk] = [{"type": "text-delta", "payload": {"id": "txt-0", "text": word}} for word in words]
    end: Chunk = {"type": "text-end", "payload": {"id": "txt-0"}}
    for stream in (*before, [*answer, end], *behind):
        async with StreamChain(links, context, Calls(clock=lambda: 0), chunks.append) as chain:
            for chunk in stream:
                await chain.feed(chunk)
            await chain.end()
    return chunks
