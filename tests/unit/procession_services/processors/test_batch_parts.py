"""`batch-parts`: what the vectors leave open. Timers of the runtime, blocks that alternate, nothing lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.calls import Calls, Link
from procession.errors import InvalidOptionsError
from procession.processor import Options, Processor
from procession.stream import StreamChain
from procession.testing import ProcessorKit
from procession_schemas.chunks import Chunk
from procession_services.processors.batch_parts import BatchParts


def delta(text, block="t1", **more):
    return {"type": "text-delta", "payload": {"id": block, "text": text, **more}}


def shape(chunks):
    return [c["payload"]["text"] if c["type"] == "text-delta" else c["type"] for c in chunks]


class Clocked:
    """A chain with a clock of its own."""

    def __init__(self, options):
        self.now = 0.0
        self.out: list[Chunk] = []
        calls = Calls(clock=lambda: int(self.now * 1e6))
        link = Link(BatchParts.build(options), "batch-parts")
        self.chain = StreamChain([link], ProcessorKit(BatchParts).context, calls, self.out.append)

    async def pass_time(self, milliseconds):
        self.now += milliseconds
        due = self.chain.wakes_at
        if due is not None and due <= self.now * 1e6:
            await self.chain.wake()


async def test_a_batch_goes_out_when_its_time_is_up_though_nothing_more_comes():
    clocked = Clocked({"batchSize": 100, "maxWaitTime": 20})
    await clocked.chain.feed(delta("a"))
    await clocked.pass_time(15)
    await clocked.chain.feed(delta("b"))
    assert clocked.out == []
    await clocked.pass_time(5)
    assert shape(clocked.out) == ["ab"]
    await clocked.pass_time(50)
    await clocked.chain.feed(delta("c"))
    assert clocked.chain.wakes_at == int(90 * 1e6)
    await clocked.chain.end()
    assert shape(clocked.out) == ["ab", "c"]
    assert clocked.chain.wakes_at is None


async def test_a_full_batch_takes_its_timer_back():
    clocked = Clocked({"batchSize": 2, "maxWaitTime": 20})
    await clocked.chain.feed(delta("a"))
    await clocked.chain.feed(delta("b"))
    assert clocked.chain.wakes_at is None
    assert shape(clocked.out) == ["ab"]


async def test_without_a_time_nobody_is_woken():
    clocked = Clocked({"maxWaitTime": 0})
    await clocked.chain.feed(delta("a"))
    assert clocked.chain.wakes_at is None


PARTS = st.one_of(
    st.builds(delta, st.text(max_size=3), st.sampled_from(["t1", "t2"])),
    st.sampled_from(["tool-call-delta", "source", "text-end"]).map(
        lambda kind: {"type": kind, "payload": {"id": "x"}}
    ),
)


@given(
    st.lists(PARTS, min_size=1, max_size=20),
    st.one_of(st.none(), st.integers(0, 6)),
    st.booleans(),
    st.sampled_from([None, {"type": "finish", "payload": {}}]),
)
async def test_every_character_and_every_other_chunk_arrives_in_order(parts, size, emit, last):
    parts = [*parts, *([last] if last else [])]
    seen = []

    class Sink(Processor[Options]):
        id = "sink"

        def process_output_stream(self, args):
            seen.append(args.part)
            return args.part

    kit = ProcessorKit(BatchParts, {"batchSize": size, "emitOnNonText": emit}, then=[Sink])
    await kit.stream(parts)

    def merged(chunks):
        out = []
        for chunk in chunks:
            if chunk["type"] != "text-delta":
                out.append(chunk)
            elif out and isinstance(out[-1], tuple) and out[-1][0] == chunk["payload"]["id"]:
                out[-1] = (out[-1][0], out[-1][1] + chunk["payload"]["text"])
            else:
                out.append((chunk["payload"]["id"], chunk["payload"]["text"]))
        return [each for each in out if not isinstance(each, tuple) or each[1]]

    assert merged(seen) == merged(parts)


async def test_deltas_of_two_blocks_do_not_mix():
    out = await ProcessorKit(BatchParts).stream([delta("a"), delta("b"), delta("c", "t2"), delta("d", "t2")])
    assert [(c["payload"]["id"], c["payload"]["text"]) for c in out.chunks] == [("t1", "ab"), ("t2", "cd")]


async def test_what_providers_say_beside_the_text_is_kept():
    out = await ProcessorKit(BatchParts).stream([delta("a", providerMetadata={"p": {"x": 1}}), delta("b")])
    assert out.chunks == [delta("ab", providerMetadata={"p": {"x": 1}})]


async def test_the_end_of_the_stream_is_never_batched():
    kit = ProcessorKit(BatchParts, {"emitOnNonText": False, "batchSize": 100})
    out = await kit.stream([delta("a"), {"type": "tool-call-delta", "payload": {}}, delta("b")])
    assert shape(out.chunks) == ["a", "tool-call-delta", "b"]


async def test_two_batchers_multiply_and_an_attempt_leaves_nothing():
    out = await ProcessorKit(BatchParts, {"batchSize": 2}, then=[BatchParts.build({"batchSize": 2})]).stream(
        list("abcdef")
    )
    assert out.deltas == ["abcd", "ef"]
    chunks = [delta("old"), {"type": "step-start", "payload": {}}, delta("new")]
    out = await ProcessorKit(BatchParts).stream(chunks)
    assert shape(out.chunks) == ["step-start", "new"]


async def test_a_long_batch_costs_linear_time():
    kit = ProcessorKit(BatchParts, {"batchSize": None})
    out = await kit.stream([delta("ab")] * 20_000)
    assert shape(out.chunks) == ["ab" * 20_000]


@pytest.mark.parametrize("options", [{"batchSize": -1}, {"maxWaitTime": -1}, {"size": 1}])
def test_bad_options_are_refused(options):
    with pytest.raises(InvalidOptionsError):
        BatchParts.build(options)
