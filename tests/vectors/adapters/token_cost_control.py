"""`token-cost-control.json`: the check before each step of one request, with the cost that the ledger tells."""

import re
from typing import Any, cast
from urllib.parse import unquote

from procession import hooks
from procession.args import RequestContext, Violation
from procession.calls import Calls, Link
from procession.context import RunContext
from procession.errors import InvalidOptionsError, TripWire
from procession.message_list import MessageList
from procession.processor import Hook
from procession.services import NO_ENVIRONMENT, Environment
from procession.testing import DictStore, ScriptedModels
from procession.usage import ModelUsage, Scope, UsageSum
from procession_services.processors.token_cost_control import TokenCostControl

PROSE = {"warnings", "registrationThrows", *map(str, range(10))}
"""Warnings are a list of texts: its places are keys of prose, too."""
_NOW = "2026-01-01T00:00:00.000Z"
_RESERVED = {"resource": "mastra__resourceId", "thread": "mastra__threadId"}
_COLUMN = {
    "run": "traceId",
    "resource": "resourceId",
    "thread": "threadId",
    "user": "userId",
    "organization": "organizationId",
    "session": "sessionId",
}
_METRICS = ["mastra_model_total_input_tokens", "mastra_model_total_output_tokens"]


class Books:
    """A ledger that tells the costs of a vector, step by step, and notes what it is asked."""

    def __init__(self, given: dict[str, Any]) -> None:
        cost = given.get("measuredCost")
        self._costs = cost if isinstance(cost, list) else [cost]
        self._fails = bool(given.get("queryFails"))
        self._breakdown = given.get("breakdown")
        self.queries: list[dict[str, Any]] = []

    async def read(self, tenant: str, scope: Scope, key: str, window_seconds: float | None) -> UsageSum:
        """The cost of this step; None is that of calls without a price."""
        # Before a thread stands its resource (D-86).
        told = unquote(key.rpartition(":")[2]) if scope == "thread" else key
        filters: dict[str, Any] = {_COLUMN[scope]: told, "entityType": "agent"}
        if window_seconds is not None:
            filters["timestamp"] = {"windowMs": round(window_seconds * 1000)}
        cost = self._costs[min(len(self.queries), len(self._costs) - 1)]
        self.queries.append({"name": _METRICS, "aggregation": "sum", "filters": filters})
        if self._fails:
            raise ConnectionError("the ledger does not answer")
        unpriced = int(cost is None)
        groups = self._breakdown if isinstance(self._breakdown, list) else []
        return UsageSum(cost=cost, calls=1, unpriced_calls=unpriced, breakdown=tuple(map(_usage, groups)))


def _usage(group: dict[str, Any]) -> ModelUsage:
    dimensions = group.get("dimensions", group)
    cost = group.get("estimatedCost", group.get("cost"))
    return ModelUsage(model=f"{dimensions.get('provider')}/{dimensions.get('model')}", cost=cost)


def kind_of(options: dict[str, Any]) -> tuple[type[TokenCostControl], dict[str, Any]]:
    """The processor with the limit that a vector describes, and its options."""
    given = {key: value for key, value in options.items() if key != "onViolation" and value != "<undefined>"}
    limit = given.get("maxCost")
    if not isinstance(limit, str):
        return TokenCostControl, given
    if not limit.startswith("<"):
        return TokenCostControl, given
    given.pop("maxCost")

    class Dynamic(TokenCostControl):
        def max_cost(self, request_context: RequestContext) -> float:
            return cast("float", _described(limit, request_context))

    return Dynamic, given


def _described(told: Any, context: RequestContext) -> Any:
    if found := re.search(r"(\S+) if context (\w+) is (\w+), else ([^\s>]+)", told):
        yes, key, value, no = found.groups()
        return float(yes if context.get(key) == value else no)
    if found := re.search(r"returning (\S+?)>", told):
        try:
            return float(found[1])
        except ValueError:
            return found[1]
    raise RuntimeError(told)


async def observe(vector: dict[str, Any]) -> Any:
    """Makes the processor and calls it before each step."""
    given = vector["input"]
    try:
        kind, options = kind_of(vector["options"])
        made = kind.build(options)
    except InvalidOptionsError as error:
        return {"throws": str(error)}
    if given.get("hook", given.get("call")) == "constructor":
        return {"ok": True}
    case = _Case(made, given)
    steps = [await case.step() for _ in range(given.get("steps", 1))]
    return {
        "perStep": steps,
        "queries": case.books.queries,
        "warnings": case.warnings,
        "violations": case.violations,
    }


