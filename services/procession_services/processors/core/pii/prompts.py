"""Values and tokens in whole prompts, messages and arguments: JSON of any depth."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from procession_services.processors.core.pii.tokens import TOKEN
from procession_services.processors.core.scripts import bounded

_NOT_TEXT: Final = frozenset({
    "type", "role", "id", "toolCallId", "toolName", "data", "url", "image", "mediaType", "mimeType", "createdAt",
    "providerOptions",
})  # fmt: skip
_JsonT = TypeVar("_JsonT")


def restored(value: Any, opened: Callable[[str], str]) -> Any:
    """The value with each token in its strings replaced by what `opened` gives for it."""
    return _mapped(value, lambda text: TOKEN.sub(lambda found: opened(found.group()), text))


def with_tokens(value: _JsonT, tokens: Mapping[str, str]) -> _JsonT:
    """The value with each known clear value in its strings replaced by its token.

    A value of letters and digits only, such as a name, counts where it is no part of a longer word.
    """
    if not tokens:
        return value
    known = sorted(tokens, key=len, reverse=True)
    pattern = re.compile("|".join(bounded(each) if each.isalnum() else re.escape(each) for each in known))
    mapped: _JsonT = _mapped(value, lambda text: pattern.sub(lambda found: tokens[found.group()], text))
    return mapped


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(each, change) for each in value]
    if isinstance(value, dict):
        return {key: each if key in _NOT_TEXT else _mapped(each, change) for key, each in value.items()}
    return value
