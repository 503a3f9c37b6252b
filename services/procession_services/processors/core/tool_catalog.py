"""What a model can search and load: ranking, finding and suggesting tools (R-TS-3..5, R-TS-8). No I/O."""

import fnmatch
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import Field

from procession.processor import Options
from procession_schemas.agent import ToolRef
from procession_schemas.messages import Message
from procession_services.processors.core.bm25 import Index, query_tokens, rounded

SEARCH: Final = "search_tools"
LOAD: Final = "load_tool"
HELPERS: Final = (SEARCH, LOAD)
LONGEST: Final = 150
"""Characters of a description that the model is shown (R-TS-1)."""
SUGGESTIONS: Final = 3
_EQUAL_NAME: Final = 5
_PART_OF_NAME: Final = 2

Phase = Literal["search", "load", "active"]


class Entry(Options):
    """A tool that can be found: by its key in the map, and by its name."""

    key: str
    name: str
    description: str = ""


class SearchOptions(Options):
    """How `search_tools` searches."""

    top_k: int = Field(default=5, ge=1, description="Most results that a search returns.")
    min_score: float = Field(default=0, description="Results must score more than this.")
    auto_load: bool = Field(
        default=False, description="Load what was found at once; then there is no `load_tool`."
    )


class ToolRule(Options):
    """Allows or denies tools by what the request context says."""

    when: dict[str, Any] = Field(
        default_factory=dict,
        description="Request-context keys and their values; a list names several. The rule holds when all match.",
    )
    allow: list[str] | None = Field(
        default=None, description="Only these tools, by name or key; `*` and `?` as in file names."
    )
    deny: list[str] = Field(default_factory=list, description="Not these tools.")
    phases: list[Phase] = Field(
        default=["search", "load", "active"],
        description="What the rule applies to: finding, loading, offering tools.",
    )

    def permits(self, names: Iterable[str], context: Mapping[str, Any], phase: Phase) -> bool:
        """Whether the rule leaves a tool with these names alone."""
        if phase not in self.phases or not all(
            _is(context.get(key), value) for key, value in self.when.items()
        ):
            return True
        listed = list(names)
        return not _any(listed, self.deny) and (self.allow is None or _any(listed, self.allow))


def _is(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, list) else bool(value == wanted)


