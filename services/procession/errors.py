"""What can end a hook: a decision (`TripWire`) or a failure (`ProcessorError`); what is wrong with components."""

import asyncio
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class ProcessionError(Exception):
    """Base of every error that Procession raises on purpose."""


class TripWire(ProcessionError):  # noqa: N818 - the contract's name
    """A processor blocks the run, or asks for the step to be tried again (R-AB-1..5).

    `abort(...)` raises it; raising it directly has the same effect. It is a decision, never an error. `told` is
    the runtime's: whether `on_violation` has heard of it.
    """

    def __init__(
        self,
        reason: str = "",
        *,
        retry: bool = False,
        metadata: Any = None,
        processor_id: str = "",
        told: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        self.metadata = metadata
        self.processor_id = processor_id
        self.told = told


class ProcessorError(ProcessionError):
    """A hook failed, or returned what its contract does not allow; names processor and hook (D-30)."""

    def __init__(
        self,
        message: str,
        *,
        processor_id: str,
        hook: str,
        code: str = "PROCESSOR_FAILED",
        name: str = "Error",
    ) -> None:
        super().__init__(message)
        self.processor_id = processor_id
        self.hook = hook
        self.code = code
        self.name = name


class UnknownComponentError(ProcessionError):
    """No processor, tool, factory or stop condition is registered under that id."""


class BrokenComponentError(ProcessionError):
    """Code of a component's author failed outside of hooks and calls; `told` also says where, for who can mend it."""

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


@contextmanager
def by_author(component: str, module: str) -> Iterator[None]:
    """What code of a component's author raises in here names the component, and where in `module` it was raised.

    Raises:
        BrokenComponentError: Instead of whatever it was, unless it is an error of ours.
    """
    try:
        yield
    except (ProcessionError, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise BrokenComponentError(f"{component}: {said(error)}", place(error, module)) from error


def said(error: BaseException) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def place(error: BaseException, module: str) -> str:
    """`file:line` of the innermost call in a module, or another one of its package; empty where there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    package = module.partition(".")[0]
    own = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package
    ]
    return own[-1] if own else ""


def address(url: str) -> str:
    """The address of a server, or of several, as a message may show it: without user and password."""
    return re.sub(r"//[^@/,\s]*@", "//", url)
