"""What can end a hook: a decision (`TripWire`) or a failure (`ProcessorError`); what is wrong with components."""

from typing import Any

from procession.json_values import is_true, plain, text


class ProcessionError(Exception):
    """Base of every error that Procession raises on purpose."""


class TripWire(ProcessionError):  # noqa: N818 - the contract's name
    """A processor blocks the run, or asks for the step to be tried again (R-AB-1..5).

    `abort(...)` raises it; raising it directly has the same effect. It is a decision, never an error: a reason that is
    no text, and metadata that are no JSON, become what comes nearest. `told` is the runtime's: whether `on_violation`
    has heard of it. A class derived from it may have an `__init__` of its own, and set what it likes.
    """

    reason: str = ""
    retry: bool = False
    metadata: Any = None
    processor_id: str = ""
    told: bool = False

    def __init__(
        self,
        reason: str = "",
        *,
        retry: bool = False,
        metadata: Any = None,
        processor_id: str = "",
        told: bool = False,
    ) -> None:
        self.reason = text(reason)
        super().__init__(self.reason)
        self.retry = retry
        self.metadata = plain(metadata)
        self.processor_id = processor_id
        self.told = told

    def complete(self, processor_id: str) -> None:
        """Says who has raised it, and makes of its fields what can be told."""
        self.processor_id = text(processor_id)
        self.reason = text(self.reason) or f"Tripwire triggered by {self.processor_id}"
        self.retry = is_true(self.retry, unknown=False)
        self.metadata = plain(self.metadata)


class ProcessorError(ProcessionError):
    """A hook failed, or returned what its contract does not allow; names processor and hook, if it was one (D-30).

    Authors may raise it, too, also with what is no text.
    """

    def __init__(
        self,
        message: str,
        *,
        processor_id: str = "",
        hook: str = "",
        code: str = "PROCESSOR_FAILED",
        name: str = "Error",
    ) -> None:
        super().__init__(message)
        self.processor_id = text(processor_id)
        self.hook = text(hook)
        self.code = text(code)
        self.name = text(name)


class UnknownComponentError(ProcessionError):
    """No processor, tool, factory or stop condition is registered under that id."""


class BrokenComponentError(ProcessionError):
    """Code of a component's author failed outside of hooks and calls; `told` also says at which line."""

    def __init__(self, message: str, at: str = "") -> None:
        super().__init__(message)
        self.told = f"{message} ({at})" if at else message


class PluginError(ProcessionError):
    """Plugins cannot be used; the message has a line for each: which one, what is wrong, and where."""


class InvalidOptionsError(ProcessionError):
    """Options do not fit; `fields` maps the path of each wrong option to what is wrong with it."""

    def __init__(self, message: str, fields: dict[str, str]) -> None:
        super().__init__(message)
        self.fields = fields
