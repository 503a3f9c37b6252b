"""What the chunk subject of a run may carry when services die and come back: for tests of those who read it."""

from typing import Any

from hypothesis import strategies as st

__all__ = ["batch", "histories"]

Batch = dict[str, Any]


def batch(seq: int, *texts: str, **more: Any) -> Batch:
    """A batch of text chunks."""
    chunks = [{"type": "text-delta", "payload": {"text": text}} for text in texts]
    return {"run": "r", "seq": seq, "chunks": chunks, **more}


@st.composite
def histories(draw: st.DrawFn, *, behind: bool = False, lossy: bool = False) -> tuple[list[Batch], str]:
    """The batches of several workers of rising fences, in the order of the stream, and the text that counts.

    Each takes back some of what the one before has said, who may go on for a while; `behind` all of that, as those do
    who do not say the same. Some come back when others have their work, and do as if it were still theirs. Where
    readers may be `lossy`, nobody has the numbers of others, and who takes something back says so twice.
    """
    counting: dict[int, str] = {}
    starts = {0}
    line: list[Batch] = []
    unsaid: list[list[Batch]] = []
    for fence in range(10, draw(st.integers(1, 4)) * 10 + 1, 10):
        following = max(counting, default=-1) + 1
        start = draw(st.sampled_from(sorted({*starts, *counting, following}))) if counting else 0
        first = (following if behind else start) + draw(st.integers(0, 5)) if counting else 0
        for rest in unsaid:
            while rest and ((rest[0]["fence"] % 10 == 0 and rest[0]["seq"] < start) or draw(st.booleans())):
                line.append(rest.pop(0))
        texts = [f"{fence}.{number} " for number in range(first, first + draw(st.integers(1, 8)))]
        counting = {number: text for number, text in counting.items() if number < start}
        counting |= dict(enumerate(texts, first))
        if fence > 10:
            line.append(batch(first, reset=start, fence=fence))
            if draw(st.booleans()):
                unsaid.append(_of_one_who_was_away(draw, start, first + 100 * lossy, fence - 5))
        starts = {start, *(earlier for earlier in starts if earlier < start)}
        unsaid.append(_cut(draw, first, texts, fence))
        if fence > 10 and (lossy or draw(st.booleans())):
            unsaid[-1][0]["reset"] = start
    while any(unsaid):
        line.append(draw(st.sampled_from([rest for rest in unsaid if rest])).pop(0))
    return line, "".join(counting[number] for number in sorted(counting))


def _of_one_who_was_away(draw: st.DrawFn, start: int, behind: int, fence: int) -> list[Batch]:
    first = behind + draw(st.integers(0, 9))
    texts = [f"stale.{number} " for number in range(first, first + draw(st.integers(1, 8)))]
    return [
        batch(first, reset=draw(st.integers(0 if first > start else start, first)), fence=fence),
        *_cut(draw, first, texts, fence),
    ]


def _cut(draw: st.DrawFn, first: int, texts: list[str], fence: int) -> list[Batch]:
    batches = []
    while texts:
        size = draw(st.integers(1, len(texts)))
        batches.append(batch(first, *texts[:size], fence=fence))
        first, texts = first + size, texts[size:]
    batches[-1]["end"] = True
    return batches
