"""The tools of a step as this service runs them: an instance of each, and who has to approve."""

import inspect
import logging
from dataclasses import dataclass
from typing import Final

import orjson

from procession.args import RequestContext
from procession.authors import is_ours, raised
from procession.awaiting import awaited
from procession.errors import TripWire
from procession.json_values import error_text
from procession.registry import Registry
from procession.tools import Tool
from procession_schemas.agent import ToolRef
from procession_schemas.base import JsonObject
from procession_schemas.work import StepConfig
from procession_services.runtime.kept import Kept
from procession_services.tools.core.plan import Offer

_log = logging.getLogger(__name__)
_INSTANCES: Final = Kept[tuple[type[Tool], bytes], Tool]()


@dataclass(frozen=True, slots=True)
class StepTool:
    """A tool of the step: what was configured, and its instance; without one, `broken` says why."""

    ref: ToolRef
    tool: Tool
    broken: str | None = None

    @property
    def offer(self) -> Offer:
        """The tool as the plan sees it."""
        parameters = self.tool.parameters if self.ref.parameters is None else self.ref.parameters
        return Offer(parameters, self.tool.client_side, self.tool.resume_schema, self.broken)

    @property
    def has_rule(self) -> bool:
        """Whether the tool decides by itself which calls need approval."""
        return type(self.tool).needs_approval is not Tool.needs_approval and self.ref.require_approval is None

    @property
    def may_wait(self) -> bool:
        """Whether a call may wait for a person, so that calls run one after another (R-TX-1)."""
        return self._always or self.has_rule or self.tool.resume_schema is not None

    @property
    def _always(self) -> bool:
        return self.tool.require_approval if self.ref.require_approval is None else self.ref.require_approval

    async def needs_approval(self, args: JsonObject, context: RequestContext, *, required: bool) -> bool:
        """Whether this call needs approval; `required` is what the request asks of every call.

        The tool's own rule counts more than the request, a yes or no in the agent's configuration more than
        the tool. A rule that raises means yes (R-AP-1), and the log says where.
        """
        if not self.has_rule:
            return required or self._always
        try:
            answer = self.tool.needs_approval(args, context)
            return bool(await awaited(answer) if inspect.isawaitable(answer) else answer)
        except TripWire:
            raise
        except BaseException as error:  # R-AP-1: a rule that fails must not let a call through
            if is_ours(error):
                raise
            rule = f"the approval rule of tool {self.ref.name}"
            _log.warning("%s raised %s, so the call waits for a person", rule, raised(error))
            return True


def step_tools(registry: Registry, config: StepConfig) -> dict[str, StepTool]:
    """The tools that the model may call in this step, by name (R-TL-3)."""
    return {
        name: _step_tool(registry, ref)
        for name, ref in config.tools.items()
        if config.active_tools is None or name in config.active_tools
    }


def _step_tool(registry: Registry, ref: ToolRef) -> StepTool:
    try:
        return StepTool(ref, _instance(registry.tool(ref.id), ref))
    except BaseException as error:  # wrong options, or whatever an author's constructor raises
        if is_ours(error):
            raise
        return StepTool(ref, Tool(), error_text(error))


def _instance(kind: type[Tool], ref: ToolRef) -> Tool:
    key = kind, orjson.dumps(ref.options)
    if (known := _INSTANCES.get(key)) is not None:
        return known
    return _INSTANCES.keep(key, kind(orjson.loads(key[1])), len(key[1]))
