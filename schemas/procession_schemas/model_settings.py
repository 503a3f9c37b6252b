"""Settings of a model call: their names, and the form in which they travel."""

from collections.abc import Iterator, Mapping
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
"""All that there are (R-MS-1); the last three are the runtime's, and no provider sees them."""

_ELSEWHERE: Final = {
    "maxTokens": "maxOutputTokens",
    "maxCompletionTokens": "maxOutputTokens",
    "stop": "stopSequences",
}
"""What providers call some of them."""
_LIMITS: Final = ("totalMs", "stepMs", "firstChunkMs", "chunkMs")
"""What `timeout` may say by name."""
_NAMES: Final = {to_snake(name): name for name in (*SETTINGS, *_LIMITS)}


def setting_of(name: str) -> str | None:
    """The setting that is called so, here or by providers."""
    camel = to_camel(name)
    return camel if camel in SETTINGS else _ELSEWHERE.get(camel)


def unknown_settings(settings: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The names that there are not, those of limits of time included: their places, and what their author is told."""
    for name in settings:
        if name not in SETTINGS:
            yield (name,), f"unknown setting, which is not sent{_meant(name)}"
    limits = settings.get("timeout")
    for name in limits if isinstance(limits, Mapping) else ():
        if name not in _LIMITS:
            yield ("timeout", name), f"unknown limit; known: {', '.join(_LIMITS)}"


def retries_of(settings: Mapping[str, Any]) -> int | None:
    """What `maxRetries` says (R-MS-3); raises ValueError where that is no number of retries."""
    value = settings.get("maxRetries")
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise ValueError("maxRetries is a whole number, 0 or more")


def _meant(name: str) -> str:
    near = setting_of(name) or nearest(to_camel(name), SETTINGS)
    return f"; did you mean {near!r}?" if near else "; what one provider knows belongs in `providerOptions`"


def _known(settings: JsonObject) -> JsonObject:
    """The settings in the contract's spelling: what nobody reads would be a limit that does not hold."""
    named = _named(settings)
    if isinstance(limits := named.get("timeout"), Mapping):
        named["timeout"] = _named(limits)
    if (headers := named.get("headers")) is not None and not _are_headers(headers):
        raise ValueError("`headers` is an object of texts")
    return named


def _named(settings: Mapping[str, Any]) -> JsonObject:
    return {_NAMES.get(name, name): value for name, value in settings.items()}


def _are_headers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values())


ModelSettings = Annotated[JsonObject, AfterValidator(_known)]

__all__ = ["SETTINGS", "ModelSettings", "retries_of", "setting_of", "unknown_settings"]
