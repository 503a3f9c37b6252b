"""Runs whose services hand commands to each other, and how long such a run may stand still."""

from typing import Any, Final

from procession.client import RunHandle

LEASE: Final = 30.0
SOONER: Final = 20.0
"""What is not given back before its lease is over comes later than that."""
LONG: Final = "x" * 40_000
"""What is asked: too long for its request to be kept until the run is over, so the first command is a message."""
TEXT: Final = [f"word{number} " for number in range(60)]
DELAYED: Final[dict[str, Any]] = {"chunk_delay_ms": 15}
SLOW: Final[dict[str, Any]] = {"chunks": TEXT, **DELAYED}
CALL: Final[dict[str, Any]] = {
    "tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "x"}}],
}
AGENT: Final[dict[str, Any]] = {
    "inputProcessors": ["unicode-normalizer"],
    "outputProcessors": ["upper"],
    "tools": ["echo"],
}


async def begun(handle: RunHandle) -> None:
    """Waits for the first text of a run."""
    async for chunk in handle:
        if chunk["type"] == "text-delta":
            return
