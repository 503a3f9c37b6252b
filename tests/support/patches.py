"""Applies the patches of `line_diff.hunks`, as whoever keeps the first text only has to."""


def patched(old: str, patch: str) -> str:
    """The text after a patch."""
    lines, at, made = old.split("\n"), 0, list[str]()
    for line in patch.split("\n") if patch else ():
        if line.startswith("@@"):
            start, count = (int(number) for number in line.split()[1][1:].split(","))
            first = start - (count > 0)
            made += lines[at:first]
            at = first
        elif line.startswith("-"):
            at += 1
        else:
            made.append(line[1:])
    return "\n".join([*made, *lines[at:]])
