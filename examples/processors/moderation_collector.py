"""`moderation-notice` writes data chunks, `moderation-collector` reads them."""

from pydantic import Field

from procession import InputStepArgs, Options, OutputStreamArgs, Processor, StreamReturn
from procession.messages import text_of


class ModerationNoticeOptions(Options):
    """Options of `moderation-notice`."""

    words: tuple[str, ...] = Field(default=("urgent",), description="Words that are worth a notice.")


class ModerationNotice(Processor[ModerationNoticeOptions]):
    """Tells the client, before the model is called, that a message may be a problem; blocks nothing."""

    id = "moderation-notice"
    description = "Sends `data-moderation` about doubtful messages."

    async def process_input_step(self, args: InputStepArgs) -> None:
        """Writes one chunk for each word found."""
        text = " ".join(text_of(message) for message in args.messages if message["role"] == "user")
        for word in self.options.words:
            if args.writer and word in text.casefold():
                await args.writer.custom({"type": "data-moderation", "data": {"level": "warn", "word": word}})


class ModerationCollector(Processor[Options]):
    """Keeps every notice of a run in its state, and lets it pass."""

    id = "moderation-collector"
    description = "Collects `data-moderation` chunks."
    process_data_parts = True

    def process_output_stream(self, args: OutputStreamArgs) -> StreamReturn:
        """Gets `data-*` chunks too, because the class asks for them."""
        if args.part["type"] == "data-moderation":
            args.state.setdefault("warnings", []).append(args.part["data"])
        return args.part
