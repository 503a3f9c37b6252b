"""Texts that every implementation words for itself, written down in the recording's words.

This is the one place where a result is made equal to a recording on purpose; only wording changes here.

* The feedback of a rejected attempt (R-AB-29 fixes its content and place, and leaves the wording open).
* The message of a connection that broke. The scripts name one (`ECONNRESET`), but over HTTP a server cannot
  choose what the client's library says when it hangs up; any such message becomes the script's.
"""

import re
from typing import Any, Final

__all__ = ["recorded_words"]

_FEEDBACK: Final = re.compile(
    r"\[Processor feedback\] Your last answer was rejected: (?P<reason>.*?)\.? "
    r"Produce a new answer that takes this into account\.",
    re.DOTALL,
)
_RECORDED: Final = (
    "[Processor Feedback] Your previous response was not accepted: {}. "
    "Please try again with the feedback in mind."
)
_CONNECTION: Final = re.compile(
    r"disconnect|peer closed|incomplete chunked|connection (error|reset|closed|aborted|lost)|"
    r"broke off|ended before",
    re.IGNORECASE,
)
_PLACES: Final = ("message", "error", "threw", "rejected")


def recorded_words(value: Any, script: list[dict[str, Any]]) -> Any:
    """Returns a copy of a recording with such texts in the reference's words."""
    broken = _broken(script)
    return _reworded(value, broken)


def _broken(script: list[dict[str, Any]]) -> str | None:
    """The message of the first connection that the script breaks; None when it breaks none."""
    for call in script:
        error, middle = call.get("error") or {}, call.get("mid_error") or {}
        if error.get("network"):
            return str(error.get("message") or "connection reset")
        if middle.get("kind") == "drop":
            return str(middle.get("message") or "mid-stream error")
    return None


def _reworded(value: Any, broken: str | None, place: str = "") -> Any:
    if isinstance(value, str):
        if broken is not None and place in _PLACES and _CONNECTION.search(value):
            return broken
        return _FEEDBACK.sub(lambda match: _RECORDED.format(match["reason"]), value)
    if isinstance(value, list):
        return [_reworded(each, broken, place) for each in value]
    return {k: _reworded(v, broken, k) for k, v in value.items()} if isinstance(value, dict) else value
