"""Text is judged before it goes out, and the verdict does not depend on how the text was cut."""

import itertools
from typing import Any

import pytest

from procession.errors import TripWire
from procession_schemas.chunks import Chunk
from procession_services.processors.core.judged_stream import OBSERVED_AT_ONCE, JudgedStream, Verdict, edged

FINISH: Chunk = {"type": "finish", "payload": {}}


def delta(text, block="t") -> Any:
    return {"type": "text-delta", "runId": "r", "payload": {"id": block, "text": text}}


class Judge:
    """Objects to text that contains `bad`."""

    def __init__(self, strategy="filter"):
        self.strategy = strategy
        self.judged = []

    async def __call__(self, text, piece):
        self.judged.append(text)
        if "bad" not in text:
            return Verdict(piece)
        if self.strategy == "block":
            raise TripWire("bad", retry=True, metadata={"a": 1})
        kept = {"filter": None, "warn": piece, "rewrite": piece.replace("bad", "good")}[self.strategy]
        return Verdict(kept, flagged=True)


async def played(chunks, judge, mode="hold", size=1, window=0):
    """What goes out for these chunks, and the tripwire where one was raised."""
    stream = JudgedStream({}, judge, mode, size, window)
    out = []
    try:
        for chunk in chunks:
            out += await stream.take(chunk)
        out += await stream.flush()
    except TripWire as tripwire:
        return out, tripwire
    return out, None


def text_of(chunks):
    return "".join(chunk["payload"]["text"] for chunk in chunks if chunk["type"] == "text-delta")


TEXT = "One. Two bad. Three. Fo"


@pytest.mark.parametrize(
    ("strategy", "window", "expected"),
    [
        ("filter", 0, "One. Three. Fo"),
        ("filter", 1, "Three. Fo"),
        ("warn", 1, TEXT),
        ("rewrite", 0, "One. Two good. Three. Fo"),
        ("block", 0, "One. "),
        ("block", 1, ""),
    ],
)
async def test_every_split_gives_the_same_text_and_the_same_questions(strategy, window, expected):
    whole = Judge(strategy)
    out, tripwire = await played([delta(TEXT), FINISH], whole, window=window)
    assert text_of(out) == expected
    assert (tripwire is not None) is (strategy == "block")
    if tripwire:
        assert (tripwire.reason, tripwire.retry, tripwire.metadata) == ("bad", True, {"a": 1})
    splits = [[*TEXT], *([TEXT[:i], TEXT[i:]] for i in range(len(TEXT)))]
    splits += [[TEXT[:i], TEXT[i:j], TEXT[j:]] for i, j in itertools.combinations(range(len(TEXT)), 2)]
    for split in splits:
        judge = Judge(strategy)
        out, raised = await played([*map(delta, split), FINISH], judge, window=window)
        assert text_of(out) == expected
        assert judge.judged == whole.judged
        assert (raised is None) is (tripwire is None)


async def test_a_phrase_over_two_pieces_is_found_and_none_of_it_goes_out_while_held():
    class Over(Judge):
        async def __call__(self, text, piece):
            self.judged.append(text)
            return Verdict(None, flagged=True) if "One. Two." in text else Verdict(piece)

    out, _ = await played([delta("Zero. One. "), delta("Two. Three")], Over(), window=1)
    assert text_of(out) == "Zero. Three"
    out, _ = await played([delta("Zero. One. "), delta("Two. Three")], Over(), "window", window=1)
    assert (
        text_of(out) == "Zero. One. Three"
    )  # a window lets out what was only bad together with what followed


async def test_a_window_of_one_is_one_earlier_piece():
    judge = Judge()
    await played([delta("a. b. c")], judge, window=1)
    assert judge.judged == ["a. ", "a. b. ", "b. c"]


@pytest.mark.parametrize("size", [1, 100])
async def test_the_white_space_around_a_piece_stays_when_a_model_rewrites_it(size):
    async def trimming(_text, piece):
        return Verdict(edged(piece.strip().replace("bad", "good"), piece), flagged=True)

    text = " One bad. Two bad.\n\nThree bad. "
    out, _ = await played([delta(text), FINISH], trimming, size=size)
    assert text_of(out) == text.replace("bad", "good")


