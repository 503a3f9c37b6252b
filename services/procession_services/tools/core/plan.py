"""What to do with each tool call of a response, before anything runs."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from procession.json_schema import UnusableSchemaError
from procession.json_values import NotJsonError, given
from procession.response import local_calls
from procession_schemas.base import JsonObject
from procession_services.tools.core.outcomes import Outcome, base, denied, failed
from procession_services.tools.core.validation import wrong_fields


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as the plan sees it; `broken` says why it cannot run here."""

    parameters: JsonObject
    client_side: bool = False
    resume_schema: JsonObject | None = None
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """A call that can run; where its tool needs approval, only if `approved`."""

    begun: Outcome
    approved: bool = False
    resume_data: Any = None

    @property
    def tool(self) -> str:
        """The name of the tool."""
        name: str = self.begun["toolName"]
        return name


@dataclass(frozen=True, slots=True)
class Settled:
    """A call whose outcome is known without running it."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ClientSide:
    """A call that the caller executes; it gets no outcome here (R-TX-5)."""

    begun: Outcome


Plan = Ready | Settled | ClientSide


def plan(
    calls: Iterable[JsonObject],
    offers: Mapping[str, Offer],
    *,
    decisions: Mapping[str, JsonObject],
    done: Iterable[Outcome] = (),
) -> list[Plan]:
    """The plan of each local call, in call order.

    Args:
        calls: `{"toolCallId", "toolName", "args" | "argsText"}`; provider-executed ones are skipped (R-TX-7).
        offers: The tools that the model may call in this step, by name.
        decisions: toolCallId -> `{"approved", "reason"?, "resumeData"?}`.
        done: Outcomes of an earlier round of the same calls; these never run again.
    """
    known = {outcome["toolCallId"]: Settled(outcome) for outcome in done}
    return [
        known.get(call["toolCallId"]) or _plan_one(call, offers, decisions.get(call["toolCallId"], {}))
        for call in local_calls(calls)
    ]


def _plan_one(call: JsonObject, offers: Mapping[str, Offer], decision: JsonObject) -> Plan:
    name = call["toolName"]
    offer = offers.get(name)
    begun = base(call, call.get("args", {}))
    if offer is None:
        return Settled(failed(begun, "ToolNotFoundError", _not_found(name, offers)))
    if offer.broken:
        return Settled(failed(begun, "ToolUnavailableError", f"The tool {name!r} cannot run: {offer.broken}"))
    try:
        begun["args"] = _arguments(call)
    except (ValueError, RecursionError, NotJsonError) as error:
        text = (
            f"The arguments of the tool {name!r} are not valid JSON ({error}). Send one complete JSON object."
        )
        return Settled(failed(begun, "InvalidArgumentsError", text))
    checked = {"arguments": (offer.parameters, begun["args"])}
    if "resumeData" in decision and offer.resume_schema is not None:
        checked["resume data"] = (offer.resume_schema, decision["resumeData"])
    for what, (schema, value) in checked.items():
        problem = _misfit(what, name, schema, value)
        if problem:
            return Settled(failed(begun, "InvalidArgumentsError", problem))
    if decision.get("approved") is False:
        return Settled(denied(begun, decision.get("reason")))
    if offer.client_side:
        return ClientSide(begun)
    return Ready(begun, approved=decision.get("approved") is True, resume_data=decision.get("resumeData"))


def _not_found(name: str, offers: Mapping[str, Offer]) -> str:
    """What a model is told that called a tool it was not shown (R-TL-4)."""
    if not offers:
        return f"There is no tool {name!r}; no tools are available in this step."
    return f"There is no tool {name!r}. Available tools: {', '.join(offers)}. Use one of these names exactly."


def _arguments(call: JsonObject) -> Any:
    """The arguments, parsed; ValueError or NotJsonError says where the text is no JSON (R-TX-3)."""
    if "args" in call:
        return call["args"]
    parsed = json.loads(call.get("argsText", "{}"))
    given(parsed, "arguments")
    return parsed


def _misfit(what: str, name: str, schema: JsonObject, value: Any) -> str | None:
    try:
        fields = wrong_fields(schema, value, what)
    except UnusableSchemaError as error:
        return f"The {what} of the tool {name!r} cannot be checked; its JSON Schema is unusable: {error}"
    if not fields:
        return None
    return "\n".join(
        [f"The {what} do not fit the tool {name!r}:", *(f"- {at}: {told}" for at, told in fields.items())]
    )
