"""What code of a component's author raises: whether it is that code's failure, and how it is told."""

import asyncio
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from procession.errors import BrokenComponentError, ProcessionError
from procession.json_values import text

__all__ = ["by_author", "found_in", "is_cancelled", "is_ctrl_c", "is_ours", "place", "raised", "said"]

_E = TypeVar("_E", bound=BaseException)


@contextmanager
def by_author(component: str, module: str) -> Iterator[None]:
    """What code of a component's author raises in here names the component, and where in `module` it was raised.

    Raises:
        BrokenComponentError: Instead of whatever it was, unless it is an error of ours.
    """
    try:
        yield
    except ProcessionError:
        raise
    except BaseException as error:
        if is_ours(error):
            raise
        raise BrokenComponentError(f"{component}: {said(error)}", place(error, module)) from error


def is_cancelled(error: BaseException) -> bool:
    """Whether it is we who are cancelled, and not something that a hook waited for."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_ctrl_c(error: BaseException) -> bool:
    """Whether somebody has pressed Ctrl-C: Python's own handler raises it, and a service has one that does not."""
    return (
        isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def is_ours(error: BaseException) -> bool:
    """Whether this goes through an author's code without being its failure: we are cancelled, or Ctrl-C was pressed.

    Whatever else that code raises must end neither the service nor the wait of others for it: `sys.exit`, a
    `KeyboardInterrupt` of its own, a panic of a Rust library (no `Exception`), what somebody has cancelled for whom it
    waits.
    """
    return is_ctrl_c(error) or is_cancelled(error)


def found_in(error: BaseException, kind: type[_E]) -> _E | None:
    """The first of a kind in what was raised: a decision that a task of a TaskGroup raised comes out in a group."""
    if isinstance(error, kind):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for each in error.exceptions if (found := found_in(each, kind))), None)
    return None


def said(error: BaseException) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {' '.join(text(error).split())}".removesuffix(": ")


def raised(error: BaseException) -> str:
    """What was raised and where, for logs: without its text, which may quote the conversation."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {at.filename}:{at.lineno}"


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
