"""A demonstration tool: the weather of a city, made up, but always the same."""

import zlib
from typing import Annotated, Any, Literal

from pydantic import Field

from procession.tools import tool

_SKIES = ("clear", "partly cloudy", "overcast", "light rain", "showers", "snow", "fog", "thunderstorm")
_SNOW, _WARMEST_SNOW = _SKIES.index("snow"), 2


@tool
def weather(
    city: Annotated[str, Field(min_length=1, max_length=200, description="Name of the city.")],
    unit: Annotated[Literal["celsius", "fahrenheit"], Field(description="Of the temperature.")] = "celsius",
) -> dict[str, Any]:
    """Tells the current weather of a city (demonstration data, the same for the same city)."""
    seed = zlib.crc32(city.strip().casefold().encode())
    celsius = seed % 46 - 8
    sky = seed // 46 % len(_SKIES)
    if sky == _SNOW and celsius > _WARMEST_SNOW:
        sky = 0
    return {
        "city": city.strip(),
        "temperature": celsius if unit == "celsius" else round(celsius * 9 / 5 + 32),
        "unit": unit,
        "conditions": _SKIES[sky],
        "humidity": 30 + seed // 368 % 66,
        "source": "demonstration data",
    }
