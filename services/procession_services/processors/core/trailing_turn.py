"""Whether a conversation ends with a turn of the model that a provider would refuse there (R-TAG-1, R-TAG-2)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from procession.signals import in_place
from procession_schemas.messages import Message
from procession_services.processors.core.model_names import FAMILIES, is_of, is_older_claude, is_older_gemini

_FINISHED: Final = frozenset({"result", "output-error", "output-denied"})
UNSEEN: Final = ("step-start", "data-", "source", "error")
"""Types of parts, or how they begin, that no prompt shows."""
_GEMINI: Final = 3
_CLAUDE: Final = (4, 6)


def refuses(model: Any, *, native_schema: bool) -> bool:
    """Whether a model's provider may refuse a conversation that ends with the model's turn (R-TAG-1).

    Args:
        model: In any form that `model_names` reads; None is a model of which nothing is known, and may be any. Of a
            list one entry is enough.
        native_schema: Whether the answer is asked for by a response format.
    """
    if isinstance(model, list | tuple):
        return any(refuses(entry, native_schema=native_schema) for entry in model)
    google = model is None or (is_of(model, *FAMILIES["google"]) and not is_older_gemini(model, _GEMINI))
    claude = model is None or (is_of(model, "anthropic") and not is_older_claude(model, _CLAUDE))
    return google or (native_schema and claude)


def uses_native_schema(structured_output: Mapping[str, Any] | None) -> bool:
    """Whether the schema goes to the model itself as a response format."""
    if not structured_output or not structured_output.get("schema"):
        return False
    return not structured_output.get("model") and not structured_output.get("jsonPromptInjection")


def ends_with_model(messages: Sequence[Message]) -> bool:
    """Whether the last thing in a prompt made of these would be said by the model (R-TAG-2).

    Calls without an outcome never get into a prompt, nor do parts for clients (D-78): look at what stands before.
    """
    last = in_place(messages)[-1:]
    if not last or last[0]["role"] != "assistant":
        return False
    for part in reversed(last[0]["content"]["parts"]):
        invocation: Any = part.get("toolInvocation")
        if part["type"].startswith(UNSEEN):
            continue
        if invocation is None:
            return True
        if invocation.get("state") in _FINISHED:
            return False
    return False
