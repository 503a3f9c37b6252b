"""`token-cost-control`: stops or warns when what was spent passes a limit (builtins.md 24; D-1, D-17, D-24).

No model calls; one read of the ledger before every step. Costs are those of the calls that have ended, so that one call
can go over the limit (R-COST-7).
"""

import inspect
import math
from collections.abc import Awaitable, Mapping
from typing import Any, Final, Literal

from pydantic import Field, field_validator

from procession.args import InputStepArgs, RequestContext
from procession.errors import InvalidOptionsError, TripWire
from procession.processor import Options, Processor
from procession.services import book_keys
from procession.usage import ModelUsage, Scope, UsageSum, scope_keys
from procession_services.processors.core.own_state import own_by_options

_DAY: Final = 24 * 3600
_WINDOWS: Final = {
    "1h": 3600,
    "6h": 6 * 3600,
    "24h": _DAY,
    "7d": 7 * _DAY,
    "30d": 30 * _DAY,
    "365d": 365 * _DAY,
}
_GROUPS: Final = 10
_DECIMALS: Final = 6
_REACHED: Final = "Cost limit reached: {usage} of {limit} US dollars"


class TokenCostControlOptions(Options):
    """Options of `token-cost-control`."""

    max_cost: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="The limit in US dollars; needed unless a subclass overrides `max_cost`.",
    )
    scope: Scope = Field(
        default="resource",
        description="Whose cost: of the run, or of all calls for its resource, thread, user, organization, session or "
        "tenant.",
    )
    window: Literal["1h", "6h", "24h", "7d", "30d", "365d"] = Field(
        default="7d", description="How far back costs count; a run counts as a whole."
    )
    strategy: Literal["block", "warn"] = Field(
        default="block",
        description="At the limit: end the run, or report a violation once per run and go on.",
    )
    message: str | None = Field(
        default=None,
        description="Text of the block or warning at the limit; `{usage}` and `{limit}` are filled in.",
    )
    warn_at_percent: float | None = Field(
        default=None,
        gt=0,
        lt=100,
        description="Report a violation once per run at this percentage of the limit.",
    )
    include_breakdown: bool = Field(
        default=False, description="Add the cost of up to ten models to the report."
    )
    unknown: Literal["allow", "warn", "block"] = Field(
        default="warn",
        description="When calls of unknown price leave open whether the limit is reached (D-24): go on, go on and "
        "count a warning once per run, or end the run.",
    )
    error_strategy: Literal["strict", "warn"] = Field(
        default="strict",
        description="When the cost or the limit cannot be determined: end the run, or count a warning and go on (D-1).",
    )

    @field_validator("max_cost", "warn_at_percent", mode="before")
    @classmethod
    def _is_number(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("give a number")  # noqa: TRY004 - for pydantic
        return value


class TokenCostControl(Processor[TokenCostControlOptions]):
    """Compares the cost of a scope with its limit before every step."""

    id = "token-cost-control"
    name = "Token Cost Control"
    description = "Stops or warns when model calls have cost too much."
    on_error = "fail"

    def __init__(self, options: TokenCostControlOptions) -> None:
        super().__init__(options)
        if options.max_cost is None and type(self).max_cost is TokenCostControl.max_cost:
            told = "give a limit in US dollars, or override `max_cost` in a subclass"
            raise InvalidOptionsError(f"processor {self.id}: maxCost: {told}", {"maxCost": told})

    def max_cost(self, request_context: RequestContext) -> float | Awaitable[float] | None:  # noqa: ARG002
        """The limit for a request; override it where it depends on the request."""
        return self.options.max_cost

    async def process_input_step(self, args: InputStepArgs) -> None:
        """Checks the cost; skipped where the request does not name the scope (R-COST-2)."""
        scope = self.options.scope
        key, booked = self._keys(args)
        if not key:
            return
        try:
            limit = await self._limit(args.request_context)
            window = None if scope == "run" else _WINDOWS[self.options.window]
            spent = await args.services.usage(scope, booked, window)
        except TripWire:
            raise
        except Exception as error:  # noqa: BLE001 - an author's `max_cost`, or Redis: the cost is unchecked (D-1)
            if self.options.error_strategy == "strict":
                args.abort(
                    f"Cost control could not check the cost: {type(error).__name__}",
                    metadata={"processorId": self.id, "scope": scope},
                )
            args.services.warn(f"the cost was not checked: {type(error).__name__}")
            return
        await self._judge(args, spent, limit, self._place(key))

    def _keys(self, args: InputStepArgs) -> tuple[str, str]:
        """Whose cost it is, as it is told and as it is booked; empty where the request does not say it."""
        scope = self.options.scope
        if scope == "tenant":
            return args.services.tenant, args.services.tenant
        run = args.request_context, args.run_id
        return scope_keys(*run).get(scope, ""), book_keys(*run).get(scope, "")

    async def _limit(self, request_context: RequestContext) -> float:
        limit: Any = self.max_cost(request_context)
        if inspect.isawaitable(limit):
            limit = await limit
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < math.inf:
            raise ValueError("max_cost did not return a positive number")
        return float(limit)

    def _place(self, key: str) -> dict[str, str]:
        scope = self.options.scope
        return {"scope": scope} if scope == "run" else {"scope": scope, "scopeKey": f"{scope}:{key}"}

    async def _judge(
        self, args: InputStepArgs, spent: UsageSum, limit: float, place: Mapping[str, str]
    ) -> None:
        """Blocks or warns (R-COST-4, R-COST-5); an unknown cost is neither 0 nor below the limit (D-24)."""
        cost, percent = spent.cost or 0.0, self.options.warn_at_percent
        usage = {"estimatedCost": cost, "costUnit": "usd"}
        report: dict[str, Any] = {**place, "threshold": "hard", **self._breakdown(spent)}
        if cost >= limit:
            told = _filled(self.options.message or _REACHED, cost, limit)
            if self.options.strategy == "block":
                blocked = {"processorId": self.id, "usage": usage, "maxCost": limit, **report}
                args.abort(told, metadata=blocked)
            await self._warn(args, told, usage, limit, report)
        elif percent is not None and cost >= limit * percent / 100:
            told = _filled(f"{percent:g}% of the cost limit reached: {{usage}} of {{limit}}", cost, limit)
            await self._warn(args, told, usage, limit, {**report, "threshold": "soft"})
        if spent.unpriced_calls and cost < limit:
            self._unknown(args, spent, place)

    async def _warn(
        self, args: InputStepArgs, told: str, usage: dict[str, Any], limit: float, report: dict[str, Any]
    ) -> None:
        if self._first(args, report["threshold"]):
            args.services.warn(told)
            detail = {"usage": usage["estimatedCost"], "limit": limit, "totalUsage": usage, **report}
            await args.services.violation(told, detail)

    def _unknown(self, args: InputStepArgs, spent: UsageSum, place: Mapping[str, str]) -> None:
        told = f"the price of {spent.unpriced_calls} of {spent.calls} model calls is not known"
        if self.options.unknown == "block":
            args.abort(f"Cost control: {told}", metadata={"processorId": self.id, **place})
        if self.options.unknown == "warn" and self._first(args, "unknown"):
            args.services.warn(f"the cost may be over its limit: {told}")

    def _first(self, args: InputStepArgs, what: str) -> bool:
        """Whether this is the first such report of the run."""
        told: list[str] = own_by_options(args.state, "reported", self.options).setdefault("told", [])
        if what in told:
            return False
        told.append(what)
        return True

    def _breakdown(self, spent: UsageSum) -> dict[str, Any]:
        if not self.options.include_breakdown or not spent.breakdown:
            return {}
        return {"breakdown": [_group(usage) for usage in spent.breakdown[:_GROUPS]]}


def _filled(text: str, cost: float, limit: float) -> str:
    """The text; the first of each placeholder is replaced, amounts have up to six decimals."""
    return text.replace("{usage}", _amount(cost), 1).replace("{limit}", _amount(limit), 1)


def _group(usage: ModelUsage) -> dict[str, Any]:
    provider, _, name = usage.model.partition("/")
    return {
        "provider": provider if name else "",
        "model": name or provider,
        "estimatedCost": usage.cost,
        "costUnit": "usd",
    }


def _amount(value: float) -> str:
    return f"{value:.{_DECIMALS}f}".rstrip("0").rstrip(".")


CostGuardProcessor = TokenCostControl
