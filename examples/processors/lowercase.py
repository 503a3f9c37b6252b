"""`lowercase`: the smallest input processor."""

from procession import InputArgs, Message, Options, Processor
from procession.messages import map_text


class Lowercase(Processor[Options]):
    """Turns the text of all messages into lower case; tool calls, files and images stay as they are."""

    id = "lowercase"
    description = "Turns incoming text into lower case."

    def process_input(self, args: InputArgs) -> list[Message]:
        """Returns changed copies under the old ids: each takes the place of the message it was made from."""
        return [map_text(message, str.lower) for message in args.messages]
