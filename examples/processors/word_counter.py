"""`word-counter`: accumulates over a stream in the state."""

from procession import Options, OutputStreamArgs, Processor, StreamReturn


class WordCounter(Processor[Options]):
    """Counts the words of each chunk and sends the total at the end.

    A word that two chunks share counts twice; the counter of `procession_services.demo.processors` shows how to
    avoid that.
    """

    id = "word-counter"
    description = "Counts words chunk by chunk; sends `data-word-count`."

    async def process_output_stream(self, args: OutputStreamArgs) -> StreamReturn:
        """Counts on, and passes every chunk unchanged."""
        count = args.state.setdefault("wordCount", 0)
        if args.part["type"] == "text-delta":
            args.state["wordCount"] = count + len(args.part["payload"]["text"].split())
        if args.part["type"] == "finish":
            await args.writer.custom({"type": "data-word-count", "data": {"words": count}, "transient": True})
        return args.part
