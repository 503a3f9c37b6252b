"""Names with their place, so that an unordered set gives them back in order."""

from collections.abc import Iterable


def numbered(now: float, names: Iterable[str]) -> list[str]:
    """Names as members of a set: in their order, behind those of earlier times; `now` in seconds."""
    return [f"{int(now * 1000)}.{place} {name}" for place, name in enumerate(names)]


def ordered(members: Iterable[str]) -> list[str]:
    """The names of a set, each once, by time and place."""
    split = [member.partition(" ") for member in members]
    placed = sorted((tuple(int(n) for n in place.split(".")), name) for place, _, name in split)
    return list(dict.fromkeys(name for _, name in placed))
