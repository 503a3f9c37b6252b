"""`prefill-error-handler`: goes on when a provider will not take a conversation that ends with its own turn (R-PRE).

No model, no cost. Error hook only: it asks for the step again once, with a reminder as the last turn.
"""

import re
from typing import Final

from procession.args import APIErrorArgs, APIErrorResult
from procession.processor import Options, Processor
from procession.signals import Signal
from procession_services.processors.core.api_errors import texts

_REFUSAL: Final = re.compile(
    r"does not support assistant message prefill"
    r"|assistant response prefill is incompatible with enable[_\s-]?thinking"
    r"|requests ending with a model turn are not supported",
    re.IGNORECASE,
)
CONTINUE: Final[Signal] = {
    "type": "reactive",
    "tagName": "system-reminder",
    "contents": "continue",
    "attributes": {"type": "anthropic-prefill-processor-retry"},
    "metadata": {"message": "Continuing after prefill error"},
}
"""The turn that is added (R-PRE-4)."""


class PrefillErrorHandler(Processor[Options]):
    """Adds a user turn and tries again, where the last turn was the model's and the provider refuses that."""

    id = "prefill-error-handler"
    name = "Prefill Error Handler"
    description = (
        "Adds a user turn when a provider refuses a conversation that ends with a turn of the model."
    )

    async def process_api_error(self, args: APIErrorArgs) -> APIErrorResult | None:
        """Asks for a retry, once, if the provider says that this is the reason (R-PRE-1..4)."""
        if args.retry_count or not any(map(_REFUSAL.search, texts(args.error))):
            return None
        await args.services.send_signal(CONTINUE)
        return {"retry": True}
