"""What a client in another language does with chunks: the example that shows it."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.bare_client import Answer, Outcome, ask
from procession.client import ChunkOrder
from tests.chaos.proxy import Proxy
from tests.support.histories import batch, histories
from tests.support.wire import services_at


@given(histories(), st.data())
def test_whatever_comes_twice_late_or_out_of_order_the_text_is_the_one_that_counts(history, data):
    batches, text = history
    again = data.draw(st.lists(st.sampled_from(batches), max_size=4))
    answer = Answer()
    for each in data.draw(st.permutations(batches + again)):
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


def test_who_was_away_does_not_hide_a_gap():
    answer = Answer()
    answer.take(batch(0, "a", fence=1))
    answer.take(batch(1, "b", fence=3))
    answer.take(batch(9, "stale", reset=0, fence=2))
    answer.take(batch(3, "d", fence=3, end=True))
    assert (answer.text, answer.gap, answer.complete) == ("ab", True, False)
    answer.take(batch(2, "c", fence=3))
    assert (answer.text, answer.gap, answer.complete) == ("abcd", False, True)


def event(type_, *, fence=3, status="finished", **fields):
    """An event of a run, with a result."""
    return {"type": f"run.{type_}", "fence": fence, "result": {"status": status}, **fields}


def test_of_ends_the_first_counts_that_is_heard_but_more_the_one_that_is_stored():
    outcome = Outcome("ours")
    first, second = event("finished", at="1"), event("finished", at="2")
    outcome.take(first)
    outcome.take(second)
    assert outcome.end is first
    outcome.take(second, stored=True)
    assert outcome.end is second


def test_the_end_of_another_request_of_the_same_id_is_not_ours():
    outcome = Outcome("ours")
    outcome.take(event("finished", fingerprint="theirs"), stored=True)
    assert outcome.end is None
    outcome.take(event("finished", fingerprint="ours"))
    assert outcome.end is not None


def test_a_run_waits_until_it_goes_on():
    outcome, again = Outcome("ours"), event("suspended", fence=6)
    outcome.take(event("suspended", fence=4))
    assert outcome.end is not None
    outcome.take(event("resumed", fence=4))
    assert outcome.end is None
    outcome.take(again)
    assert outcome.end is again


def test_the_end_of_what_came_before_a_person_decided_is_not_that_of_the_run():
    answer, outcome = Answer(), Outcome("ours")
    answer.take(batch(0, "a", fence=1, end=True))
    outcome.take(event("finished", endSeq=2))
    assert outcome.result(answer, whole=False) is None
    answer.take(batch(1, "b", fence=2, end=True))
    assert outcome.result(answer, whole=False) == {"status": "finished"}


async def test_a_run_that_waits_for_a_person_is_told_and_goes_on_with_the_same_request(servers):
    request = {"runId": "waits", "input": "Hello"}
    texts = [""]
    async with services_at(servers.nats_url) as services, asyncio.timeout(20):

        def asking():
            asked = ask(
                servers.nats_url,
                "test",
                request,
                tenant=services.tenant,
                show=lambda answer: texts.append(answer.text),
            )
            return asyncio.create_task(asked)

        first = asking()
        await services.request()
        await services.suspend("waits", "call", fence=4, end_seq=1)
        await services.chunks("waits", 0, "Shall I? ", fence=3, end=True)
        assert (await first)["suspendPayload"] == {"calls": [{"toolCallId": "call"}]}
        second = asking()
        await services.request()
        await services.event("waits", "run.resumed", fence=4)
        await services.chunks("waits", 1, "Done.", fence=5, end=True)
        await services.finish("waits", "Shall I? Done.", fence=5, end_seq=2)
        assert (await second)["status"] == "finished"
    assert texts[-1] == "Shall I? Done."


async def test_a_refusal_that_comes_while_the_connection_is_away_is_read_from_what_is_stored(servers):
    shown, port = asyncio.Event(), int(servers.nats_url.rsplit(":", 1)[1])
    async with services_at(servers.nats_url) as services, Proxy(port) as proxy, asyncio.timeout(20):
        url, request = f"nats://127.0.0.1:{proxy.port}", {"runId": "refused", "input": "Hello"}
        asking = asyncio.create_task(
            ask(url, "test", request, tenant=services.tenant, show=lambda _answer: shown.set())
        )
        subject, _ = await services.request()
        stored = await services.nats.jetstream().get_last_msg("RUNS", subject)
        await services.chunks("refused", 0, "of somebody else")
        await shown.wait()
        proxy.cut()
        error = {"code": "RUN_ID_CONFLICT", "message": "taken"}
        await services.event("refused", "request.rejected", error=error, sequence=stored.seq)
        with pytest.raises(RuntimeError, match="taken"):
            await asking
