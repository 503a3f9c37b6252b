"""The recorded vectors of the example processors, in the shapes of this project."""

import json
from pathlib import Path
from typing import Any

import pytest

_FILE = Path(__file__).parents[2] / "vectors" / "given" / "example-processors.json"


def vectors(*prefixes: str) -> Any:
    """The vectors whose names begin so, as parameters of a test."""
    found = [v for v in json.loads(_FILE.read_text()) if v["name"].startswith(prefixes)]
    assert found, prefixes
    return pytest.mark.parametrize("vector", found, ids=[v["name"] for v in found])


def messages_of(vector: Any) -> list[dict[str, Any]]:
    """The messages of an input vector."""
    return [
        {
            "id": m["id"],
            "role": m["role"],
            "createdAt": f"2026-01-01T00:00:{at:02}.000Z",
            "content": {"format": 2, "parts": m["parts"]},
        }
        for at, m in enumerate(vector["input"]["messages"])
    ]


def flat(messages: Any) -> list[dict[str, Any]]:
    """Messages as the vectors write them."""
    return [{"id": m["id"], "role": m["role"], "parts": m["content"]["parts"]} for m in messages]


def chunks_of(vector: Any) -> list[Any]:
    """The chunks of a stream vector."""
    return [
        {"type": c["type"], "runId": c["runId"], "payload": {"id": c["id"], "text": c["text"]}}
        if c["type"] == "text-delta"
        else {"type": c["type"], "payload": {}}
        for c in vector["input"]["chunks"]
    ]


def flat_chunks(chunks: Any) -> list[dict[str, Any]]:
    """Chunks as the vectors write them."""
    return [
        {"type": c["type"], **c["payload"], "runId": c["runId"]}
        if c["type"] == "text-delta"
        else {"type": c["type"]}
        for c in chunks
    ]


def tripwire(outcome: Any) -> Any:
    """An abort as the vectors write it."""
    if outcome.tripwire is None:
        return None
    told = {"reason": outcome.tripwire.reason, "processorId": outcome.tripwire.processor_id}
    if outcome.tripwire.retry:
        told["retry"] = True
    if outcome.tripwire.metadata is not None:
        told["metadata"] = outcome.tripwire.metadata
    return told
