"""Settings of a model call: their names, and the form in which they travel."""

import math
import re
from collections.abc import Container, Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator
from pydantic.alias_generators import to_camel, to_snake

from procession_schemas.base import JsonObject
from procession_schemas.nearest import nearest

SETTINGS: Final = (
    "temperature",
    "maxOutputTokens",
    "topP",
    "topK",
    "presencePenalty",
    "frequencyPenalty",
    "stopSequences",
    "seed",
    "maxRetries",
    "headers",
    "timeout",
)
"""All settings (R-MS-1); the last three are for the runtime, and no provider sees them."""

_ELSEWHERE: Final = {
    "maxTokens": "maxOutputTokens",
    "maxCompletionTokens": "maxOutputTokens",
    "stop": "stopSequences",
}
"""What providers call some of them."""
_LIMITS: Final = ("totalMs", "stepMs", "firstChunkMs", "chunkMs")
"""What `timeout` may say by name."""
_NUMBERS: Final = ("temperature", "topP", "presencePenalty", "frequencyPenalty")
_WHOLE_NUMBERS: Final = ("maxOutputTokens", "topK", "seed")
HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE: Final = re.compile(r"[^\r\n\0\ud800-\udfff]*")
_NAMES: Final = {to_snake(name): name for name in (*SETTINGS, *_LIMITS)}


def setting_of(name: str) -> str | None:
    """The setting with this name, whether ours or a provider's."""
    camel = to_camel(name)
    return camel if camel in SETTINGS else _ELSEWHERE.get(camel)


def unknown_settings(settings: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The names that do not exist, those of time limits included: their places, and what their author is told."""
    for name in settings:
        if name not in SETTINGS:
            yield (name,), f"unknown setting, which is not sent{_meant(name)}"
    limits = settings.get("timeout")
    for name in limits if isinstance(limits, Mapping) else ():
        if name not in _LIMITS:
            yield ("timeout", name), f"unknown limit; known: {', '.join(_LIMITS)}"


def misspelt(settings: Mapping[str, Any], *, but: Container[str] = ()) -> str:
    """The first name that does not exist, with its place and what its author is told; empty where all do.

    `but` are settings that somebody else has given.
    """
    unknown = ((place, told) for place, told in unknown_settings(settings) if place[0] not in but)
    return next((f"model_settings.{'.'.join(place)}: {told}" for place, told in unknown), "")


def retries_of(settings: Mapping[str, Any]) -> int | None:
    """The value of `maxRetries` (R-MS-3); raises ValueError if it is not a number of retries."""
    value = settings.get("maxRetries")
    if value is None or (_is_whole(value) and value >= 0):
        return value
    raise ValueError("maxRetries must be a whole number, 0 or more")


def _meant(name: str) -> str:
    near = setting_of(name) or nearest(to_camel(name), SETTINGS)
    return f"; did you mean {near!r}?" if near else "; an option of one provider belongs in `providerOptions`"


def _known(settings: JsonObject) -> JsonObject:
    """The settings in the contract's spelling: what nobody reads would be a limit that does not hold."""
    named = _named(settings)
    if isinstance(limits := named.get("timeout"), Mapping):
        named["timeout"] = _named(limits)
    if wrong := "; ".join(_misfits(named)):
        raise ValueError(wrong)
    return named


def _misfits(settings: Mapping[str, Any]) -> Iterator[str]:
    """What a provider could refuse only in the middle of a run, and what would be no limit of time."""
    given = {name: value for name, value in settings.items() if value is not None}
    for name in _NUMBERS:
        if not _is_number(given.get(name, 0)):
            yield f"`{name}` must be a number"
    for name in _WHOLE_NUMBERS:
        if not _is_whole(given.get(name, 0)):
            yield f"`{name}` must be a whole number"
    if not _are_stops(given.get("stopSequences", ())):
        yield "`stopSequences` must be an array of strings"
    if not _are_headers(given.get("headers", {})):
        yield "`headers` must be an object of strings, each of one line, with names that HTTP allows"
    limits = given.get("timeout", 0)
    times = limits if isinstance(limits, Mapping) else {"": limits}
    if not all(_is_time(time) for name, time in times.items() if name in ("", *_LIMITS)):
        yield f"`timeout` must be a number of milliseconds, or an object of such numbers: {', '.join(_LIMITS)}"


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_time(value: Any) -> bool:
    """Whether it is milliseconds; nothing, and 0, take a limit away that was given elsewhere."""
    return value is None or (_is_number(value) and value >= 0)


def _are_stops(value: Any) -> bool:
    """Whether it is an array of texts, or the only one."""
    return isinstance(value, str) or (
        isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    )


def _named(settings: Mapping[str, Any]) -> JsonObject:
    return {_NAMES.get(name, name): value for name, value in settings.items()}


def _are_headers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str)
        and isinstance(each, str)
        and HEADER_NAME.fullmatch(name)
        and HEADER_VALUE.fullmatch(each)
        for name, each in value.items()
    )


ModelSettings = Annotated[JsonObject, AfterValidator(_known)]

__all__ = [
    "HEADER_NAME",
    "HEADER_VALUE",
    "SETTINGS",
    "ModelSettings",
    "misspelt",
    "retries_of",
    "setting_of",
    "unknown_settings",
]
