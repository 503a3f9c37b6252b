"""A plugin with processors that never end, for processes that do not wait long for those that let nothing else run."""

import asyncio
import re
import sys
import time
from contextlib import suppress
from typing import Any, ClassVar, Literal

from procession.processor import Hook, Options, Processor
from procession.registry import Registry
from procession_services.processor_host import process
from procession_services.runtime import standstill

__all__ = ["register"]


class StuckOptions(Options):
    hooks: frozenset[Hook]
    way: Literal["deaf", "sleeps", "computes"]


class Stuck(Processor[StuckOptions]):
    """Catches its cancellation, waits without `await`, or keeps Python's lock, in each hook of the options."""

    id: ClassVar[str] = "stuck"

    @classmethod
    def hooks_for(cls, options: dict[str, Any]) -> frozenset[Hook]:
        return StuckOptions.model_validate(options).hooks

    async def _stay(self, args: Any) -> None:
        while self.options.way == "deaf":
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(600)
        if self.options.way == "computes":
            re.match("(a*)*b", "a" * 40)
        time.sleep(600)  # noqa: ASYNC251 - as an author may

    process_input = process_input_step = process_output_stream = process_output_step = _stay
    process_output_result = process_api_error = _stay


def register(registry: Registry) -> None:
    if "pytest" not in sys.modules:
        vars(standstill)["_PATIENCE_SECONDS"] = 1.0
        vars(process)["_END_SECONDS"] = 8.0
    registry.add_processor(Stuck)
