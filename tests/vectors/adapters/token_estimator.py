"""`token-estimator.json`: the estimate of a text, or its beginning that is worth so many tokens."""

from typing import Any

from procession_services.processors.core.token_estimate import estimate, first_tokens, media_tokens

HALF = "\ufffd"
"""What the reference makes of half a character."""


async def observe(vector: dict[str, Any]) -> Any:
    """Counts, or cuts."""
    given, options = vector["input"], vector["options"]
    if "text" not in given:
        return {"tokens": media_tokens(given.get("data"), given.get("mediaType"))}
    if "tokens" in options:
        return {"text": first_tokens(given["text"], options["tokens"])}
    return {"tokens": estimate(given["text"])}


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """D-27: a cut between UTF-16 units leaves half a character; ours is between characters."""
    expected = vector["expected"].get("text")
    if expected is None or not expected.endswith(HALF):
        return None
    whole = expected[: -len(HALF)]
    cut_inside = vector["input"]["text"][len(whole) : len(whole) + 1] > "\uffff"
    return "D-27" if cut_inside and observed == {"text": whole} else None
