"""`unicode-normalizer`: what the vectors leave open."""

import pytest

from procession.errors import InvalidOptionsError
from procession.testing import ProcessorKit
from procession_services.processors.unicode_normalizer import UnicodeNormalizer
from tests.support.cost import seconds


async def normalised(text, **options):
    return (await ProcessorKit(UnicodeNormalizer, options).input(text)).texts[-1]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("hi \U0001f600!", "hi !"),
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467 x", "x"),
        ("\U0001f44b\U0001f3fd x", "x"),
        ("\U0001f1eb\U0001f1f7x", "x"),
        ("\U0001f3f4\U000e0067\U000e0062\U000e007fx", "x"),
        ("I \u2764\ufe0f u", "I u"),
        ("1\ufe0f\u20e3 2", "2"),
        ("\u2705 done \u2b50", "done"),
        ("\u00a9 2024 \u00ae", "\u00a9 2024 \u00ae"),
        ("a\u200db \u0915\u094d\u200d\u0937", "a\u200db \u0915\u094d\u200d\u0937"),
        ("\U00020000 \U0001d54f", "\U00020000 X"),
        ("3 * 4 # 5", "3 * 4 # 5"),
    ],
)
async def test_emojis_go_and_nothing_else(text, left):
    assert await normalised(text, stripControlChars=True, preserveEmojis=False) == left


async def test_other_parts_and_metadata_stay():
    image = {"type": "file", "data": "aGk=", "mimeType": "image/png"}
    message = {
        "role": "user",
        "content": {
            "format": 2,
            "parts": [{"type": "text", "text": " a  b "}, image],
            "metadata": {"k": " v "},
        },
    }
    [out] = (await ProcessorKit(UnicodeNormalizer).input([message])).messages
    assert out["content"]["parts"] == [{"type": "text", "text": "a b"}, image]
    assert out["content"]["metadata"] == {"k": " v "}


def test_null_is_not_given():
    assert UnicodeNormalizer.build({"trim": None}).options.trim
    with pytest.raises(InvalidOptionsError):
        UnicodeNormalizer.build({"trim": "maybe"})


@pytest.mark.parametrize(
    "unit", ["\U0001f468\u200d", "\U0001f1eb", " \n", "\ud800", "e\u0301", "1\ufe0f", "\u2028"]
)
def test_the_cost_is_linear(unit):
    normalizer = UnicodeNormalizer.build({"stripControlChars": True, "preserveEmojis": False})

    def cost(size):
        text = (unit * size)[:size] + "."
        return seconds(lambda: normalizer.normalise(text))

    assert cost(200_000) < 12 * cost(50_000) + 0.01
