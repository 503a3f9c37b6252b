"""Sends data of a run through JSON, as they travel between services."""

from math import isfinite
from typing import Any


class NotJsonError(TypeError):
    """A value has no JSON form; the message says where it is."""


def travelled(value: Any, where: str) -> Any:
    """Returns what is left of a value after a journey: a deep copy with lists for tuples.

    Args:
        value: Anything.
        where: The name of the value in the message.

    Raises:
        NotJsonError: It holds something that is not JSON, or a key that is no text.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [travelled(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise NotJsonError(f"{where} has the key {key!r}; keys are strings")
        return {key: travelled(item, f"{where}[{key!r}]") for key, item in value.items()}
    raise NotJsonError(
        f"{where} is {value!r:.80}, a {type(value).__name__}; JSON values travel, nothing else"
    )
