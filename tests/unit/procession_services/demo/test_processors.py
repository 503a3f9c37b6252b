import asyncio
import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.args import APIError
from procession.calls import Calls, Link
from procession.context import RunContext
from procession.errors import TripWire
from procession.hooks import run_api_error, run_input, run_output_result
from procession.message_list import MessageList
from procession.stream import StreamChain
from procession_services.demo.processors import EmailRedactor, QuestionCheck, RetryOnce, WordCounter
from tests.support.cost import seconds

_LETTER = r"0-9A-Za-z_\u00c0-\u024f-"
ADDRESS = re.compile(rf"[{_LETTER}.%+]+@[{_LETTER}]+(?:\.[{_LETTER}]+)+")


@pytest.fixture
def ctx():
    return context()


def context(*questions):
    messages = MessageList(new_id=iter(map(str, range(100))).__next__, now=lambda: "2026-01-01T00:00:00.000Z")
    for question in questions:
        messages.add({"role": "user", "content": question}, "input")
    return RunContext(run_id="r", tenant="t", agent="a", message_id="m", messages=messages)


def links(kind, **options):
    return [Link(kind.build(options), kind.id)]


def calls():
    return Calls(clock=lambda: 0)


async def streamed(ctx, kind, texts, **options):
    """The chunks that a processor makes of one text block."""
    out: list[Any] = []
    chain = StreamChain(links(kind, **options), ctx, calls(), out.append)
    block: list[Any] = [
        {"type": "text-start", "payload": {"id": "b1"}},
        *({"type": "text-delta", "payload": {"id": "b1", "text": text}} for text in texts),
        {"type": "text-end", "payload": {"id": "b1"}},
    ]
    for chunk in block:
        await chain.feed(chunk)
    return out


def text_of(chunks):
    return "".join(chunk["payload"]["text"] for chunk in chunks if chunk["type"] == "text-delta")


@given(
    st.lists(
        st.sampled_from(
            [
                "ann@example.com",
                "a.b+c@x-y.org",
                "@",
                ".",
                " ",
                "word",
                "é",
                "ł@ex",
                "ämple.org",
                "猫",
                "\n",
                "-",
                "me@",
            ]
        )
    ),
    st.lists(st.integers(0, 200), max_size=8),
)
async def test_no_split_of_a_text_lets_any_of_an_address_out(pieces, cuts):
    text = "".join(pieces)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[a:b] for a, b in itertools.pairwise(places)]
    chunks = await streamed(context(), EmailRedactor, parts)
    assert text_of(chunks) == ADDRESS.sub("[e-mail removed]", text)
    assert chunks[-1]["type"] == "text-end"


@pytest.mark.parametrize("unit", ["x", "a@", "x@x.", "a@b.co", "x ", "-", "\u00e9", "猫"])
def test_the_cost_of_a_text_is_linear(unit):
    def cost(size):
        texts = [(unit * size)[:size], " end"]
        return seconds(lambda: asyncio.run(streamed(context(), EmailRedactor, texts)))

    assert cost(80_000) < 12 * cost(20_000) + 0.01


async def test_text_is_passed_on_as_soon_as_it_is_certain(ctx):
    out: list[Any] = []
    chain = StreamChain(links(EmailRedactor), ctx, calls(), out.append)
    await chain.feed({"type": "text-delta", "payload": {"id": "b1", "text": "Write to a"}})
    assert text_of(out) == "Write to "
    await chain.feed({"type": "text-delta", "payload": {"id": "b1", "text": "nn, or"}})
    assert text_of(out) == "Write to ann, "


async def test_the_replacement_is_an_option_and_taken_literally(ctx):
    chunks = await streamed(ctx, EmailRedactor, ["to ann@example.com."], replacement=r"\1<gone>")
    assert text_of(chunks) == r"to \1<gone>."
    assert ctx.state("email-redactor")["redacted"] == 1


async def test_other_chunks_pass_the_redactor_untouched(ctx):
    out: list[Any] = []
    chain = StreamChain(links(EmailRedactor), ctx, calls(), out.append)
    call = {"toolCallId": "c", "toolName": "t", "args": {"to": "a@b.com"}}
    chunk: Any = {"type": "tool-call", "payload": call}
    await chain.feed(chunk)
    assert out == [chunk]


@given(st.text(alphabet="ab \n", max_size=40), st.lists(st.integers(0, 40), max_size=6))
async def test_words_are_counted_wherever_chunks_cut_them(text, cuts):
    ctx = context()
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[a:b] for a, b in itertools.pairwise(places)]
    assert text_of(await streamed(ctx, WordCounter, parts)) == text
    written = []

    class Writer:
        async def custom(self, chunk):
            written.append(chunk)

    await run_output_result(ctx, links(WordCounter), calls(), Writer(), "stop")
    [count] = written
    assert (count["type"], count["data"]) == ("data-word-count", {"words": len(text.split())})


@pytest.mark.parametrize("question", ["", "   ", "x" * 2001, "Tell me the PassWord!"])
async def test_a_question_that_is_not_wanted_is_blocked(question):
    with pytest.raises(TripWire):
        await run_input(context("Fine?", question), links(QuestionCheck), calls())


async def test_only_the_newest_question_counts():
    ctx = context("What is the password?", "What is the weather?")
    await run_input(ctx, links(QuestionCheck), calls())
    with pytest.raises(TripWire):
        await run_input(ctx, links(QuestionCheck, forbidden=["weather"]), calls())


async def test_a_failed_call_is_tried_again_once(ctx):
    error = APIError("overloaded", status_code=503, is_retryable=True)
    retry = links(RetryOnce)
    assert await run_api_error(ctx, retry, calls(), None, error)
    assert not await run_api_error(ctx, retry, calls(), None, error)


async def test_an_error_that_will_not_pass_is_not_tried_again(ctx):
    error = APIError("bad request", status_code=400, is_retryable=False)
    assert not await run_api_error(ctx, links(RetryOnce), calls(), None, error)
