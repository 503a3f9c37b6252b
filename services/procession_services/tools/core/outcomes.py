"""What a tool call ends with, and what is told of one that waits: plain dicts with the contract's keys."""

from typing import Any, Final

from procession_schemas.base import JsonObject

Outcome = dict[str, Any]
"""`{"toolCallId", "toolName", "args"}` with `result` (and maybe `modelOutput`), `error` or `denied`."""

DECLINED: Final = "A person declined this tool call."
APPROVAL_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}
"""What resumes a call that waits for approval."""


def base(call: JsonObject, args: Any) -> Outcome:
    """The part that all outcomes have."""
    return {"toolCallId": call["toolCallId"], "toolName": call["toolName"], "args": args}


def failed(begun: Outcome, name: str, message: str) -> Outcome:
    """A call that becomes a `tool-error`; the model reads the message (R-TX-4)."""
    return {**begun, "error": {"name": name, "message": message}}


def denied(begun: Outcome, reason: str | None) -> Outcome:
    """A call that a person declined; the model reads the reason (R-AP-3)."""
    approval = {"id": begun["toolCallId"], "approved": False, **({"reason": reason} if reason else {})}
    return {**begun, "denied": {"reason": reason or DECLINED, "approval": approval}}


def awaiting_approval(begun: Outcome) -> JsonObject:
    """A call that a person has to approve first (R-AP-2)."""
    return {**begun, "kind": "approval", "resumeSchema": APPROVAL_SCHEMA}


def suspended(begun: Outcome, payload: Any, resume_schema: JsonObject) -> JsonObject:
    """A call whose tool waits for data."""
    return {**begun, "kind": "suspended", "suspendPayload": payload, "resumeSchema": resume_schema}
