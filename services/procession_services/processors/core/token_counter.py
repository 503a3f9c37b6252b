"""Counts the tokens of texts: by the model's own vocabulary where it is known, else by estimate (D-11).

The vocabularies of OpenAI's models come with the optional library `bpe_openai` (extra `tokens`): nothing is downloaded,
and no text takes more than linear time. The makers of other models publish none; their tokens are estimated.
"""

import re
from collections.abc import Iterable
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any, Final, Literal, Protocol

from procession_services.processors.core.token_estimate import estimate, first_tokens

Encoding = Literal["o200k_base", "cl100k_base"]

_LIBRARY: Final = "bpe_openai"
_MODELS: Final = re.compile(
    r"(?:ft:)?(?:"
    r"(?P<o200k_base>gpt-4o|chatgpt-4o|gpt-4\.[15]|gpt-[5-9]|gpt-oss|o[134](?![^-]))"
    r"|(?P<cl100k_base>gpt-4(?![^-])|gpt-3\.?5|text-embedding-(?:3|ada-002)|(?:davinci|babbage)-002)"
    r")"
)
_BETWEEN_WORDS: Final = re.compile(r"(?<=\S) (?=[^\W\d_])")
"""A place that no token of these vocabularies goes over."""
_LONG_WORD: Final = 1_000
"""Characters without such a place after which a text is cut anywhere."""


class TokenCounter(Protocol):
    """Counts tokens; `exact` tells whether they are the model's own."""

    exact: bool

    def count(self, text: str) -> int:
        """The tokens of a text, never negative."""

    def count_all(self, texts: Iterable[str]) -> int:
        """The tokens of the texts of one message."""

    def first(self, text: str, limit: float) -> str:
        """The beginning of a text that has at most so many tokens, whole characters only."""


class Estimator:
    """Counts by estimate (R-TOK); the texts of a message count as one, without anything between them (R-TOKLIM-3)."""

    exact = False
    count = staticmethod(estimate)
    first = staticmethod(first_tokens)

    def count_all(self, texts: Iterable[str]) -> int:
        """Estimates the texts as one."""
        return estimate("".join(texts))


class Tokenizer:
    """Counts by a vocabulary."""

    exact = True

    def __init__(self, vocabulary: Any) -> None:
        self._vocabulary = vocabulary

    def count(self, text: str) -> int:
        """Counts the tokens of a text."""
        return int(self._vocabulary.count(_encodable(text)))

    def count_all(self, texts: Iterable[str]) -> int:
        """Counts each text by itself, as prompts keep them apart."""
        return sum(map(self.count, texts))

    def first(self, text: str, limit: float) -> str:
        """Cuts between tokens, and before a character that has more of them than fit."""
        text = _encodable(text)
        tokens: list[int] = self._vocabulary.encode(text)
        if len(tokens) <= limit:
            return text
        for size in range(int(limit), 0, -1):
            beginning = self._decoded(tokens[:size])
            if beginning is not None and self.count(beginning) <= limit:
                return beginning
        return ""

    def _decoded(self, tokens: list[int]) -> str | None:
        """The text of tokens; None where they end inside a character."""
        try:
            return str(self._vocabulary.decode(tokens))
        except ValueError:
            return None


def _encodable(text: str) -> str:
    """The text with U+FFFD for each unpaired surrogate."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


ESTIMATOR: Final = Estimator()
_loaded: Final[dict[Encoding, Tokenizer]] = {}


def encoding_of(model: str) -> Encoding | None:
    """The vocabulary of a model (`provider/name`); None when it is not known."""
    match = _MODELS.match(model.rpartition("/")[2])
    return match.lastgroup if match else None  # type: ignore[return-value]  # groups are named after encodings


@cache
def is_installed() -> bool:
    """Whether the vocabularies are there (extra `tokens`)."""
    return _bindings_spec() is not None


def loaded(encoding: Encoding) -> Tokenizer | None:
    """The vocabulary, if it was loaded before."""
    return _loaded.get(encoding)


def load(encoding: Encoding) -> Tokenizer:
    """Loads a vocabulary: a tenth of a second and 35 MB, once a process.

    Raises:
        ModuleNotFoundError: The extra `tokens` is not installed.
    """
    return _loaded.setdefault(encoding, Tokenizer(_bindings().tokenizer_for_encoding(encoding)))


@cache
def _bindings() -> Any:
    spec = _bindings_spec()
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{_LIBRARY} is not installed; install procession[tokens]")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _bindings_spec() -> ModuleSpec | None:
    """The compiled half of the library: its Python half would load every vocabulary into 70 MB more."""
    package = find_spec(_LIBRARY)
    if package is None:
        return None
    return PathFinder.find_spec(f"{_LIBRARY}._bindings", package.submodule_search_locations)


def last_break(text: str) -> int:
    """The last place where a text that goes on can be cut without a change of its tokens; 0 if there is none."""
    place = 0
    for match in _BETWEEN_WORDS.finditer(text):
        place = match.start()
    return place if place or len(text) < _LONG_WORD else len(text)
