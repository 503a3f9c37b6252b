"""Why a command has ended early, as it travels."""

from typing import Any, Final

from procession.errors import (
    BrokenComponentError,
    InvalidOptionsError,
    ProcessorError,
    TripWire,
    UnknownComponentError,
)
from procession.json_values import error_text
from procession.messages import InvalidMessageError
from procession.processor import Hook
from procession_schemas.run import Failure, Tripwire
from procession_services.processor_host.fitting import fitting_tripwire

_CODES: Final = {
    UnknownComponentError: "UNKNOWN_COMPONENT",
    BrokenComponentError: "COMPONENT_FAILED",
    InvalidOptionsError: "INVALID_OPTIONS",
}


def wire_tripwire(tripwire: TripWire) -> Tripwire:
    """The tripwire as it travels, with what commands have room for; `retry` only when it was asked for (R-AB-12)."""
    return fitting_tripwire(
        Tripwire(
            reason=tripwire.reason,
            processor_id=tripwire.processor_id,
            retry=True if tripwire.retry else None,
            metadata=tripwire.metadata,
        )
    )


def wire_failure(error: Exception) -> Failure:
    """A failure of a processor, or of the configuration, as it travels (D-30)."""
    if isinstance(error, ProcessorError):
        return Failure(
            code=error.code,
            message=error_text(error),
            field="model" if error.code == "UNKNOWN_MODEL" else None,
            processor_id=error.processor_id or None,
            hook=error.hook or None,
            name=error.name,
        )
    return Failure(
        code=_code_of(error),
        message=error_text(error),
        field=error.field if isinstance(error, InvalidMessageError) else None,
        name=type(error).__name__,
    )


def hook_failure(error: Exception, processor: str, hook: str) -> ProcessorError:
    """What is wrong with a component that a hook has named, as that hook's failure."""
    return ProcessorError(
        str(error), processor_id=processor, hook=hook, code=_code_of(error), name=type(error).__name__
    )


def _code_of(error: Exception) -> str:
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), "INVALID_MESSAGE_CONTENT")


def failure_of(error: dict[str, Any]) -> Failure:
    """A provider's error as the client is told; one over what a hook has set (`setBy`) names that."""
    set_by = error.get("setBy")
    return Failure(
        code="MODEL_FAILED",
        message=error.get("message", ""),
        name=error.get("name"),
        status_code=error.get("statusCode"),
        is_retryable=error.get("isRetryable"),
        processor_id=set_by,
        hook=Hook.INPUT_STEP.value if set_by else None,
    )
