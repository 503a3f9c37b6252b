import itertools
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.client import ChunkOrder
from tests.support.histories import batch, histories


def drain(order):
    texts = []
    while (chunk := order.pop()) is not None:
        texts.append(chunk["type"] if chunk["type"] == "reset" else chunk["payload"]["text"])
    return texts


@st.composite
def deliveries(draw):
    """Batches that cover `total` chunks, some of them twice and cut elsewhere, in any order."""
    total = draw(st.integers(1, 30))
    batches = []
    for _ in range(draw(st.integers(1, 3))):
        cuts = sorted({0, total, *draw(st.lists(st.integers(0, total), max_size=6))})
        for first, last in itertools.pairwise(cuts):
            texts = [str(number) for number in range(first, last)]
            batches.append(batch(first, *texts, end=last == total))
    return total, draw(st.permutations(batches))


@given(deliveries())
def test_every_chunk_comes_once_and_in_order(case):
    total, batches = case
    order, texts = ChunkOrder(), []
    for one in batches:
        order.add(one)
        texts += drain(order)
        assert order.ended == (len(texts) == total)
    assert texts == [str(number) for number in range(total)]
    assert order.position == total


def read(order, have):
    """Takes what is there to what a reader has, by number."""
    while (chunk := order.pop()) is not None:
        if chunk["type"] == "reset":
            for number in [number for number in have if number >= chunk["payload"]["from"]]:
                del have[number]
        else:
            assert order.position - 1 not in have, "without a reset"
            have[order.position - 1] = chunk["payload"]["text"]


def read_again(order, have, stored, live=()):
    """Takes what comes live, then what is stored: that from its beginning, as often as the order wants it."""
    to_come = deque([*live, *stored])
    while to_come:
        order.add(to_come.popleft())
        if order.anew:
            order.anew, to_come = False, deque(stored)
        read(order, have)


@given(histories(), st.data())
def test_a_reader_ends_with_the_text_that_counts_whoever_else_speaks(history, data):
    batches, text = history
    order, have = ChunkOrder(), dict[int, str]()
    stored = data.draw(st.integers(0, len(batches)))
    for each in [*batches[:stored], *batches]:  # some come live, and once more of what is stored
        order.add(each)
        read(order, have)
    assert "".join(have.values()) == text
    assert order.ended
    assert order.gap is None


@given(histories(behind=True), st.data())
def test_a_reader_who_comes_back_goes_on_to_the_text_that_counts(history, data):
    batches, text = history
    order, have = ChunkOrder(), dict[int, str]()
    for each in batches[: data.draw(st.integers(0, len(batches)))]:
        order.add(each)
        read(order, have)
    order = ChunkOrder(after=order.position)
    for each in batches:
        order.add(each)
    read(order, have)
    assert "".join(have.values()) == text
    assert order.ended
    assert order.gap is None


@given(histories(behind=True, lossy=True), st.data())
def test_a_reader_who_has_missed_some_ends_with_the_text_that_counts(history, data):
    batches, text = history
    order, have = ChunkOrder(), dict[int, str]()
    begun = data.draw(st.integers(0, len(batches)))
    live = [each for each in batches[:begun] if data.draw(st.booleans())]
    read_again(order, have, batches, live)
    assert "".join(have.values()) == text
    assert order.ended
    assert order.gap is None


@pytest.mark.parametrize("came_back", [False, True])
def test_who_has_taken_back_what_counts_for_somebody_that_nobody_stored_gets_all_of_it_again(came_back):
    """A gateway that did not know of the run's end dies before CHUNKS has what it told its clients."""
    stored = [batch(0, *"abcdefg", fence=1), batch(7, "end", reset=7, fence=20, end=True)]
    live = [batch(0, *"abcdefg", fence=1), batch(100, "x", reset=1, fence=2)]
    have, order = dict[int, str](), ChunkOrder()
    if came_back:
        have, order = dict(enumerate("abcde")), ChunkOrder(after=5)
    for each in live:
        order.add(each)
        read(order, have)
    assert have == {0: "a", 100: "x"}
    read_again(order, have, stored)
    assert list(have.values()) == [*"abcdefg", "end"]
    assert order.ended


