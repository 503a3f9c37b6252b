"""`reasoning-transformer`: rewrites parts in place, for a provider that knows them under another name."""

from pydantic import Field

from procession import InputStepArgs, MessageList, Options, Processor


class ReasoningTransformerOptions(Options):
    """Options of `reasoning-transformer`."""

    part_type: str = Field(default="thinking", min_length=1, description="What reasoning parts are called.")


class ReasoningTransformer(Processor[ReasoningTransformerOptions]):
    """Renames the reasoning parts of the assistant before every call."""

    id = "reasoning-transformer"
    description = "Renames reasoning parts for the next provider."

    def process_input_step(self, args: InputStepArgs) -> MessageList:
        """Edits the live messages; returning the list says that this was meant."""
        for message in args.messages:
            if message["role"] == "assistant":
                for part in message["content"]["parts"]:
                    if part["type"] == "reasoning":
                        part["type"] = self.options.part_type
        return args.message_list
