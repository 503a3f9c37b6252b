"""`prefill-error-handler.json`: what the error hook decides, and what its signal makes of the conversation."""

from typing import Any

from procession import signals
from procession.prompt import to_prompt
from procession_services.processors.prefill_error_handler import PrefillErrorHandler
from tests.vectors.adapters.by_hand import Run, error_of

_CONVERSATION = ("dbRoles", "promptRoles")


async def observe(vector: dict[str, Any]) -> Any:
    """Calls the hook once; vectors with messages ask for the conversation after it."""
    given = vector["input"]
    run = Run(PrefillErrorHandler.build(vector["options"]))
    run.add(given.get("messages", []))
    args = run.api_error(error_of(given["error"]), given.get("retryCount", 0))
    decision = await PrefillErrorHandler.build(vector["options"]).process_api_error(args)
    if any(key in vector["expected"] for key in _CONVERSATION):
        return _conversation(run)
    sent = [m for m in run.context.messages.get.all.db() if m["role"] == signals.ROLE]
    # Our channel is always there; where the reference had none, nothing is told of signals.
    listed = [_signal(m) for m in sent] if given.get("sendSignalAvailable", True) else []
    return {"retry": bool(decision and decision["retry"]), "signals": listed}


def _signal(message: Any) -> dict[str, Any]:
    return {
        "contents": signals.contents(message),
        **_about(message, "type", "tagName", "attributes", "metadata"),
    }


def _about(message: Any, *keys: str) -> dict[str, Any]:
    about = signals.about(message)
    return {key: about[key] for key in keys if key in about}


def _conversation(run: Run) -> dict[str, Any]:
    messages = run.context.messages.get.all.db()
    last, prompt = messages[-1], to_prompt(run.context.messages)
    told = [chunk for chunk in run.written if chunk["type"] == signals.CHUNK]
    return {
        "dbRoles": [m["role"] for m in messages],
        "lastDb": {
            "role": last["role"],
            "parts": last["content"]["parts"],
            "signal": _about(last, "type", "tagName", "attributes"),
        },
        "promptRoles": [entry["role"] for entry in prompt],
        "lastPromptText": prompt[-1]["content"][0]["text"],
        "emittedTypes": [
            {
                "type": chunk["type"],
                "transient": chunk.get("transient", False),
                "dataType": chunk["data"].get("type"),
                "tagName": chunk["data"].get("tagName"),
                "contents": chunk["data"].get("contents"),
            }
            for chunk in told
        ],
    }


def override(_vector: dict[str, Any], _observed: Any, _differences: list[str]) -> str | None:
    """Nothing differs."""
    return None