def _any(names: list[str], patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def entries(tools: Mapping[str, ToolRef], described: Mapping[str, Mapping[str, Any]]) -> list[Entry]:
    """The catalogue of configured tools, then of the step's own, whose names are their keys.

    A configured tool's name is its `as`, else its id, else its key where several have that id.
    """
    ids = Counter(ref.id for ref in tools.values())
    made = [
        Entry(
            key=key,
            name=ref.as_ or (ref.id if ids[ref.id] == 1 else key),
            description=ref.description or "",
        )
        for key, ref in tools.items()
    ]
    taken = {entry.key for entry in made}
    made += [
        Entry(key=name, name=name, description=ref.get("description") or "")
        for name, ref in described.items()
        if name not in taken
    ]
    return made


def shortened(description: str) -> str:
    """A description as lists show it: cut to 147 characters and three dots (R-TS-1)."""
    return description if len(description) <= LONGEST else description[: LONGEST - 3] + "..."


class Catalog:
    """Tools that can be searched and loaded; the index is made on the first search."""

    def __init__(self, listed: Sequence[Entry]) -> None:
        self._entries = listed
        self._index: Index | None = None

    def rank(
        self, query: str, options: SearchOptions, *, filtered: bool, hidden: Iterable[str] = ()
    ) -> list[tuple[Entry, float]]:
        """The best tools for a query with their scores (R-TS-4).

        Args:
            query: What the model asks.
            options: How many, and how good at least.
            filtered: Whether there is a filter, so that more candidates are looked at.
            hidden: Keys of the tools that it denies.
        """
        self._index = self._index or Index([f"{entry.name} {entry.description}" for entry in self._entries])
        hits = self._index.search(query)
        if not filtered:
            hits = hits[: 2 * options.top_k]
        words, denied = query_tokens(query), set(hidden)
        scored = [(self._entries[place], score) for place, score in hits]
        boosted = [(entry, score + _boost(entry.name.lower(), words)) for entry, score in scored]
        boosted.sort(key=lambda hit: -hit[1])
        kept = [(e, score) for e, score in boosted if score > options.min_score and e.key not in denied]
        return kept[: options.top_k]

    def find(self, asked: str, *, filtered: bool) -> Entry | None:
        """The tool of that key or name; the key is tried first, with a filter the name (R-TS-5)."""
        by_key = next((entry for entry in self._entries if entry.key == asked), None)
        by_name = next((entry for entry in self._entries if entry.name == asked), None)
        return (by_name or by_key) if filtered else (by_key or by_name)

    def suggest(self, asked: str, refused: Iterable[str]) -> list[str]:
        """Up to three names that contain the one asked for, or are contained in it."""
        denied = set(refused)
        names = [
            name for e in self._entries if e.key not in denied for name in dict.fromkeys((e.key, e.name))
        ]
        return similar(asked, names)


def similar(asked: str, names: Iterable[str]) -> list[str]:
    """The first three names that contain `asked` or are contained in it, whatever their case."""
    wanted = asked.lower()
    if not wanted:
        return []
    near = (name for name in names if wanted in name.lower() or (name and name.lower() in wanted))
    return list(dict.fromkeys(near))[:SUGGESTIONS]


def _boost(name: str, words: Iterable[str]) -> int:
    return sum(_EQUAL_NAME if word == name else _PART_OF_NAME for word in words if word in name)


# --- what the helper tools answer ----------------------------------------------------------------------


def search_answer(query: str, hits: Sequence[tuple[Entry, float]], *, loaded: bool) -> dict[str, Any]:
    """What `search_tools` returns."""
    results = [
        {"name": entry.name, "description": shortened(entry.description), "score": rounded(score)}
        for entry, score in hits
    ]
    if not results:
        message = f'No tool fits "{query}". Try other keywords.'
    elif loaded:
        names = ", ".join(entry.name for entry, _ in hits)
        message = f"{len(results)} tool(s) found and loaded, to be called from the next step on: {names}"
    else:
        message = f"{len(results)} tool(s) found. Load those you need with {LOAD}, by their exact names."
    return {"results": results, "message": message}


@dataclass(frozen=True, slots=True)
class Loading:
    """What `load_tool` returns, and the names to add to those loaded."""

    answer: dict[str, Any]
    added: list[str]


def load(
    args: Mapping[str, Any], catalog: Catalog, have: Iterable[str], *, filtered: bool, refused: Iterable[str]
) -> Loading:
    """What a call of `load_tool` does (R-TS-5): one name has a short answer, a list one by groups."""
    one, many = args.get("toolName"), args.get("toolNames")
    asked = list(dict.fromkeys([*(many or []), *([one] if one else [])]))
    if not asked:
        message = "Name what to load: `toolName`, or `toolNames` for several."
        return Loading({"success": False, "message": message}, [])
    denied, loaded = set(refused), set(have)
    known = [
        name for name in asked if (found := catalog.find(name, filtered=filtered)) and found.key not in denied
    ]
    added = [name for name in known if name not in loaded]
    if many is None:
        return Loading(_one(asked[0], known, added, catalog, denied), added)
    missing = [name for name in asked if name not in known]
    present = [name for name in known if name in loaded]
    groups = {"loaded": added, "notFound": missing, "alreadyLoaded": present}
    told = {"loaded": "Loaded, to be called from the next step on", "notFound": "Not found"}
    told["alreadyLoaded"] = "Loaded before"
    lines = [f"{told[group]}: {', '.join(names)}" for group, names in groups.items() if names]
    answer = {"success": not missing, "message": ". ".join(lines), "loadedCount": len(added)}
    return Loading(answer | {group: names for group, names in groups.items() if names}, added)


def _one(
    name: str, known: Sequence[str], added: Sequence[str], catalog: Catalog, denied: set[str]
) -> dict[str, Any]:
    if name not in known:
        near = catalog.suggest(name, denied)
        hint = f"Did you mean {', '.join(near)}? Else find tools" if near else "Find tools"
        message = f'There is no tool "{name}". {hint} with {SEARCH}.'
    elif name in added:
        message = f'"{name}" is loaded; it can be called from the next step on.'
    else:
        message = f'"{name}" was loaded before and can be called.'
    return {"success": name in known, "message": message, "toolName": name}


def visible_loads(messages: Iterable[Message]) -> list[str]:
    """The names that finished helper calls among the messages found or loaded (R-TS-8)."""
    names: list[str] = []
    for message in messages:
        for part in message["content"]["parts"]:
            call: Any = part.get("toolInvocation") or {}
            if call.get("state") == "result" and isinstance(call.get("result"), dict):
                given = _names(call.get("toolName"), call["result"])
                names += [name for name in given if isinstance(name, str)]
    return list(dict.fromkeys(names))


def _names(tool: Any, result: dict[str, Any]) -> list[Any]:
    if tool == SEARCH:
        return [hit.get("name") for hit in _list(result, "results") if isinstance(hit, dict)]
    if tool != LOAD:
        return []
    single = [result.get("toolName")] if result.get("success") is True else []
    return [*single, *_list(result, "loaded"), *_list(result, "alreadyLoaded")]


def _list(result: dict[str, Any], key: str) -> list[Any]:
    found = result.get(key)
    return found if isinstance(found, list) else []
