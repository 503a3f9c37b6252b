"""Plays an answer to a client: pacing, backpressure, breaks and the counters of what was sent."""

import asyncio
import os
import resource
import time
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from procession_services.demo_model.answers import Answer, Break, Hangup, Refusal, Reply
from procession_services.demo_model.completions import (
    BROKEN_EVENT,
    DONE,
    ChunkEncoder,
    completion,
    error_body,
    error_event,
)
from procession_services.demo_model.conversation import Body
from procession_services.demo_model.protocol import Exchange

# An unpaced stream lets the other connections run after so many chunks.
_CHUNKS_PER_TURN: Final = 16


@dataclass(slots=True)
class Stats:
    """Counters over the chat completions since the start or the last reset.

    `chunks` are text chunks of streams, `bytes` all bytes written, `cancelled` answers whose client left
    before the end. `open` is a gauge.
    """

    requests: int = 0
    chunks: int = 0
    bytes: int = 0
    http_errors: int = 0
    mid_errors: int = 0
    open: int = 0
    max_open: int = 0
    cancelled: int = 0

    def reset(self) -> None:
        """Forget everything but the answers that are under way."""
        for counter in fields(self):
            if counter.name != "open":
                setattr(self, counter.name, 0)
        self.max_open = self.open

    def report(self) -> dict[str, Any]:
        """Return the counters and what the process has used so far."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        process = {"cpu_s": used.ru_utime + used.ru_stime, "rss_kb": used.ru_maxrss, "pid": os.getpid()}
        return asdict(self) | process


async def play(answer: Answer, body: Body, exchange: Exchange, stats: Stats) -> None:
    """Send `answer` to the client in the form that the request asks for."""
    if answer.delay:
        await asyncio.sleep(answer.delay)
    match answer:
        case Hangup():
            stats.http_errors += 1
            exchange.cut()
        case Refusal():
            stats.http_errors += 1
            exchange.reply(answer.status, error_body(answer.status, answer.message), answer.headers)
        case Reply():
            completion_id = f"chatcmpl-{stats.requests}"
            model = str(body.get("model") or "")
            if body.get("stream"):
                options = body.get("stream_options") or {}
                wanted = answer.send_usage == "auto" and bool(options.get("include_usage"))
                encoder = ChunkEncoder(completion_id, model)
                await _stream(answer, encoder, exchange, stats, usage=wanted or answer.send_usage == "always")
            else:
                await _whole(answer, completion_id, model, exchange, stats)


async def _whole(reply: Reply, completion_id: str, model: str, exchange: Exchange, stats: Stats) -> None:
    if reply.chunk_delay:
        await asyncio.sleep(reply.chunk_delay * max(0, len(reply.text) - 1))
    if reply.breaks is None:
        exchange.reply(200, completion(completion_id, model, reply))
        return
    stats.mid_errors += 1
    if reply.breaks.kind == "drop":
        exchange.cut()
    else:
        exchange.reply(500, error_body(500, reply.breaks.message))


async def _stream(
    reply: Reply, encoder: ChunkEncoder, exchange: Exchange, stats: Stats, *, usage: bool
) -> None:
    exchange.open_stream()
    opening = [encoder.delta({"role": "assistant", "content": ""})]
    opening += [encoder.delta({"reasoning_content": thought}) for thought in reply.reasoning]
    exchange.send(b"".join(opening))
    await _send_text(reply, encoder, exchange, stats)
    if reply.breaks is not None:
        stats.mid_errors += 1
        _break(reply.breaks, exchange)
        return
    ending = [
        event for index, call in enumerate(reply.tool_calls) for event in encoder.tool_call(index, call)
    ]
    ending.append(encoder.delta({}, reply.finish_reason))
    if usage:
        ending.append(encoder.usage(reply.usage))
    exchange.send(b"".join((*ending, DONE)))
    exchange.end_stream()
    await exchange.drain()


async def _send_text(reply: Reply, encoder: ChunkEncoder, exchange: Exchange, stats: Stats) -> None:
    """Send the text chunks, paced on an absolute schedule so that lateness does not add up."""
    text, delay, coalesce = reply.text, reply.chunk_delay, reply.coalesce
    encode, send = encoder.text, exchange.send
    batch: list[bytes] = []
    start = time.monotonic()
    for index in range(len(text)):
        if delay:
            if index and (wait := start + index * delay - time.monotonic()) > 0:
                await asyncio.sleep(wait)
        elif index % _CHUNKS_PER_TURN == _CHUNKS_PER_TURN - 1:
            await asyncio.sleep(0)
        batch.append(encode(text[index]))
        if len(batch) >= coalesce:
            send(b"".join(batch))
            stats.chunks += len(batch)
            batch.clear()
            if exchange.paused:
                await exchange.drain()
    if batch:
        send(b"".join(batch))
        stats.chunks += len(batch)


def _break(breaks: Break, exchange: Exchange) -> None:
    match breaks.kind:
        case "drop":
            exchange.cut()
        case "garbage":
            exchange.send(BROKEN_EVENT)
            exchange.send(DONE)
            exchange.end_stream()
        case "event":
            exchange.send(error_event(breaks.message))
            exchange.end_stream()
