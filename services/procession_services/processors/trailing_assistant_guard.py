"""`trailing-assistant-guard`: adds a user turn where the provider refuses to be asked after its own (R-TAG).

No model, no cost. Input step only: Google's and Vertex's models from Gemini 3 on, and Anthropic's from Claude 4.6 on if
the answer has a schema. `prefill-error-handler` does the same after a refusal, for providers that are not known here.
"""

from typing import Any, Final

from pydantic import Field

from procession.args import InputStepArgs
from procession.messages import user_message
from procession.processor import Hook, Options, Processor
from procession_services.processors.core.trailing_turn import ends_with_model, refuses, uses_native_schema

CONTINUE: Final = "Continue."
GENERATE: Final = "Generate the structured response."


class TrailingAssistantGuardOptions(Options):
    """Options of `trailing-assistant-guard`."""

    models: list[str] | None = Field(
        default=None,
        description="Models that the run may call. If none of them needs the guard, it has no hook and costs nothing.",
    )
    native_schema: bool = Field(
        default=False, description="With `models`: whether a schema goes to the model as a response format."
    )


class TrailingAssistantGuard(Processor[TrailingAssistantGuardOptions]):
    """Ends the conversation with a turn of the user, for this run only: the turn is not saved.

    The orchestrator adds it by itself, with `models`, to agents that need it.
    """

    id = "trailing-assistant-guard"
    name = "Trailing Assistant Guard"
    description = (
        "Adds a user turn for providers that refuse a conversation that ends with a turn of the model."
    )

    @classmethod
    def hooks_for(cls, options: dict[str, Any]) -> frozenset[Hook]:
        """None where no model of the run refuses anything."""
        told = TrailingAssistantGuardOptions.model_validate(options)
        idle = told.models is not None and not refuses(told.models, native_schema=told.native_schema)
        return frozenset() if idle else super().hooks_for(options)

    def process_input_step(self, args: InputStepArgs) -> None:
        """Adds the turn with source `context`, behind everything else (R-TAG-3)."""
        native = uses_native_schema(args.structured_output)
        if refuses(args.model, native_schema=native) and ends_with_model(args.message_list.get.all.db()):
            args.message_list.add(user_message(GENERATE if native else CONTINUE), "context")