def test_who_has_read_beyond_what_was_taken_back_unheard_reads_all_again():
    stored = [
        batch(0, *"abc", fence=1),
        batch(3, reset=1, fence=2),
        batch(3, "x", reset=3, fence=3, end=True),
    ]
    have, order = dict[int, str](), ChunkOrder()
    for each in (stored[0], stored[2]):
        order.add(each)
        read(order, have)
    assert list(have.values()) == [*"abcx"]
    read_again(order, have, stored)
    assert list(have.values()) == ["a", "x"]


def test_who_goes_on_may_take_back_more_than_the_mark_before_said():
    order, have = ChunkOrder(), dict[int, str]()
    mark = batch(3, reset=3, fence=2)
    order.add(batch(0, *"abc", fence=1))
    read(order, have)
    for each in (mark, batch(3, "x", reset=1, fence=2), mark):
        order.add(each)
    read(order, have)
    assert have == {0: "a", 3: "x"}


def test_what_comes_late_of_what_is_taken_back_behind_a_mark_is_dropped():
    order = ChunkOrder()
    for each in (batch(0, "a", fence=1), batch(3, reset=3, fence=2), batch(3, "x", reset=1, fence=2)):
        order.add(each)
    order.add(batch(1, "b", "c", fence=1))
    assert drain(order) == ["a", "x"]


def test_a_later_reader_goes_on_where_the_first_one_stopped():
    first = ChunkOrder()
    first.add(batch(0, "a", "b", "c"))
    first.pop()
    later = ChunkOrder(after=first.position)
    later.add(batch(0, "a", "b", "c", end=True))
    assert drain(later) == ["b", "c"]
    assert later.ended


def test_a_gap_is_told_until_it_is_filled():
    order = ChunkOrder()
    order.add(batch(0, "a"))
    order.add(batch(3, "d"))
    assert drain(order) == ["a"]
    assert order.gap == (1, 2)
    order.add(batch(1, "b", "c"))
    assert order.gap is None
    assert drain(order) == ["b", "c", "d"]


def test_an_end_behind_a_gap_does_not_end_the_stream():
    order = ChunkOrder()
    order.add(batch(1, "b", end=True))
    assert not order.ended
    order.add(batch(0, "a"))
    assert drain(order) == ["a", "b"]
    assert order.ended


def test_a_reset_is_announced_once_in_front_of_what_replaces():
    order = ChunkOrder()
    order.add(batch(0, "a", "b"))
    order.add(batch(2, "A", reset=0))
    order.add(batch(2, "A", reset=0))
    assert drain(order) == ["a", "b", "reset", "A"]


def test_a_reset_names_the_run_whatever_comes_behind_it():
    order = ChunkOrder()
    order.add(batch(0, "a", fence=1))
    drain(order)
    order.add({"run": "r", "seq": 1, "reset": 0, "fence": 2, "chunks": [{"type": "data-mine", "data": 1}]})
    assert order.pop() == {"type": "reset", "runId": "r", "from": "SYSTEM", "payload": {"from": 0}}


def test_a_reset_without_chunks_is_announced_too():
    order = ChunkOrder()
    order.add(batch(0, "a"))
    order.add(batch(1, reset=0))
    order.add(batch(1, "A", end=True))
    assert drain(order) == ["a", "reset", "A"]
    assert order.ended


def test_a_resumed_run_has_no_end_any_more():
    order = ChunkOrder()
    order.add(batch(0, "a", end=True))
    drain(order)
    order.reopen(1)
    assert not order.ended
    order.add(batch(0, "a", end=True))
    assert not order.ended
    order.add(batch(1, "b", end=True, fence=1))
    assert drain(order) == ["b"]
    assert order.ended


def test_that_a_run_goes_on_may_be_heard_behind_its_end():
    order = ChunkOrder()
    order.add(batch(0, "a", end=True))
    order.add(batch(1, "b", end=True, fence=1))
    order.reopen(1)
    assert drain(order) == ["a", "b"]
    assert order.ended


