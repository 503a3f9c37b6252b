"""What a client in another language does with chunks: the example that shows it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.bare_client import Answer
from procession.client import ChunkOrder


def batch(seq, *texts, **more):
    chunks = [{"type": "text-delta", "payload": {"text": text}} for text in texts]
    return {"run": "r", "seq": seq, "chunks": chunks, **more}


@st.composite
def histories(draw):
    """Batches of several workers of rising fences, of whom each takes back some of what the one before has said.

    In any order, some twice, with more of each worker than counts; and the text that counts.
    """
    counting: dict[int, str] = {}
    batches = []
    for fence in range(1, draw(st.integers(1, 4)) + 1):
        following = max(counting, default=-1) + 1
        start = draw(st.integers(0, following)) if counting else 0
        first = start + draw(st.integers(0, 5)) if counting else 0
        texts = [f"{fence}.{number} " for number in range(first, first + draw(st.integers(1, 8)))]
        counting = {number: text for number, text in counting.items() if number < start}
        counting |= dict(enumerate(texts, first))
        if fence > 1:
            batches.append(batch(first, reset=start, fence=fence))
        while texts:
            size = draw(st.integers(1, len(texts)))
            batches.append(batch(first, *texts[:size], fence=fence))
            first, texts = first + size, texts[size:]
        batches[-1]["end"] = True
    again = draw(st.lists(st.sampled_from(batches), max_size=4))
    return draw(st.permutations(batches + again)), "".join(counting[number] for number in sorted(counting))


@given(histories())
def test_whatever_comes_twice_late_or_out_of_order_the_text_is_the_one_that_counts(case):
    batches, text = case
    answer = Answer()
    for each in batches:
        answer.take(each)
        assert answer.text == "".join(chunk["payload"]["text"] for chunk in answer.chunks)
    assert answer.text == text
    assert answer.complete
    assert not answer.gap


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_one_worker_is_read_as_the_library_reads_it(sizes, random):
    batches, first = [], 0
    for size in sizes:
        batches.append(batch(first, *(f"{number} " for number in range(first, first + size)), fence=3))
        first += size
    batches[-1]["end"] = True
    random.shuffle(batches)
    answer, order, texts = Answer(), ChunkOrder(), []
    for each in batches:
        answer.take(each)
        order.add(each)
        while (chunk := order.pop()) is not None:
            texts.append(chunk["payload"]["text"])
        assert (answer.text, answer.complete) == ("".join(texts), order.ended)
        assert answer.gap == (order.gap is not None)


def test_an_end_counts_no_more_when_the_run_goes_on():
    answer = Answer()
    answer.take(batch(0, "a", fence=1, end=True))
    assert answer.complete
    answer.take(batch(1, "b", fence=2))
    assert not answer.complete
    answer.take(batch(2, fence=2, end=True))
    assert (answer.complete, answer.text) == (True, "ab")


@pytest.mark.parametrize("first", [1, 5])
def test_a_gap_is_one_until_it_is_filled(first):
    answer = Answer()
    answer.take(batch(first, "b", end=True))
    assert (answer.gap, answer.complete, answer.text) == (True, False, "")
    answer.take(batch(0, *["a"] * first))
    assert (answer.gap, answer.complete, answer.text) == (False, True, "a" * first + "b")
