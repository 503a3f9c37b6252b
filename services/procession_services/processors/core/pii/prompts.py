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
"""Fields of messages and parts that say no text of the conversation."""
_OF_TOOLS: Final = frozenset({"args", "input", "result"})
"""Fields with a tool's own data, whose fields may have any name."""
_NONE: Final = frozenset[str]()
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
    mapped: _JsonT = _mapped(
        value, lambda text: pattern.sub(lambda found: tokens[found.group()], text), _NOT_TEXT
    )
    return mapped


def _mapped(value: Any, change: Callable[[str], str], kept: frozenset[str] = _NONE) -> Any:
    """The value with its strings changed, but those of the fields in `kept`; without such, names of fields as well."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(each, change, kept) for each in value]
    if not isinstance(value, dict):
        return value
    if not kept:
        return {change(key): _mapped(each, change) for key, each in value.items()}
    free = _OF_TOOLS | ({"value"} if value.get("type") in ("json", "error-json") else _NONE)
    return {
        key: each if key in kept else _mapped(each, change, _NONE if key in free else kept)
        for key, each in value.items()
    }