def test_what_a_smaller_fence_says_behind_the_first_number_of_a_greater_one_is_dropped():
    order = ChunkOrder()
    order.add(batch(0, "a", "b", fence=1))
    order.add(batch(2, reset=0, fence=2))
    order.add(batch(2, "stale", "stale", fence=1, end=True))
    order.add(batch(2, "A", "B", fence=2))
    assert drain(order) == ["A", "B"]
    assert not order.ended


def test_what_came_too_far_under_a_smaller_fence_is_taken_back():
    order = ChunkOrder()
    order.add(batch(0, "a", "b", "c", "d", fence=1))
    assert drain(order) == ["a", "b", "c", "d"]
    order.add(batch(2, reset=1, fence=2))
    order.add(batch(2, "B", "C", fence=2, end=True))
    assert drain(order) == ["reset", "B", "C"]
    assert order.ended


def test_what_came_too_far_is_taken_back_once():
    order = ChunkOrder()
    order.add(batch(0, "a", "b", fence=1))
    drain(order)
    order.add(batch(0, "A", reset=0, fence=2))
    assert drain(order) == ["reset", "A"]
    order.add(batch(0, "A", reset=0, fence=2))
    order.add(batch(1, "B", fence=2))
    assert drain(order) == ["B"]


def test_a_fence_that_takes_nothing_back_is_not_told():
    order = ChunkOrder()
    order.add(batch(0, "a", fence=1))
    order.add(batch(1, reset=1, fence=2))
    order.add(batch(1, "stale", fence=1))
    order.add(batch(1, "b", fence=2))
    assert drain(order) == ["a", "b"]


def test_what_waits_of_a_smaller_fence_is_replaced():
    order = ChunkOrder()
    order.add(batch(1, "stale", "stale", fence=1))
    order.add(batch(1, "b", fence=2, reset=1))
    order.add(batch(0, "a", fence=1))
    assert drain(order) == ["a", "b"]


def test_a_gap_in_what_is_taken_back_is_skipped():
    order = ChunkOrder()
    order.add(batch(0, "a", fence=1))
    assert drain(order) == ["a"]
    order.add(batch(5, "A", reset=0, fence=2, end=True))
    assert order.gap is None
    assert drain(order) == ["reset", "A"]
    assert order.ended


def test_what_a_later_reader_gets_again_is_taken_back_also_where_somebody_else_takes_back_more():
    order = ChunkOrder(after=5)
    order.add(batch(5, "f", "g", "h", "i", end=True))
    assert drain(order) == ["f", "g", "h", "i"]
    order.add(batch(7, fence=2, reset=7))
    order.add(batch(1, fence=3, reset=1))
    order.add(batch(1, *"BCDEFGHI", fence=3, end=True))
    assert drain(order) == ["reset", "H", "I"]
    assert order.ended


def test_a_later_reader_is_not_told_of_what_it_has_been_told():
    order = ChunkOrder(after=4)
    for each in (batch(0, "a", "b", fence=1), batch(2, "A", "B", "C", reset=0, fence=2)):
        order.add(each)
    assert drain(order) == ["C"]


def test_numbers_that_are_left_out_before_anything_was_shown_are_no_reset():
    order = ChunkOrder()
    order.add(batch(0, "a", fence=1))
    assert drain(order) == ["a"]
    order.add(batch(1000, "b", reset=1, fence=2, end=True))
    assert drain(order) == ["b"]
    assert order.ended


def test_an_end_that_is_done_again_is_none():
    ended = batch(0, "a", "b", fence=1, end=True)
    begun_again = [batch(2, fence=2, reset=0), batch(2, "A", fence=2)]
    for before in ([ended, *begun_again], [*begun_again, ended]):
        order = ChunkOrder()
        for one in before:
            order.add(one)
        assert drain(order) == ["A"]
        assert not order.ended
        order.add(batch(3, "B", fence=2, end=True))
        assert drain(order) == ["B"]
        assert order.ended


def test_reading_may_begin_behind_what_is_not_kept_any_more():
    order = ChunkOrder()
    order.skip()
    order.add(batch(5, "f", "g", end=True))
    assert drain(order) == []
    order.skip()
    order.add(batch(0, "a"))
    assert drain(order) == ["f", "g"]
    assert (order.position, order.ended) == (7, True)