class _Case:
    def __init__(self, made: TokenCostControl, given: dict[str, Any]) -> None:
        self.books = Books(given)
        self.warnings: list[str] = []
        self.violations: list[dict[str, Any]] = []
        self._aborted: list[str] = []
        self._link = Link(made, made.id)
        environment = Environment(
            models=ScriptedModels(),
            store=lambda _tenant: DictStore(),
            now=lambda: 0.0,
            log=self.warnings.append,
            usage=NO_ENVIRONMENT.usage if "observabilityStore" in given else self.books,
        )
        self._calls = Calls(clock=lambda: 0, violation=self._violated, environment=environment)
        context = {_RESERVED.get(key, key): value for key, value in (given.get("context") or {}).items()}
        memory = given.get("memory") or given.get("memoryContext")
        if memory:
            context["MastraMemory"] = {
                "resourceId": memory.get("resourceId", memory.get("resource")),
                "thread": memory.get("thread")
                if isinstance(memory.get("thread"), dict)
                else {"id": memory.get("thread")},
            }
        self._context = RunContext(
            run_id=given.get("traceId") or "",
            tenant="test",
            agent="",
            message_id="answer",
            messages=MessageList(new_id=map("made-{}".format, range(99)).__next__, now=lambda: _NOW),
            request_context=RequestContext(context),
        )

    async def _violated(self, violation: Violation, hook: Hook, retry: bool) -> None:
        self.violations.append(
            {"processorId": violation.processor_id, "message": violation.message, "detail": violation.detail}
        )

    async def step(self) -> dict[str, Any]:
        """One step; a block is reported as such, not as a violation (the reference's vectors call hooks directly)."""
        told = len(self.violations)
        try:
            await hooks.run_input_step(self._context, [self._link], self._calls, None)
        except TripWire as tripwire:
            del self.violations[told:]
            return {
                "tripwire": {
                    "reason": tripwire.reason,
                    "retry": tripwire.retry,
                    "metadata": tripwire.metadata,
                    "processorId": tripwire.processor_id,
                }
            }
        return {"proceeds": True}


# --- what overrides a recording ---------------------------------------------------------------------


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """D-1 (what cannot be checked is blocked), D-24 (unknown is not 0), D-71 (the ledger is always there)."""
    expected, given = vector["expected"], vector["input"]
    if "perStep" not in observed:
        return None
    blocked = [_is_failure(step) for step in observed["perStep"]]
    if "registrationThrows" in expected:
        return "D-71" if all(blocked) else None
    if "perStep" not in expected or vector["options"].get("errorStrategy") == "warn":
        return None
    proceeds = [step == {"proceeds": True} for step in expected["perStep"]]
    cannot = bool(given.get("queryFails")) or _has_no_limit(vector["options"], given)
    if (
        cannot
        and all(proceeds)
        and all(blocked)
        and expected["queries"] == observed["queries"][: len(proceeds)]
    ):
        return "D-1"
    costs = given.get("measuredCost")
    unknown = None in (costs if isinstance(costs, list) else [costs])
    same = all(
        _without_prose(expected[key]) == _without_prose(observed[key])
        for key in ("perStep", "queries", "violations")
    )
    return "D-24" if unknown and same and len(observed["warnings"]) == len(expected["warnings"]) + 1 else None


def _without_prose(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_prose(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_prose(each) for key, each in value.items() if key not in ("reason", "message")}


def _is_failure(step: dict[str, Any]) -> bool:
    """Whether a step was ended because the cost could not be checked: a tripwire that tells of no cost."""
    tripwire = step.get("tripwire")
    return tripwire is not None and not tripwire["retry"] and "usage" not in (tripwire["metadata"] or {})


def _has_no_limit(options: dict[str, Any], given: dict[str, Any]) -> bool:
    limit = options.get("maxCost")
    if not isinstance(limit, str) or not limit.startswith("<"):
        return False
    try:
        return not 0 < _described(limit, RequestContext(given.get("context") or {})) < float("inf")
    except (RuntimeError, TypeError):
        return True
