"""What changed between two texts, line by line, without any lines around it (R-WM-18)."""

from collections.abc import Iterator, Sequence
from typing import Final

_MOST: Final = 4_000_000
"""Cells of the table; beyond it everything between the equal ends counts as changed."""


def hunks(old: str, new: str) -> str:
    """The hunks of a unified diff: `@@ -start,count +start,count @@`, then `-` and `+` lines; empty where equal."""
    before, after = old.split("\n"), new.split("\n")
    told: list[str] = []
    for a, b, c, d in _changes(before, after):
        told.append(f"@@ -{_range(a, b)} +{_range(c, d)} @@")
        told += [f"-{line}" for line in before[a:b]]
        told += [f"+{line}" for line in after[c:d]]
    return "\n".join(told)


def _range(start: int, end: int) -> str:
    """First line and number of lines; an empty range names the line before it."""
    return f"{start + (end > start)},{end - start}"


def _changes(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """The differing stretches `old[a:b]` and `new[c:d]`, by a longest common subsequence."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    a, c = head, head
    for i, j in [*_common(old, new, head, tail), (len(old) - tail, len(new) - tail)]:
        if i > a or j > c:
            yield a, i, c, j
        a, c = i + 1, j + 1


def _common(old: Sequence[str], new: Sequence[str], head: int, tail: int) -> list[tuple[int, int]]:
    """The places of the lines that stay, between the equal ends."""
    rows, columns = len(old) - head - tail, len(new) - head - tail
    if rows * columns > _MOST:
        return []
    longest = [[0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            same = old[head + i] == new[head + j]
            longest[i][j] = longest[i + 1][j + 1] + 1 if same else max(longest[i + 1][j], longest[i][j + 1])
    found, i, j = [], 0, 0
    while i < rows and j < columns:
        if old[head + i] == new[head + j]:
            found.append((head + i, head + j))
            i, j = i + 1, j + 1
        elif longest[i + 1][j] >= longest[i][j + 1]:
            i += 1
        else:
            j += 1
    return found
