"""Skills: instructions with a name that a model can fetch when it needs them (builtins.md 25.2, 25.3). No I/O."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from xml.sax.saxutils import escape

import yaml

from procession.json_values import text as text_of
from procession_services.processors.core.bm25 import Index, rounded
from procession_services.processors.core.tool_catalog import shortened, similar

FILE: Final = "SKILL.md"
Format = Literal["xml", "json", "markdown"]
_FENCE: Final = "---"
_QUOTES: Final = {'"': "&quot;", "'": "&apos;"}
_FIELDS: Final = ("name", "description", "location", "source")


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill as it is listed.

    Attributes:
        name: What the model calls it; several skills may share it.
        description: When to use it.
        path: Its directory, relative to the workspace; tells skills of one name apart.
        source: Where it is from: `local`, `managed`, `external`, or a word of your own.
        text: Beginning of its instructions, for search.
    """

    name: str
    description: str
    path: str
    source: str = "local"
    text: str = ""

    @property
    def file(self) -> str:
        """The file with its instructions, which is also its default location."""
        return f"{self.path}/{FILE}"


class InvalidSkillError(ValueError):
    """A skill file without usable front matter."""


def parse(text: str, path: str) -> tuple[Skill, str]:
    """Reads a skill file: front matter with `name` and `description`, then the instructions.

    Raises:
        InvalidSkillError: The front matter is missing, unfinished or no mapping, or a field is no text.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].strip() != _FENCE:
        raise InvalidSkillError("has no front matter; begin it with `---`, `name:`, `description:`, `---`")
    end = next((i for i, line in enumerate(lines[1:], 1) if line.strip() == _FENCE), None)
    if end is None:
        raise InvalidSkillError("has front matter that does not end; close it with `---`")
    try:
        front = yaml.safe_load("\n".join(lines[1:end]))
    except Exception:  # noqa: BLE001 - what is no date, `!!bool x` and the like raise whatever
        raise InvalidSkillError("has front matter that is not YAML") from None
    if not isinstance(front, dict):
        raise InvalidSkillError("has front matter that is no mapping of names to values")
    name, description = front.get("name", path.rpartition("/")[2]), front.get("description", "")
    if not _is_text(name) or not name.strip() or not _is_text(description):
        raise InvalidSkillError("names itself or describes itself by something else than text")
    body = "\n".join(lines[end + 1 :]).strip()
    return Skill(name.strip(), description.strip(), path, text=body), body


def _is_text(value: Any) -> bool:
    """Whether it is text that can travel: YAML's escapes make half characters, too."""
    return isinstance(value, str) and text_of(value) == value


def by_path(skills: Iterable[Skill]) -> list[Skill]:
    """The skills by name, each path once (R-SK-3)."""
    unique = {skill.path: skill for skill in reversed(list(skills))}
    return sorted(unique.values(), key=lambda skill: (skill.name.casefold(), skill.name, skill.path))


# --- the catalogue -------------------------------------------------------------------------------------


def catalog(entries: Iterable[Mapping[str, str]], form: Format) -> str:
    """The list of skills that the model reads, by name (R-SK-3).

    Args:
        entries: `{"name", "description", "location", "source"}`.
        form: How to write them.
    """
    listed = [{field: entry[field] for field in _FIELDS} for entry in entries]
    listed.sort(key=lambda entry: (entry["name"].casefold(), entry["name"].swapcase()))
    return _WRITERS[form](listed)


def _xml(entries: Sequence[Mapping[str, str]]) -> str:
    lines = []
    for entry in entries:
        fields = [f"    <{name}>{escape(value, _QUOTES)}</{name}>" for name, value in entry.items()]
        lines += ["  <skill>", *fields, "  </skill>"]
    return "\n".join(["<available_skills>", "\n".join(lines), "</available_skills>"])


def _json(entries: Sequence[Mapping[str, str]]) -> str:
    return "Available Skills:\n\n" + json.dumps(entries, indent=2, ensure_ascii=False)


def _markdown(entries: Sequence[Mapping[str, str]]) -> str:
    lines = [f"- **{e['name']}** [{e['source']}] ({e['location']}): {e['description']}" for e in entries]
    return "# Available Skills\n\n" + "\n".join(lines)


_WRITERS: Final[dict[str, Callable[[Sequence[Mapping[str, str]]], str]]] = {
    "xml": _xml,
    "json": _json,
    "markdown": _markdown,
}


def guidance(*, by_location: bool) -> str:
    """What the model is told about using skills (R-SK-2)."""
    which = (
        "Where several have the same name, give the location instead of the name, which tells them apart."
        if by_location
        else "Give its name: skills are found by name only."
    )
    return (
        "Skills are instructions, not tools: never call a skill by its name. Where one fits the task, activate it "
        "with the tool `skill` and follow what it says; do so without asking first. "
        f"{which} Files that a skill mentions are read with the tool `skill_read`."
    )


# --- finding one ---------------------------------------------------------------------------------------


def matching(skills: Iterable[Skill], asked: str, aliases: Mapping[str, str]) -> list[Skill]:
    """The skills that somebody means: by location, alias, path, or name."""
    listed, path = list(skills), aliases.get(asked)
    exact = [skill for skill in listed if path == skill.path or asked in (skill.path, skill.file)]
    return exact or [skill for skill in listed if skill.name == asked]


def not_found(asked: str, skills: Iterable[Skill], how: str) -> str:
    """What the model is told about a skill that is not there."""
    near = similar(asked, [skill.name for skill in skills])
    return f'There is no skill "{asked}". ' + (f"Did you mean {', '.join(near)}?" if near else how)


class SkillIndex:
    """Skills that can be searched by name, description and instructions."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._skills = skills
        self._index = Index([f"{skill.name} {skill.description} {skill.text}" for skill in skills])

    def search(self, query: str) -> list[tuple[str, float]]:
        """Names and scores, best first; a name may come again."""
        return [(self._skills[place].name, score) for place, score in self._index.search(query)]


def search_answer(
    query: str, hits: Iterable[tuple[str, float]], skills: Iterable[Skill], top_k: int, min_score: float
) -> dict[str, Any]:
    """What `search_skills` returns: the first hit of each name (R-SK-5)."""
    described: dict[str, str] = {}
    for skill in skills:
        described.setdefault(skill.name, skill.description)
    best: dict[str, float] = {}
    for name, score in hits:
        if name in described and score > min_score:
            best.setdefault(name, score)
    results = [
        {"name": name, "description": shortened(described[name]), "score": rounded(score)}
        for name, score in list(best.items())[:top_k]
    ]
    if results:
        message = f"{len(results)} skill(s) found. Load those you need with load_skill, by their exact names."
    else:
        message = f'No skill fits "{query}". Try other keywords.'
    return {"results": results, "message": message}
