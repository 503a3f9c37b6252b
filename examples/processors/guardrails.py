"""`input-validator` and `content-blocker`: one check before memory and model, one before memory saves."""

from pydantic import Field

from procession import InputArgs, Options, OutputResultArgs, Processor
from procession.messages import text_of


class InputValidatorOptions(Options):
    """Options of `input-validator`."""

    max_characters: int = Field(default=2000, ge=1, description="Longest message of the user.")


class InputValidator(Processor[InputValidatorOptions]):
    """Blocks a request whose last user message is empty or too long: no model is called, nothing is saved."""

    id = "input-validator"
    description = "Blocks requests that are empty or too long."

    def process_input(self, args: InputArgs) -> None:
        """Looks at the newest message of the user."""
        asked = [message for message in args.messages if message["role"] == "user"]
        text = text_of(asked[-1]).strip() if asked else ""
        if not 0 < len(text) <= self.options.max_characters:
            args.abort("Invalid input detected", metadata={"characters": len(text)})


class ContentBlockerOptions(Options):
    """Options of `content-blocker`."""

    words: tuple[str, ...] = Field(default=(), description="Words that no answer may contain.")


class ContentBlocker(Processor[ContentBlockerOptions]):
    """Blocks a run by its whole answer. Memory saves behind it, so a blocked answer is never remembered."""

    id = "content-blocker"
    description = "Blocks finished answers with certain words."

    def process_output_result(self, args: OutputResultArgs) -> None:
        """Looks at the messages that the run has made; chunks that went out cannot be called back."""
        text = " ".join(text_of(message) for message in args.messages).casefold()
        if any(word.casefold() in text for word in self.options.words):
            args.abort("Content blocked by guardrail")
