import random
from importlib.util import find_spec
from pathlib import Path

import pytest

from procession_services.processors.core import token_counter
from procession_services.processors.core.token_counter import ESTIMATOR, encoding_of, last_break, load
from tests.support.cost import growth

WORDS = [
    "hello",
    "é",
    "123456",
    "!",
    "\n",
    "  ",
    " ",
    "don't",
    "你好",
    "😀",
    "नमस्ते",
    "x_y",
    "\t",
    "A",
    "'s",
    "...",
    "\u0301",
]


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("openai/gpt-4o-mini", "o200k_base"),
        ("gpt-4.1", "o200k_base"),
        ("openrouter/openai/gpt-5.1", "o200k_base"),
        ("openai/o3-mini", "o200k_base"),
        ("openai/ft:gpt-4o-mini:acme", "o200k_base"),
        ("azure/gpt-4-32k", "cl100k_base"),
        ("openai/gpt-3.5-turbo", "cl100k_base"),
        ("openai/text-embedding-3-small", "cl100k_base"),
        ("openai/omni-moderation", None),
        ("openai/o1x", None),
        ("anthropic/claude-sonnet-4", None),
        ("test/model", None),
        ("", None),
    ],
)
def test_the_vocabulary_of_a_model_is_known_or_not(model, encoding):
    assert encoding_of(model) == encoding


@pytest.mark.parametrize(
    ("encoding", "text", "tokens"),
    [
        ("o200k_base", "The quick brown fox jumps over the lazy dog.", 10),
        ("cl100k_base", "The quick brown fox jumps over the lazy dog.", 10),
        ("o200k_base", "internationalization", 2),
        ("cl100k_base", "antidisestablishmentarianism", 6),
        ("o200k_base", "ひらがなです", 5),
        ("o200k_base", "", 0),
        ("o200k_base", "<|endoftext|>", 7),
    ],
)
def test_a_vocabulary_counts_as_the_model_does(encoding, text, tokens):
    assert load(encoding).count(text) == tokens


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
def test_counts_are_those_of_tiktoken(encoding, monkeypatch):
    tiktoken = pytest.importorskip("tiktoken")
    litellm = find_spec("litellm")
    assert litellm is not None
    assert litellm.origin is not None
    monkeypatch.setenv(
        "TIKTOKEN_CACHE_DIR", str(Path(litellm.origin).parent / "litellm_core_utils/tokenizers")
    )
    theirs, ours = tiktoken.get_encoding(encoding), load(encoding)
    rng = random.Random(7)
    for _ in range(300):
        text = "".join(rng.choice(WORDS) + rng.choice(["", " ", "\n"]) for _ in range(rng.randrange(50)))
        assert ours.count(text) == len(theirs.encode_ordinary(text)), text


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
def test_no_token_goes_over_a_break_and_beginnings_are_exact(encoding):
    counter, rng = load(encoding), random.Random(11)
    for _ in range(500):
        text = "".join(rng.choice(WORDS) + rng.choice(["", " ", "\n"]) for _ in range(rng.randrange(40)))
        place = last_break(text)
        assert counter.count(text[:place]) + counter.count(text[place:]) == counter.count(text), text
        for limit in (0, 1, 5, 20):
            cut = counter.first(text, limit)
            assert text.startswith(cut)
            assert counter.count(cut) <= limit
            assert cut == text or counter.count(text) > limit


@pytest.mark.parametrize("unit", ["a", " ", "ab", "word ", "你", "!", "\n", "'s"])
def test_a_long_text_takes_linear_time_and_never_fails(unit):
    counter = load("o200k_base")

    def count(size):
        text = unit * (size // len(unit))
        assert counter.count(text) > 0
        assert counter.count(counter.first(text, 1000)) <= 1000

    assert growth(count, 400_000) < 12


def test_a_broken_character_is_counted():
    assert load("o200k_base").count("\ud800 x") == 2


def test_the_texts_of_a_message_are_one_for_the_estimate_and_apart_for_a_vocabulary():
    texts = ["user", "hel", "lo"]
    assert ESTIMATOR.count_all(texts) == ESTIMATOR.count("userhello") == 2
    assert load("o200k_base").count_all(texts) == sum(map(load("o200k_base").count, texts)) == 3


def test_a_vocabulary_is_loaded_once():
    assert load("o200k_base") is load("o200k_base") is token_counter.loaded("o200k_base")
