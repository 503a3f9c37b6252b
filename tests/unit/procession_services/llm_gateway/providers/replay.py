"""Replays recorded provider streams; the files hold the bodies of answers in the forms that the providers document."""

import json
import re
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from procession_schemas.chunks import Chunk
from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
from tests.unit.procession_services.llm_gateway.loopback import Answer, ModelServer, Received

RECORDED: Final = Path(__file__).parent / "recorded"
STREAMS: Final = sorted(path.name for path in RECORDED.iterdir() if path.suffix in (".sse", ".bin"))
ANTHROPIC: Final = "anthropic/claude-sonnet-4-5"
GEMINI: Final = "gemini/gemini-2.5-flash"
BEDROCK: Final = "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0"
MODELS: Final = {
    "openai": ["openai/gpt-4o", "hosted_vllm/demo", "azure/gpt-4o"],
    "anthropic": [ANTHROPIC],
    "gemini": [GEMINI],
    "bedrock": [BEDROCK],
}
"""Who answers in a dialect."""
EVERY_MODEL: Final = [model for models in MODELS.values() for model in models]
CASES: Final = [(name, model) for name in STREAMS for model in MODELS[name.partition("-")[0]]]
TEXTS: Final = [(name, model) for name, model in CASES if "-text." in name]
AMAZON: Final = "application/vnd.amazon.eventstream"
REGION: Final = "eu-central-1"


@dataclass(frozen=True)
class Outcome:
    """What became of a call: its request, its chunks, and how it failed."""

    request: Received
    chunks: list[Any]
    failure: dict[str, Any]

    def brief(self) -> list[Any]:
        """The chunks without their names and ids."""
        keys = ("text", "signature", "data", "args", "argsText", "argsTextDelta")
        return [
            (chunk["type"], *(chunk["payload"][key] for key in keys if key in chunk["payload"]))
            for chunk in self.chunks
            if chunk["type"] not in ("response-metadata", "finish")
        ]

    def end(self) -> tuple[str, dict[str, Any]]:
        """The reason and the usage of the answer."""
        payload = self.chunks[-1]["payload"]
        return payload["stepResult"]["reason"], payload["output"]["usage"]

    def said(self) -> dict[str, Any]:
        """What the failure says to whoever decides what to do about it."""
        names = ("kind", "isRetryable", "statusCode", "code", "responseHeaders")
        return {name: self.failure[name] for name in names if name in self.failure}


def recorded(name: str, *, size: int | None = None, cut: int | None = None) -> Answer:
    """Replay a stream in pieces of a size; `cut` drops the connection after so many bytes."""
    data = (RECORDED / name).read_bytes()[:cut]
    size = size or len(data)
    pieces = [data[begin : begin + size] for begin in range(0, len(data), size)]
    kind = AMAZON if name.endswith(".bin") else "text/event-stream"
    return Answer(pieces, content_type=kind, end="done" if cut is None else "drop")


def asked(server: ModelServer, model: str, **fields: Any) -> ModelCall:
    prompt = [{"role": "user", "content": "hi"}]
    key = None if model == BEDROCK else "k"
    return ModelCall(**{"model": model, "prompt": prompt, "api_base": server.base, "api_key": key, **fields})


async def outcome(provider: LiteLLMProvider, model: str, answer: Answer, **fields: Any) -> Outcome:
    chunks: list[Chunk] = []
    failed: dict[str, Any] = {}
    async with ModelServer(answer) as server:
        try:
            async with aclosing(provider.stream(asked(server, model, **fields))) as batches:
                async for batch in batches:
                    chunks += batch
        except ProviderError as error:
            failed = error.to_wire()
        assert len(server.requests) == 1, failed
        return Outcome(server.requests[0], plain(chunks, told=model in MODELS["openai"]), failed)


def plain(chunks: list[Chunk], *, told: bool) -> list[Any]:
    """Number the ids that LiteLLM makes up, and leave out the time unless the provider has told it."""
    numbers: dict[str, str] = {}
    text = json.dumps(chunks, sort_keys=True)
    for made_up in re.findall(r"(?:chatcmpl-|call_)[0-9a-f-]{24,36}(?=[\"_])", text):
        numbers.setdefault(made_up, f"made-up-{len(numbers)}")
    for made_up, number in numbers.items():
        text = text.replace(made_up, number)
    found: list[Any] = json.loads(text)
    for chunk in found:
        if chunk["type"] == "response-metadata" and not told:
            chunk["payload"].pop("timestamp", None)
    return found


def dialect(name: str) -> str:
    """The name of what a recorded stream is written in."""
    return name.partition("-")[0]
