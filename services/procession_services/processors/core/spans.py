"""Places in a text that are replaced: located, united, and put back into a message's parts (D-6, D-13)."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from procession.json_text import unescaped_with_places
from procession.messages import clone, refresh_flat
from procession_schemas.messages import Message


@dataclass(frozen=True, slots=True)
class Span:
    """A place, and what was found there: one thing or several that overlap."""

    start: int
    end: int
    found: tuple[Any, ...]


def located(text: str, start: float, end: float, value: str) -> list[tuple[int, int]]:
    """Where a detection is that somebody reports with a position and a value.

    The position counts as far as it lies in the text. Where the text there is not the value, all places of the value
    count too. Where neither says a place, it is the whole text: what cannot be located must not leak.
    """
    begin, stop = max(int(start), 0), min(int(end), len(text))
    places = [(begin, stop)] if begin < stop else []
    if text[begin:stop] != value:
        places += occurrences(text, value, re.escape)
    return places or ([(0, len(text))] if text else [])


def occurrences(text: str, value: str, pattern: Callable[[str], str]) -> list[tuple[int, int]]:
    r"""Where a value stands that a model reports, with the pattern for it.

    Models do not always copy capitals and white space: both may differ where the very value is not there. Of JSON they
    may report what a string means, such as `é` for `\u00e9`.
    """
    if not value.strip():
        return []
    alike = "(?i)" + pattern(" ".join(value.split())).replace("\\ ", r"\s+")

    def found(seen: str) -> list[tuple[int, int]]:
        return _matched(pattern(value), seen) or _matched(alike, seen)

    if (places := found(text)) or "\\" not in text:
        return places
    meant, at = unescaped_with_places(text)
    return [(at[start], at[end]) for start, end in found(meant)]


def _matched(pattern: str, text: str) -> list[tuple[int, int]]:
    return [found.span() for found in re.finditer(pattern, text)]


def united(spans: Iterable[Span]) -> list[Span]:
    """The spans in order; those that overlap are one."""
    out: list[Span] = []
    for span in sorted(spans, key=lambda each: (each.start, -each.end)):
        if out and span.start < out[-1].end:
            last = out[-1]
            out[-1] = Span(last.start, max(last.end, span.end), (*last.found, *span.found))
        else:
            out.append(span)
    return out


def replaced(text: str, spans: Sequence[Span], rewrite: Callable[[Span, str], str]) -> str:
    """The text with each of these united spans rewritten."""
    return "".join(_pieces(text, spans, rewrite, 0, len(text)))


def replaced_in_parts(
    message: Message, spans: Sequence[Span], rewrite: Callable[[Span, str], str]
) -> Message:
    """A copy with the spans of its joined text parts rewritten; other parts keep their place (D-6).

    What a span becomes stands in the part where it begins. Text parts that lose all their text go.
    """
    copy = clone(message)
    content = cast("dict[str, Any]", copy["content"])
    text = joined_text(copy)
    parts: list[dict[str, Any]] = []
    place = 0
    for part in content["parts"]:
        if part["type"] == "text":
            end = place + len(part["text"])
            left = "".join(_pieces(text, spans, rewrite, place, end))
            place = end
            if not left and part["text"]:
                continue
            part["text"] = left
        parts.append(part)
    content["parts"] = parts
    refresh_flat(copy)
    return copy


def joined_text(message: Message) -> str:
    """The text parts of a message without anything between them (R-COM-13)."""
    return "".join(part["text"] for part in message["content"].get("parts", ()) if part["type"] == "text")


def _pieces(
    text: str, spans: Sequence[Span], rewrite: Callable[[Span, str], str], start: int, end: int
) -> Iterable[str]:
    """What `text[start:end]` becomes."""
    place = start
    for span in spans:
        if span.end <= start or span.start >= end:
            continue
        yield text[place : max(span.start, place)]
        if span.start >= start:
            yield rewrite(span, text[span.start : span.end])
        place = max(place, span.end)
    yield text[min(place, end) : end]
