"""`tool-search.json`: each entry of a script is one step of a request; the tool that it calls runs for real."""

import itertools
import re
from typing import Any

from procession.args import AbortSignal, RequestContext
from procession.testing import DictStore, ProcessorKit
from procession.testing import environment as make_environment
from procession.tools import ToolContext
from procession_services.processors.core.tool_catalog import HELPERS, Phase
from procession_services.processors.tool_search import LoadTool, SearchTools, ToolSearch
from tests.vectors.adapters.common import at_once

TOOLS = {SearchTools.id: SearchTools, LoadTool.id: LoadTool}
RESOLVED = "special thing"
"""The description of the step's own tools; the vectors name them only."""
_DENIES = re.compile(r"denies (\S+) in the (\w+) phase")


class _Silent:
    """The writer of a call that writes nothing."""

    async def custom(self, chunk: Any) -> None:
        raise AssertionError(chunk)

    async def write(self, output: Any) -> None:
        raise AssertionError(output)


def filtered(told: str) -> type[ToolSearch]:
    """The processor with the filter that a vector describes."""

    class Filtered(ToolSearch):
        def permits(self, name: str, tool: dict[str, Any], context: RequestContext, phase: Phase) -> bool:
            if (denial := _DENIES.fullmatch(told)) is None:
                raise RuntimeError(told)
            who, where = denial.groups()
            return phase != where or who not in ("everything", name, tool["id"])

    return Filtered


def call_context(environment: Any, name: str, run_id: str) -> ToolContext:
    """What a helper tool is told about its call."""
    return ToolContext(
        tool_call_id="call",
        tool_name=name,
        run_id=run_id,
        tenant="test",
        writer=_Silent(),
        abort_signal=AbortSignal(),
        environment=environment,
    )


async def observe(vector: dict[str, Any]) -> Any:
    """Runs the script, or the clock in `ttl-cleanup`."""
    options = dict(vector["options"])
    kind = filtered(options.pop("filter")) if "filter" in options else ToolSearch
    if "script" not in vector["input"]:
        return await _expiry(vector, options)
    numbers, clock = itertools.count(), itertools.count()
    environment = make_environment(now=lambda: float(next(clock)))
    steps = [await _step(each, vector["input"], kind, options, environment, f"run-{next(numbers)}")
             for each in vector["input"]["script"]]  # fmt: skip
    return {"steps": steps}


async def _step(  # noqa: PLR0917 - what the steps of a script share
    each: dict[str, Any],
    given: dict[str, Any],
    kind: type[ToolSearch],
    options: dict[str, Any],
    environment: Any,
    run_id: str,
) -> dict[str, Any]:
    thread = each.get("thread", given.get("thread"))
    kit = ProcessorKit(
        kind,
        options,
        environment=environment,
        request_context={"mastra__threadId": thread} if thread else {},
    )
    kit.context.run_id = run_id
    kit.message_list.add(each.get("messages", []), "memory")
    own = [*given.get("resolvedTools", []), *given.get("stepTools", [])]
    outcome = await kit.input_step(tools={name: {"id": name, "description": RESOLVED} for name in own})
    made = {"toolNames": list(outcome.config.tools), "systemMessageCount": len(outcome.system)}
    catalog = [
        line for m in outcome.system[1:] for line in m["content"].splitlines() if line.startswith("- `")
    ]
    if catalog:
        made["catalog"] = catalog
    if name := each.get("call"):
        tool = TOOLS[name](outcome.config.tools[name].options)
        result = await tool.execute(each.get("args", {}), call_context(environment, name, run_id))
        made |= {"call": name, "result": result}
    return made


async def _expiry(vector: dict[str, Any], options: dict[str, Any]) -> dict[str, int]:
    """One thread loads a tool; then the time passes. Here the store itself forgets."""
    now = [0.0]
    environment = make_environment(store=DictStore(lambda: now[0]), now=lambda: now[0])
    options.setdefault("tools", {"a": {"id": "a", "description": "one"}})
    name = next(iter(options["tools"].values()))["id"]
    call = {"call": "load_tool", "args": {"toolName": name}}

    async def threads() -> int:
        step = await _step({}, {"thread": "t"}, ToolSearch, options, environment, "run")
        return int(name in step["toolNames"])

    await _step(call, {"thread": "t"}, ToolSearch, options, environment, "run")
    before = await threads()
    now[0] += vector["input"]["waitMs"] / 1000
    after = await threads()
    return {"threadsBefore": before, "cleaned": before - after, "threadsAfter": after}


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """D-80: a request without a thread has a set of its own, so it sees nothing that another one loaded.

    D-112: what may not be loaded is not found where what is found is loaded.
    """
    if _as_hidden(vector, observed):
        return "D-112"
    script = vector["input"].get("script", [])
    anonymous = [i for i, each in enumerate(script) if not each.get("thread", vector["input"].get("thread"))]
    if len(anonymous) < 2:
        return None
    tools = vector["options"].get("tools", {})
    names = {*tools, *(tool["id"] for tool in tools.values()), *vector["input"].get("resolvedTools", [])} - {
        *HELPERS
    }
    for place, (want, have) in enumerate(zip(vector["expected"]["steps"], observed["steps"], strict=True)):
        shown = [n for n in want["toolNames"] if place not in anonymous or n not in names]
        if have["toolNames"] != shown or have["systemMessageCount"] != want["systemMessageCount"]:
            return None
        if _facts(have.get("result")) != _facts(want.get("result")):
            return None
    return "D-80"


def _as_hidden(vector: dict[str, Any], observed: Any) -> bool:
    """Whether a filter for loading does what one for searching would, and the reference has loaded what it denies."""
    options = vector["options"]
    denial = _DENIES.fullmatch(options.get("filter", ""))
    if not options.get("search", {}).get("autoLoad") or denial is None or denial[2] != "load":
        return False
    hidden = {**options, "filter": f"denies {denial[1]} in the search phase"}
    loaded = {name for step in vector["expected"]["steps"] for name in step["toolNames"]}
    searched = bool(at_once(observe({**vector, "options": hidden})) == observed)
    return searched and (denial[1] == "everything" or denial[1] in loaded)


def _facts(result: Any) -> Any:
    return {k: v for k, v in result.items() if k != "message"} if isinstance(result, dict) else result
