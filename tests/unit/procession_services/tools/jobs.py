"""A job for tests of the tools service: a real context and registry, a sink that keeps what it gets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from procession.args import AbortSignal
from procession.calls import Calls
from procession.context import RunContext
from procession.message_list import MessageList
from procession.registry import Registry
from procession.tools import Tool
from procession_schemas.agent import ProcessorRef, ToolRef
from procession_schemas.chunks import Chunk
from procession_schemas.work import StepConfig, WorkCommand, WorkResult


def call(id_: str, name: str, **args: Any) -> dict[str, Any]:
    return {"toolCallId": id_, "toolName": name, "args": args}


class FakeJob:
    """One delivery of a command that runs `calls`; `fail` is raised by the sink."""

    def __init__(
        self,
        tools: list[type[Tool]],
        calls: list[dict[str, Any]],
        *,
        refs: list[ToolRef] | None = None,
        active: list[str] | None = None,
        seq: int = 1,
        version: int = 1,
        fail: Exception | None = None,
    ) -> None:
        self.registry = Registry()
        for each in tools:
            self.registry.add_tool(each)
        refs = refs if refs is not None else [ToolRef(id=each.id) for each in tools]
        config = StepConfig(model="m", tools={ref.name: ref for ref in refs}, active_tools=active)
        messages = MessageList(new_id=lambda: "id", now=lambda: "2026-01-01T00:00:00.000Z")
        self.ctx = RunContext("run-1", "acme", "demo", "m1", messages, config=config)
        self.ctx.response = {"toolCalls": calls}
        self.calls = Calls(clock=lambda: 0)
        common: dict[str, Any] = {
            "run": "run-1",
            "tenant": "acme",
            "seq": seq,
            "service": "tools",
            "version": version,
        }
        self.command = WorkCommand(**common, agent="demo", out_seq=0, message_id="m1", ops=[])
        self.result = WorkResult(**common, outcome="ok", out_seq=0)
        self.abort_signal = AbortSignal()
        self.sent: list[Chunk] = []
        self.opened: list[list[ProcessorRef]] = []
        self._fail = fail

    @property
    def outcomes(self) -> list[dict[str, Any]]:
        return self.ctx.outcomes

    @asynccontextmanager
    async def sink(self, processors: list[ProcessorRef]) -> AsyncIterator["FakeJob"]:
        self.opened.append(processors)
        yield self

    async def send(self, chunks: list[Chunk]) -> None:
        if self._fail:
            raise self._fail
        self.sent.extend(chunks)
