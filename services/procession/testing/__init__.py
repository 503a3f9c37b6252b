"""Tests processors without a bus, a broker or a model.

    from procession.testing import ProcessorKit, check_processor

    async def test_it_shouts():
        kit = ProcessorKit(Shouter, {"mark": "!"})
        out = await kit.stream(["hello ", "world"])
        assert out.text == "HELLO WORLD!"
        await check_processor(Shouter, {"mark": "!"}, chunk_safe=True)

Hooks run as they do in the services: same calls, same return shapes, same errors. After each call the run's data go
through JSON, as they do between services.
"""

from procession.testing.conformance import ConformanceError, check_processor
from procession.testing.environment import DictStore, DictUsage, ScriptedModels, environment
from procession.testing.kit import ProcessorKit
from procession.testing.outcomes import (
    ErrorOutcome,
    Outcome,
    RequestOutcome,
    StepOutcome,
    StreamOutcome,
    ToolOutcome,
)

__all__ = [
    "ConformanceError",
    "DictStore",
    "DictUsage",
    "ErrorOutcome",
    "Outcome",
    "ProcessorKit",
    "RequestOutcome",
    "ScriptedModels",
    "StepOutcome",
    "StreamOutcome",
    "ToolOutcome",
    "check_processor",
    "environment",
]
