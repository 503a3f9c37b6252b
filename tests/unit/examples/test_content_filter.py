import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.plugin import register
from examples.processors.content_filter import ContentFilter
from examples.processors.lowercase import Lowercase
from procession import InvalidOptionsError, Options, OutputStreamArgs, Processor, Registry, RequestContext
from procession.testing import ProcessorKit, check_processor
from tests.unit.examples.vectors import chunks_of, flat, flat_chunks, messages_of, tripwire, vectors


@vectors("content-filter-input", "content-filter-is", "content-filter-matches", "content-filter-phrase")
async def test_recorded_input(vector):
    out = await ProcessorKit(ContentFilter, vector["options"]).input(messages_of(vector))
    assert flat(out.messages) == vector["expected"]["messages"]
    assert tripwire(out) == vector["expected"].get("tripwire")


@vectors("chain-lowercase")
async def test_recorded_chain(vector):
    behind = ContentFilter.build({"blockedWords": ["secret"]})
    out = await ProcessorKit(Lowercase, then=[behind]).input(messages_of(vector))
    assert flat(out.messages) == vector["expected"]["messages"]
    assert tripwire(out) == vector["expected"]["tripwire"]


@vectors("content-filter-output")
async def test_recorded_output(vector):
    out = await ProcessorKit(ContentFilter, vector["options"]).stream(chunks_of(vector))
    assert flat_chunks(out.chunks) == vector["expected"]["emitted"]
    assert tripwire(out) == vector["expected"]["blocked"]


@given(st.lists(st.text("abc d", max_size=4), max_size=8), st.sampled_from([["abc"], ["aba", "cc"], ["d"]]))
async def test_the_verdict_does_not_depend_on_the_chunks(texts, words):
    options = {"blockedWords": words}
    cut = await ProcessorKit(ContentFilter, options).stream(texts)
    whole = "".join(texts)
    blocked = any(word in whole for word in words)
    assert bool(cut.tripwire) == blocked
    assert not any(word in cut.text for word in words)
    if blocked:
        assert whole.startswith(cut.text)
    else:
        assert cut.text == whole


async def test_a_split_word_is_held_back():
    kit = ProcessorKit(ContentFilter, {"blockedWords": ["secret"]})
    out = await kit.stream(["a se", "cre", "t!"])
    assert out.tripwire
    assert out.text == "a "


async def test_what_was_held_comes_before_the_end_of_its_block():
    out = await ProcessorKit(ContentFilter, {"blockedWords": ["secret"]}).stream(["a se"])
    assert out.deltas == ["a ", "se"]
    assert [c["type"] for c in out.chunks][-2:] == ["text-delta", "text-end"]


class Ends(Processor[Options]):
    """Sees what leaves the filter."""

    id = "ends"

    def process_output_stream(self, args: OutputStreamArgs):
        args.state.setdefault("seen", []).append(args.part["type"])
        return args.part


async def test_a_stream_without_block_ends_is_released_by_finish():
    kit = ProcessorKit(ContentFilter, {"blockedWords": ["secret"]}, then=[Ends])
    out = await kit.stream(["x s", {"type": "finish", "payload": {}}])
    assert out.text == "x s"
    assert kit.context.state("ends")["seen"] == ["text-delta", "text-delta", "finish"]


async def test_the_factory_reads_the_words_of_the_request():
    registry = Registry()
    register(registry)
    refs = await registry.make_array("blocked-words", RequestContext(blockedWords=["x"]), {})
    assert refs == [{"id": "content-filter", "options": {"blockedWords": ["x"]}}]
    out = await ProcessorKit(registry.processor(refs[0]["id"]), refs[0]["options"]).input("an x")
    assert out.tripwire
    assert (await registry.make_array("blocked-words", RequestContext(), {}))[0]["options"] == {
        "blockedWords": []
    }


def test_an_empty_word_would_block_everything():
    with pytest.raises(InvalidOptionsError, match="blockedWords"):
        ContentFilter.build({"blockedWords": [""]})


async def test_conformance():
    await check_processor(ContentFilter, {"blockedWords": ["world", "Bye"]}, chunk_safe=True)
    await check_processor(ContentFilter, {"blocked_words": ["absent"]}, chunk_safe=True)
