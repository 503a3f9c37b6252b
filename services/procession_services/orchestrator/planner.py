"""Plans of runs: those of configured agents are made once for each set of options that requests bring."""

from typing import Any, Final

from procession.args import RequestContext
from procession.registry import Registry
from procession_schemas.agent import Agent, FactoryRef
from procession_schemas.run import RunRequest
from procession_schemas.validation import RefusedError
from procession_schemas.work import OpenOp
from procession_services.orchestrator.core.plan import Arrays, make_plan, pick
from procession_services.processor_host.factories import called_in_time
from procession_services.runs.state import Plan
from procession_services.runtime.building import built
from procession_services.runtime.reload import Watched
from procession_services.runtime.settings import Settings

__all__ = ["Planner"]

_KEPT: Final = 256
_LONGEST_KEY: Final = 4096
_KINDS: Final = ("input", "output", "error")
_OF_THE_RUN: Final = (
    *("run_id", "input", "agent", "system", "context", "instructions", "timeout"),
    *("request_context", "tracing_context"),
)
_NOT_IN_PLANS: Final[dict[str, Any]] = {
    **dict.fromkeys(_OF_THE_RUN, True),
    "memory": {"thread", "resource"},
}
"""What of a request is about its run alone: `opening` has it, or the run's state."""


class Planner:
    """Makes the plans of one orchestrator.

    Args:
        registry: What is installed.
        settings: For the defaults.
        agents: The agents whose plans are kept until they are read anew.
    """

    def __init__(self, registry: Registry, settings: Settings, agents: Watched[dict[str, Agent]]) -> None:
        self._registry, self._agents = registry, agents
        vectors = settings.chroma_url or settings.chroma_path
        self._defaults = {"api_base": settings.api_base, "vectors": vectors}
        self._api_bases = {settings.api_base, *settings.api_bases}
        self._unlisted = settings.unlisted_api_bases
        self._of = agents.value
        self._plans: dict[tuple[str, bool, str], Plan] = {}

    async def plan(self, request: RunRequest, agent: Agent, first: OpenOp) -> Plan:
        """The plan of a request that begins with `first`; not only its own, so it is not to be changed.

        An agent that comes with its request, and one whose input array a factory makes, is planned each time.

        Raises:
            RefusedError: Something named is unknown or wrong.
        """
        arrays = {kind: pick(request, agent, f"{kind}_processors") or [] for kind in _KINDS}
        asked = request.model_dump_json(exclude=_NOT_IN_PLANS, exclude_unset=True)
        made = isinstance(arrays["input"], FactoryRef)
        if made or self._agents.value.get(agent.name) is not agent:
            return await self._make(request, agent, arrays, len(asked))
        if self._of is not self._agents.value:
            self._of, self._plans = self._agents.value, {}
        key = (agent.name, first.memory is None, asked)
        if (known := self._plans.get(key)) is not None:
            return known
        plan = await self._make(request, agent, arrays, len(asked))
        if len(asked) <= _LONGEST_KEY:
            if len(self._plans) >= _KEPT:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = plan
        return plan

    async def _make(self, request: RunRequest, agent: Agent, arrays: Arrays, asked: int) -> Plan:
        """The plan of a request that asks for so many characters of options."""
        strange = self._is_strange(request.agent)
        if strange and not self._unlisted:
            allowed = "the API bases of configured agents, and those in PROCESSION_API_BASES"
            told = f"agent.apiBase: the operator allows only {allowed}"
            raise RefusedError("INVALID_REQUEST", told, "agent.apiBase")
        if isinstance(own := arrays["input"], FactoryRef):
            context = RequestContext(request.request_context)  # the run's own time has not begun
            arrays = {**arrays, "input": await called_in_time(own, self._registry, context, "input")}
        size = asked + len(agent.model_dump_json(exclude_unset=True))
        plan = await built(lambda: make_plan(request, agent, arrays, self._registry, self._defaults), size)
        return plan.but(keyless=True) if strange else plan

    def _is_strange(self, agent: Agent | None) -> bool:
        """Whether an agent that came with a request names a place for its calls that the operator has not named."""
        if agent is None or agent.api_base is None:
            return False
        configured = {each.api_base for each in self._agents.value.values()}
        return agent.api_base not in self._api_bases | configured