async def test_what_was_objected_to_is_not_judged_again():
    judge = Judge("warn")
    await played([delta("bad. b. c. ")], judge, window=2)
    assert judge.judged == ["bad. ", "b. ", "b. c. "]


async def test_after_a_drop_the_text_is_judged_as_the_client_reads_it():
    judge = Judge("filter")
    await played([delta("a. "), FINISH, delta("bad. "), delta("b. c. d. ")], judge, window=1)
    assert judge.judged == ["a. ", "a. bad. ", "a. b. ", "b. c. ", "c. d. "]


async def test_other_chunks_keep_their_place_and_blank_text_is_not_judged():
    judge = Judge()
    call = {"type": "tool-call", "payload": {}}
    chunks = [delta(" \n"), delta("a"), call, delta("", "u"), delta("b", "u"), FINISH]
    out, _ = await played(chunks, judge, size=10, window=3)
    assert out == [delta(" \na"), call, delta("b", "u"), FINISH]
    assert judge.judged == [" \na", " \nab"]
    judge = Judge()
    out, _ = await played([delta(" \n"), FINISH], judge)
    assert (text_of(out), judge.judged) == (" \n", [])


async def test_the_text_of_two_blocks_is_not_mixed():
    out, _ = await played([delta("a", "one"), delta("b", "two"), delta("c", "one")], Judge(), size=10)
    assert out == [delta("a", "one"), delta("b", "two"), delta("c", "one")]


async def test_what_a_rejected_attempt_left_does_not_go_out_with_the_next():
    out, _ = await played([delta("old"), {"type": "step-start"}, delta("new"), FINISH], Judge(), size=10)
    assert out == [{"type": "step-start"}, delta("new"), FINISH]


async def test_observed_text_passes_at_once_and_is_judged_at_its_end():
    judge = Judge("warn")
    stream = JudgedStream({}, judge, "observe", 1, 0)
    assert await stream.take(delta("a. bad. c")) == [delta("a. bad. c")]
    assert judge.judged == []
    assert await stream.take(FINISH) == [FINISH]
    assert judge.judged == ["a. ", "bad. ", "c"]
    assert await stream.flush() == []


async def test_the_providers_own_events_between_observed_texts_ask_nothing():
    judge, raw = Judge("warn"), {"type": "raw", "payload": {}}
    chunks = [each for letter in "fine words" for each in (raw, delta(letter))]
    out, _ = await played([*chunks, FINISH], judge, mode="observe", size=100)
    assert out == [*chunks, FINISH]
    assert judge.judged == ["fine words"]


async def test_observed_text_is_kept_up_to_a_bound():
    judge = Judge("warn")
    stream = JudgedStream({}, judge, "observe", 1, 0)
    for _ in range(OBSERVED_AT_ONCE):
        await stream.take(delta("a. "))
    assert len(judge.judged) == OBSERVED_AT_ONCE


async def test_nothing_more_goes_out_once_it_tripped():
    judge = Judge("block")
    stream = JudgedStream({}, judge, "hold", 1, 0)
    assert text_of(await stream.take(delta("a. bad. c. "))) == "a. "
    assert stream.tripped
    with pytest.raises(TripWire):
        await stream.take(delta("d. "))
    assert judge.judged == ["a. ", "bad. "]


async def test_what_had_passed_goes_out_before_the_abort_that_comes_in_the_same_chunk():
    chunks = [delta("First. ", "a"), delta("Fo", "a"), delta("This is bad. ", "b")]
    letters = [delta(c, each["payload"]["id"]) for each in chunks for c in each["payload"]["text"]]
    for cut in (chunks, letters):
        out, tripwire = await played([*cut, FINISH], Judge("block"))
        assert text_of(out) == "First. Fo"
        assert tripwire is not None


async def test_of_chunks_that_come_at_once_those_before_the_abort_go_out():
    stream = JudgedStream({}, Judge("block"), "hold", 1, 0)
    out = await stream.take_all([delta("Fine. "), {"type": "source", "payload": {}}, delta("It is bad. ")])
    assert (text_of(out), out[-1]["type"], stream.tripped) == ("Fine. ", "source", True)
    with pytest.raises(TripWire):
        await stream.flush()
