"""The plugin that the services load: a processor and a tool that do what a scenario's script says.

PROCESSION_PLUGINS=tests.conformance.scripted
"""

import asyncio
from typing import Any, ClassVar

from pydantic import Field

from procession.args import Violation
from procession.processor import Hook, Options, Processor
from procession.registry import Registry
from procession.tools import Tool, ToolContext
from tests.conformance.actions import Turn
from tests.conformance.board import Board
from tests.conformance.record import essentials, visible

__all__ = ["Scripted", "ScriptedOptions", "ScriptedTool", "register"]


class ScriptedOptions(Options):
    """A processor of a scenario: its hooks with their actions, and where to note what happens."""

    id: str = Field(description="Id of the processor in the scenario.")
    hooks: dict[str, list[dict[str, Any]]] = Field(default_factory=dict, description="Hook -> its actions.")
    process_data_parts: bool = Field(
        default=False, description="Whether the stream hook gets `data-*` chunks."
    )
    on_violation: bool = Field(default=False, description="Whether violations are noted.")
    ctx: dict[str, Any] = Field(description="The context of the scenario's run.")


class Scripted(Processor[ScriptedOptions]):
    """A processor that has the hooks that its options declare, and no others."""

    id: ClassVar[str] = "scripted"
    description: ClassVar[str] = "Follows the script of a conformance scenario."

    def __init__(self, options: ScriptedOptions) -> None:
        super().__init__(options)
        self.process_data_parts = options.process_data_parts
        self._board = Board(options.ctx["key"])

    @classmethod
    def hooks_for(cls, options: dict[str, Any]) -> frozenset[Hook]:
        """The hooks that the scenario declares; names that the contract does not know are never called."""
        known = {hook.value: hook for hook in Hook}
        return frozenset(known[name] for name in options.get("hooks") or {} if name in known)

    @classmethod
    def sees_data_parts(cls, options: dict[str, Any]) -> bool:
        """Whether the scenario opted in."""
        return bool(options.get("processDataParts") or options.get("process_data_parts"))

    async def process_input(self, args: Any) -> Any:
        """Plays `processInput`."""
        return await self._play(Hook.INPUT, args)

    async def process_input_step(self, args: Any) -> Any:
        """Plays `processInputStep`."""
        return await self._play(Hook.INPUT_STEP, args)

    async def process_llm_request(self, args: Any) -> Any:
        """Plays `processLLMRequest`."""
        return await self._play(Hook.LLM_REQUEST, args)

    async def process_llm_response(self, args: Any) -> None:
        """Plays `processLLMResponse`."""
        await self._play(Hook.LLM_RESPONSE, args)

    async def process_api_error(self, args: Any) -> Any:
        """Plays `processAPIError`."""
        return await self._play(Hook.API_ERROR, args)

    async def process_output_stream(self, args: Any) -> Any:
        """Plays `processOutputStream`."""
        return await self._play(Hook.OUTPUT_STREAM, args)

    async def process_output_step(self, args: Any) -> Any:
        """Plays `processOutputStep`."""
        return await self._play(Hook.OUTPUT_STEP, args)

    async def process_tool_result(self, args: Any) -> Any:
        """Plays `processToolResult`."""
        return await self._play(Hook.TOOL_RESULT, args)

    async def process_output_result(self, args: Any) -> Any:
        """Plays `processOutputResult`."""
        return await self._play(Hook.OUTPUT_RESULT, args)

    async def on_violation(self, violation: Violation) -> None:
        """Notes the violation where the scenario wants to know."""
        if self.options.on_violation:
            event = {"ev": "violation", "processor": violation.processor_id, "message": violation.message}
            detail = {} if violation.detail is None else {"detail": violation.detail}
            await self._board.note(event | detail)

    async def _play(self, hook: Hook, args: Any) -> Any:
        if hook.value not in self.options.hooks:  # a host that does not ask `hooks_for`
            return args.part if hook is Hook.OUTPUT_STREAM else None
        name = self.options.id
        event: dict[str, Any] = {"ev": "hook", "hook": hook.value, "processor": name}
        if (step := getattr(args, "step_number", None)) is not None:
            event["step"] = step
        event |= {"retryCount": args.retry_count} | essentials(hook.value, args)
        if state := visible(args.state):
            event["state"] = state | ({"cacheKey": "<key>"} if state.get("cacheKey") else {})
        n = await self._board.count(f"hook:{name}:{hook.value}", event)
        turn = Turn(hook.value, args, self.options.ctx, self._board, processor=name, n=n)
        return await turn.play(self.options.hooks[hook.value])


class ScriptedTool(Tool):
    """A tool of a scenario: returns, throws, emits data, or echoes its arguments."""

    id: ClassVar[str] = "scripted-tool"

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__()
        given = options or {}
        self._tool: dict[str, Any] = given.get("tool") or {"name": "scripted-tool"}
        self.description = self._tool.get("description") or self._tool["name"]
        self._board = Board((given.get("ctx") or {}).get("key", "conformance"))

    async def execute(self, args: Any, context: ToolContext) -> Any:
        """Does what the scenario says, and notes the call and how it ended."""
        tool = self._tool
        name = tool["name"]
        known = _declared(args, tool.get("parameters"))
        n = await self._board.count(f"tool:{name}", {"ev": "tool", "name": name, "args": known})
        for each in tool.get("emits") or []:
            await context.writer.custom({k: each[k] for k in ("type", "data", "transient") if k in each})
        if tool.get("delay_ms"):
            await asyncio.sleep(tool["delay_ms"] / 1000)
        outcome = {"ev": "_outcome", "id": context.tool_call_id}
        if tool.get("throws"):
            await self._board.note(outcome | {"error": tool["throws"]})
            raise RuntimeError(tool["throws"])
        if sequence := tool.get("returns_sequence"):
            result = sequence[min(n, len(sequence) - 1)]
        else:
            result = tool.get("returns", known)
        await self._board.note(outcome | {"result": result})
        return result


def _declared(args: Any, schema: dict[str, Any] | None) -> Any:
    """Arguments without the members that their schema does not declare, as the reference's tools get them."""
    if schema is None:
        schema = {"type": "object", "properties": {}}
    if isinstance(args, dict) and schema.get("type") == "object":
        properties = schema.get("properties") or {}
        return {name: _declared(args[name], each) for name, each in properties.items() if name in args}
    if isinstance(args, list) and schema.get("type") == "array" and schema.get("items"):
        return [_declared(each, schema["items"]) for each in args]
    return args


def register(registry: Registry) -> None:
    """Registers the scripted processor and tool."""
    registry.add_processor(Scripted)
    registry.add_tool(ScriptedTool)
