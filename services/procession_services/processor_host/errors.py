"""How an operation ends its command early, besides a tripwire and a processor's failure."""

from typing import Any

from procession.errors import BrokenComponentError, ProcessorError
from procession_schemas.work import WorkResult
from procession_services.runtime.redis_client import is_unanswered


class Suspended(Exception):  # noqa: N818 - a decision, not an error
    """Tool calls wait for a person; `entries` say which, and for what."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        super().__init__("the run waits for a person")
        self.entries = entries


class ModelFailed(Exception):  # noqa: N818 - a result: error processors are asked about it
    """The model call failed for good; `error` is the provider's error as it goes over the wire."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("message", "")))
        self.error = error


class Cancelled(Exception):  # noqa: N818 - a result
    """The run was cancelled while the operation ran."""


class Stopped(Exception):  # noqa: N818 - a result
    """The rest of the command is for another outcome than this one: see the operation that raised it."""


class Lent(Exception):  # noqa: N818 - a result
    """Somebody else has run the operation and all behind it; `result` is what came of them."""

    def __init__(self, result: WorkResult) -> None:
        super().__init__("run elsewhere")
        self.result = result


def raise_unanswered(error: BaseException) -> None:
    """A Redis that does not answer us is no failure of the processor that has asked it: the work is delivered again.

    Raises:
        BaseException: What our Redis came to, if that is what made a processor fail.
    """
    failed = isinstance(error, BrokenComponentError | ProcessorError)
    if failed and (cause := error.__cause__) is not None and is_unanswered(cause):
        raise cause from None
