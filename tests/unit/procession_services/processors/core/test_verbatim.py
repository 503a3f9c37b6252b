"""Repetitions of a text, word for word, in whatever pieces they come."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.hold_back import TextHold
from procession_services.processors.core.verbatim import Scanners, VerbatimScanner, verbatim_scanners
from tests.support.cost import growth

PROMPT = (
    "You are Ada, the support agent of Example Corp. Never tell anyone the discount code, and always answer in one "
    "short paragraph. Be kind. 你是一个非常有帮助的助手请不要告诉任何人密码。"
)
SHORT = "Keep the door shut always"
SCANNER = Scanners(verbatim_scanners((PROMPT, SHORT), 8))


def scrubbed(*texts: str, scanner=SCANNER) -> str:
    hold = TextHold({}, scanner, limit=100_000)
    pieces = [piece for text in texts for piece in hold.feed(text)] + hold.flush()
    return "".join(f"<{text}>" if match else text for text, match in pieces)


class TestFinding:
    @pytest.mark.parametrize(
        ("text", "out"),
        [
            (
                "never tell anyone the discount code, and always answer",
                "<never tell anyone the discount code, and always answer>",
            ),
            (
                "So: **NEVER**\ntell “anyone” the discount_code and always -- no!",
                "So: **<NEVER**\ntell “anyone” the discount_code and always> -- no!",
            ),
            ("never tell anyone the discount code and", "never tell anyone the discount code and"),
            (
                "never tell somebody the discount code, and always answer",
                "never tell somebody the discount code, and always answer",
            ),
            ("they said: keep the door, shut ALWAYS.", "they said: <keep the door, shut ALWAYS>."),
            ("keep the door shut alwaysish", "keep the door shut alwaysish"),
            ("xkeep the door shut always", "xkeep the door shut always"),
            ("好的。你是一个非常有帮助的助手请不要告诉", "好的。<你是一个非常有帮助的助手请不要告诉>"),
            ("请不要告诉", "请不要告诉"),
            ("", ""),
        ],
    )
    def test_eight_words_in_a_row_or_a_short_text_as_a_whole(self, text, out):
        assert scrubbed(text) == out

    def test_a_run_does_not_go_from_one_text_into_another(self):
        scanner = VerbatimScanner(["one two three four", "five six seven eight"], 8)
        assert (
            scrubbed("one two three four five six seven eight", scanner=scanner)
            == "one two three four five six seven eight"
        )

    def test_a_run_goes_on_after_a_word_that_stands_twice(self):
        scanner = VerbatimScanner(["a b a b a c d e f"], 5)
        assert scrubbed("x b a b a c y", scanner=scanner) == "x <b a b a c> y"

    def test_two_runs_that_share_words_are_one_match(self):
        scanner = VerbatimScanner(["a b c d", "c d e f"], 4)
        assert scrubbed("a b c d e f", scanner=scanner) == "<a b c d e f>"

    def test_texts_of_three_words_are_not_looked_for(self):
        assert verbatim_scanners(("Be kind always",), 8) == ()


class TestStreams:
    TEXT = (
        "Well: you are **Ada**, the support agent of Example Corp. Never! Keep the door\nshut, always 😀 keepx the "
        "door. 你是一个非常有帮助的助手请不要告诉 the end, never tell anyone the discount code and always"
    )

    def test_every_split_in_two_gives_the_same(self):
        whole = scrubbed(self.TEXT)
        assert whole.count("<") == 4
        for at in range(len(self.TEXT) + 1):
            assert scrubbed(self.TEXT[:at], self.TEXT[at:]) == whole

    def test_every_split_in_three_gives_the_same(self):
        text = "No: keep the 😀door, shut always! keep the"
        whole = scrubbed(text)
        assert whole == "No: <keep the 😀door, shut always>! keep the"
        for one in range(len(text) + 1):
            for two in range(one, len(text) + 1):
                assert scrubbed(text[:one], text[one:two], text[two:]) == whole

    def test_one_character_at_a_time_gives_the_same(self):
        assert scrubbed(*self.TEXT) == scrubbed(self.TEXT)

    @settings(max_examples=150, deadline=None)
    @given(
        st.lists(st.sampled_from([*PROMPT.split(), *SHORT.split(), "zebra", "you", "the"]), max_size=40),
        st.integers(0, 25),
        st.integers(1, 14),
        st.data(),
    )
    def test_any_words_in_any_pieces_give_the_same(self, words, begin, length, data):
        leak = PROMPT.split()[begin : begin + length]
        text = data.draw(st.sampled_from([" ", "\n\n", ", "])).join([*words[:20], *leak, *words[20:]])
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert scrubbed(*pieces) == scrubbed(text)

    def test_ordinary_text_is_held_for_a_few_words_at_most(self):
        hold = TextHold({}, SCANNER, limit=1000)
        said = "the agent said that you should always be kind to the door and to everyone else"
        for word in said.split():
            hold.feed(f"{word} ")
            assert hold.held < 30


class TestCost:
    def test_a_long_prompt_and_a_long_text_cost_linear_time(self):
        def scan(size):
            scanner = VerbatimScanner(["word and again " * size], 8)
            found = scanner.scan("word and again other " * size, 0, final=True)
            assert found.matches == []

        assert growth(scan, 20_000) < 12

    def test_a_run_of_the_same_word_is_one_match(self):
        scanner = VerbatimScanner(["no " * 1000], 8)
        assert len(scanner.scan("no " * 5000, 0, final=True).matches) == 1
