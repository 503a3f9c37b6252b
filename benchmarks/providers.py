"""`python -m benchmarks.providers`: the CPU that a model's answer costs its reader, our own way and `acompletion`.

A process of its own serves answers in each provider's form; this one reads them, alternating between the ways, and
counts its own CPU time: the request, the reading, and the chunks that are made. Answers are read one at a time where
they come as fast as they can (what is there together is read together), and eight at a time where every chunk comes
alone, 4 ms after the one before. `--calls N` says how many answers a round reads, `--rounds N` how many rounds.
"""

import argparse
import asyncio
import json
import os
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import uvloop

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider

_MODELS: Final = {
    "OpenAI": "openai/gpt-4o",
    "Azure": "azure/gpt-4o",
    "Anthropic": "anthropic/claude-sonnet-4-5",
    "Gemini": "gemini/gemini-2.5-flash",
    "Bedrock": "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0",
}
_CHUNKS: Final = 100
_PACE_MS: Final = 4
_AT_ONCE: Final = 8
_WORD: Final = "token "
_AMAZON: Final = {
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_REGION": "eu-central-1",
}

# --- the server ------------------------------------------------------------------------------


def _openai(count: int) -> Iterator[bytes]:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1_767_225_600, "model": "gpt-4o"}
    for number in range(count + 1):
        delta, reason = ({"content": _WORD}, None) if number < count else ({}, "stop")
        yield _sse({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
    usage = {"prompt_tokens": 9, "completion_tokens": count, "total_tokens": 9 + count}
    yield _sse({**head, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _anthropic(count: int) -> Iterator[bytes]:
    usage = {"input_tokens": 9, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "c", "usage": usage}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *[{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": _WORD}}]
        * count,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": count}},
        {"type": "message_stop"},
    ]
    for event in events:
        yield f"event: {event['type']}\n".encode() + _sse(event)


def _gemini(count: int) -> Iterator[bytes]:
    for number in range(1, count + 1):
        usage = {"promptTokenCount": 9, "candidatesTokenCount": number, "totalTokenCount": 9 + number}
        candidate: dict[str, Any] = {"content": {"parts": [{"text": _WORD}], "role": "model"}, "index": 0}
        if number == count:
            candidate["finishReason"] = "STOP"
        yield _sse(
            {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "g", "responseId": "r"}
        )


def _bedrock(count: int) -> Iterator[bytes]:
    yield _frame("messageStart", {"role": "assistant"})
    for _ in range(count):
        yield _frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": _WORD}, "p": "abcd"})
    yield _frame("contentBlockStop", {"contentBlockIndex": 0})
    yield _frame("messageStop", {"stopReason": "end_turn"})
    usage = {"inputTokens": 9, "outputTokens": count, "totalTokens": 9 + count}
    yield _frame("metadata", {"usage": usage, "metrics": {"latencyMs": 1}})


def _sse(event: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(event)}\n\n".encode()


def _frame(kind: str, body: Mapping[str, Any]) -> bytes:
    """One event of Amazon's event stream."""
    names = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in names.items()
    )
    payload = json.dumps(body).encode()
    head = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    checked = head + struct.pack(">I", zlib.crc32(head)) + headers + payload
    return checked + struct.pack(">I", zlib.crc32(checked))


_ANSWERS: Final = {
    "/deployments/": _openai,
    "/messages": _anthropic,
    ":streamGenerateContent": _gemini,
    "/converse-stream": _bedrock,
    "/chat/completions": _openai,
}
"""What a path asks for; the first match counts."""


async def _serve() -> None:
    """Answers until it is stopped; writes its address to the standard output."""
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)  # noqa: T201 - who started it reads
    await server.serve_forever()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            headers = dict(line.split(": ", 1) for line in head[1:] if line)
            await reader.readexactly(int(headers.get("content-length", 0)))
            make = next(made for part, made in _ANSWERS.items() if part.lower() in head[0])
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            for event in make(int(headers["x-chunks"])):
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
                if pace := int(headers.get("x-pace", 0)):
                    await asyncio.sleep(pace / 1000)
            writer.write(b"0\r\n\r\n")
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


# --- the measurement -------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """Answers of so many chunks, so many at once; with a pace every chunk comes alone."""

    chunks: int
    pace_ms: int = 0
    at_once: int = 1


_ONE: Final = Load(1)
_FAST: Final = Load(_CHUNKS)
_PACED: Final = Load(_CHUNKS, _PACE_MS, _AT_ONCE)


async def _cpu_ms(provider: LiteLLMProvider, call: ModelCall, load: Load, calls: int) -> float:
    """The milliseconds of CPU that one answer costs."""

    async def read() -> None:
        texts = 0
        async with aclosing(provider.stream(call)) as answer:
            async for batch in answer:
                texts += sum(chunk["type"] == "text-delta" for chunk in batch)
        if texts != load.chunks:
            raise RuntimeError(f"{call.model} gave {texts} texts instead of {load.chunks}")

    begin = time.process_time()
    for _ in range(calls // load.at_once):
        await asyncio.gather(*(read() for _ in range(load.at_once)))
    return (time.process_time() - begin) * 1000 / (calls // load.at_once * load.at_once)


async def _measure(base: str, models: Sequence[str], calls: int, rounds: int) -> None:
    ways = {"direct": LiteLLMProvider(), "acompletion": LiteLLMProvider(direct=False)}
    prompt = [{"role": "user", "content": "Say something."}]
    heads = ["a call, ms", "further chunk, us", "chunk that comes alone, us"]
    columns = [f"{head}: {way}" for head in heads for way in ways]
    print(f"| provider | {' | '.join(columns)} |\n| --- |{' --: |' * len(columns)}")  # noqa: T201
    for name in models:
        found: dict[tuple[str, Load], list[float]] = {
            (way, load): [] for load in (_ONE, _FAST, _PACED) for way in ways
        }
        for number in range(rounds + 1):
            for (way, load), samples in found.items():
                key = None if name == "Bedrock" else "none"
                headers = {"x-chunks": str(load.chunks), "x-pace": str(load.pace_ms)}
                call = ModelCall(_MODELS[name], prompt, api_base=base, api_key=key, headers=headers)
                sample = await _cpu_ms(ways[way], call, load, calls)
                if number:  # the first round warms up
                    samples.append(sample)
        middle = {case: median(samples) for case, samples in found.items()}
        told = [f"{middle[way, _ONE]:.2f}" for way in ways]
        for load in (_FAST, _PACED):
            told += [f"{1000 * (middle[way, load] - middle[way, _ONE]) / (_CHUNKS - 1):.0f}" for way in ways]
        print(f"| {name} | {' | '.join(told)} |", flush=True)  # noqa: T201
    for provider in ways.values():
        await provider.aclose()


def main() -> None:
    """Starts the server and measures; or is the server."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.providers", description=__doc__)
    parser.add_argument("models", nargs="*", default=list(_MODELS), help=f"some of {', '.join(_MODELS)}")
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve())
        return
    os.environ.update(_AMAZON)
    command = [sys.executable, "-m", "benchmarks.providers", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603 - this very program
        try:
            base = server.stdout.readline().strip() if server.stdout else ""
            uvloop.run(_measure(base, options.models, options.calls, options.rounds))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
