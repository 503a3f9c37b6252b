"""One call of one tool: its writer, its time limit, and its result as JSON."""

import asyncio
import inspect
from collections.abc import AsyncIterable, Mapping
from typing import Any, Final

import orjson
from pydantic_core import to_jsonable_python

from procession.awaiting import awaited
from procession.json_values import given
from procession.tools import Tool, ToolContext
from procession.writers import check_custom
from procession_schemas.chunks import Chunk
from procession_services.runtime import telemetry
from procession_services.tools.execution import Execution
from procession_services.tools.threads import Threads

_threads: Final = Threads()


class ToolTimeoutError(Exception):
    """A call took longer than the tool's `timeout`."""


class ToolResultError(Exception):
    """A tool returned or wrote what has no JSON form."""


class CallWriter:
    """The writer of one call (R-WR-4)."""

    def __init__(self, execution: Execution, tool_call_id: str, tool_name: str) -> None:
        self._execution = execution
        self._call = {"toolCallId": tool_call_id, "toolName": tool_name}
        self._closed = False

    async def custom(self, chunk: Mapping[str, Any]) -> None:
        """Sends a `data-*` chunk; raises ValueError if it is another one."""
        checked = check_custom(chunk)
        if not checked["type"].startswith("data-"):
            raise ValueError(
                f"chunk type {checked['type']!r} is not `data-...`; send anything else with `write`"
            )
        await self._send(checked)

    async def write(self, output: Any) -> None:
        """Sends a `tool-output` chunk."""
        await self._send({"type": "tool-output", "from": "USER", "payload": {"output": output, **self._call}})

    def close(self) -> None:
        """Ends the writer: nothing of a call follows its outcome (R-CH-6)."""
        self._closed = True

    async def _send(self, chunk: Mapping[str, Any]) -> None:
        if self._closed:
            raise ValueError(f"the call {self._call['toolCallId']} has ended; its writer is closed")
        try:
            plain: Chunk = to_json(chunk)
        except ToolResultError as error:
            raise ValueError(f"what a tool writes must have a JSON form: {error}") from error
        await self._execution.write(plain)


async def invoke(tool: Tool, args: Any, context: ToolContext, seconds: float | None) -> dict[str, Any]:
    """Runs the tool and returns its part of the outcome: `result`, and `modelOutput` if it makes one.

    Raises:
        ToolTimeoutError: It took longer than `seconds`; its abort signal has fired.
        ToolResultError: The result has no JSON form.
        Exception: Whatever the tool raises.
    """
    with telemetry.observer().tool(context.tool_name, context.tool_call_id, args) as done:
        told = await _invoke(tool, args, context, seconds)
        done(told)
        return told


async def _invoke(tool: Tool, args: Any, context: ToolContext, seconds: float | None) -> dict[str, Any]:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            result = await _execute(tool, args, context)
    except TimeoutError as error:
        if not limit.expired():
            raise
        context.abort_signal.abort()
        raise ToolTimeoutError(
            f"The tool {context.tool_name!r} gave no result within {seconds:g} s."
        ) from error
    told = {"result": _result(result, f"The result of the tool {context.tool_name!r}")}
    if type(tool).model_output is not Tool.model_output:
        what = f"What the tool {context.tool_name!r} shows the model"
        told["modelOutput"] = _result(tool.model_output(result), what)
    return told


async def _execute(tool: Tool, args: Any, context: ToolContext) -> Any:
    if inspect.iscoroutinefunction(tool.execute):
        return await awaited(tool.execute(args, context))
    result = await _threads.run(_called, tool, args, context)
    if inspect.isasyncgen(result):
        return await awaited(_collected(result))
    return await awaited(result) if inspect.isawaitable(result) else result


def _called(tool: Tool, args: Any, context: ToolContext) -> Any:
    """A generator runs here, to its end: its code may wait, as that of any `def`."""
    result = tool.execute(args, context)
    return list(result) if inspect.isgenerator(result) else result


async def _collected(generator: AsyncIterable[Any]) -> list[Any]:
    return [each async for each in generator]


def to_json(value: Any) -> Any:
    """The value as plain JSON data: models, dataclasses, dates and sets are converted, NaN becomes null.

    Raises:
        ToolResultError: It has no JSON form; the message says what stands in the way.
    """
    try:
        plain = orjson.loads(orjson.dumps(to_jsonable_python(value)))
        given(plain, "value")
    except (ValueError, TypeError, RecursionError) as error:
        raise ToolResultError(str(error)) from error
    return plain


def _result(value: Any, what: str) -> Any:
    try:
        return to_json(value)
    except ToolResultError as error:
        raise ToolResultError(
            f"{what} has no JSON form: {error}. Tools return plain values, pydantic models or dataclasses."
        ) from error
