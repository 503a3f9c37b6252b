"""A plugin whose processor and tool raise what ends a process of Python, each in ways of its own."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any, ClassVar, Final, Never

from procession.processor import Options, Processor
from procession.registry import Registry
from procession.tools import tool

__all__ = ["register"]


def _interrupt() -> Never:
    raise KeyboardInterrupt


_RAISING: Final[dict[str, Callable[[], Never]]] = {"exit": sys.exit, "interrupt": _interrupt}


async def _leave(what: str, way: str) -> None:
    async def raises() -> None:
        _RAISING[what]()

    if way == "itself":
        _RAISING[what]()
    if way == "in a task":
        async with asyncio.TaskGroup() as group:
            group.create_task(raises())
    asyncio.get_running_loop().call_soon(_RAISING[what])


class LeaveOptions(Options):
    what: str
    way: str


class Leave(Processor[LeaveOptions]):
    """Leaves before the model is asked."""

    id: ClassVar[str] = "leave"

    async def process_input(self, args: Any) -> None:
        await _leave(self.options.what, self.options.way)


@tool
async def leave(what: str, way: str) -> str:
    """Leaves before it says anything."""
    await _leave(what, way)
    return "stays"


@tool
def leave_thread(what: str) -> None:
    """Leaves in the thread of a plain function."""
    _RAISING[what]()


def register(registry: Registry) -> None:
    registry.add_processor(Leave)
    registry.add_tool(leave)
    registry.add_tool(leave_thread)
