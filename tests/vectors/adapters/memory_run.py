"""One run with one memory processor, for the memory vectors."""

import itertools
from typing import Any

from procession import hooks
from procession.args import RequestContext
from procession.calls import Calls, Link
from procession.context import RunContext
from procession.errors import ProcessorError
from procession.message_list import MessageList
from procession.processor import Processor
from procession.testing import DictStore, environment
from procession.writers import NullWriter
from procession_services.memory.recall import Recall
from tests.vectors.adapters.memory_stage import TENANT, DictMessages, on_stage


class MemoryRun:
    """Calls the hooks of a processor as a service does; `warnings` are what it warned of."""

    def __init__(
        self,
        processor: Processor[Any],
        store: DictMessages,
        context: RequestContext,
        recall: Recall | None = None,
    ) -> None:
        numbers = itertools.count(1)
        times = (f"2026-01-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}.000Z" for n in itertools.count())
        self.list = MessageList(new_id=lambda: f"new-{next(numbers)}", now=times.__next__)
        self.warnings: list[str] = []
        self.values = DictStore()
        self._context = RunContext("run", TENANT, "agent", "answer", self.list, request_context=context)
        self._links = [Link(processor, processor.id)]
        self._calls = Calls(
            clock=lambda: 0, environment=environment(log=self.warnings.append, store=self.values)
        )
        self._store, self._recall = store, recall

    async def input(self) -> Exception | None:
        """Calls `process_input`; gives what it raised."""
        return await self._call(lambda: hooks.run_input(self._context, self._links, self._calls))

    async def output(self, finish_reason: str = "stop") -> Exception | None:
        """Calls `process_output_result`; gives what it raised."""
        return await self._call(
            lambda: hooks.run_output_result(
                self._context, self._links, self._calls, NullWriter(), finish_reason
            )
        )

    async def _call(self, hook: Any) -> Exception | None:
        try:
            with on_stage(self._store, self._recall):
                await hook()
        except ProcessorError as error:
            cause = error.__cause__
            return cause if isinstance(cause, Exception) else error
        return None


def thrown(error: Exception) -> dict[str, Any]:
    """An error as vectors show it."""
    return {"name": "Error", "message": str(error)}


def rows(vector: dict[str, Any]) -> Any:
    """The messages that a vector has stored."""
    return vector["input"].get("stored") or []
