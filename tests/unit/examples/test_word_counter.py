from examples.processors.word_counter import WordCounter
from procession import Options, OutputStreamArgs, Processor
from procession.testing import ProcessorKit, check_processor
from tests.unit.examples.vectors import chunks_of, flat_chunks, vectors


class Seen(Processor[Options]):
    """Keeps what reaches it, `finish` too, which the run sends itself."""

    id = "seen"

    def process_output_stream(self, args: OutputStreamArgs):
        args.state.setdefault("chunks", []).append(args.part)
        return args.part


@vectors("word-counter")
async def test_recorded(vector):
    kit = ProcessorKit(WordCounter, then=[Seen])
    out = await kit.stream(chunks_of(vector))
    assert flat_chunks(kit.context.state("seen")["chunks"]) == vector["expected"]["emitted"]
    total = vector["expected"]["sink"]["total"]
    assert kit.state["wordCount"] == total
    assert [c["data"] for c in out.written] == [{"words": total}]


async def test_it_counts_over_the_steps_of_a_run():
    kit = ProcessorKit(WordCounter)
    await kit.stream(["one two"], tool_calls=[{"toolName": "lookup"}])
    out = await kit.stream(["three"])
    assert out.written == [{"type": "data-word-count", "data": {"words": 3}, "transient": True}]


async def test_the_count_is_not_stored():
    kit = ProcessorKit(WordCounter)
    out = await kit.stream(["one"])
    assert [p["type"] for p in out.messages[-1]["content"]["parts"]] == ["text"]


async def test_conformance():
    await check_processor(WordCounter, chunk_safe=True)
