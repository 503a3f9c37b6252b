"""`tool-search`: the model starts with two small helper tools and loads those it needs (builtins.md 25.1).

No model, no cost but one read of the store per step. What a conversation has loaded is kept in the tenant's store;
the helpers run in the tools service and carry what they need in their options.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from procession.args import InputStepArgs, InputStepResult, RequestContext
from procession.errors import TripWire
from procession.processor import Options, Processor
from procession.tools import Tool, ToolContext
from procession_schemas.agent import AnyTool, ToolRef
from procession_services.processors.core.tool_catalog import (
    HELPERS,
    LOAD,
    SEARCH,
    Catalog,
    Entry,
    Phase,
    SearchOptions,
    ToolRule,
    entries,
    load,
    search_answer,
    shortened,
    visible_loads,
)
from procession_services.processors.loaded import KeptOptions, LoadedNames, scope_of

__all__ = ["LoadTool", "SearchTools", "ToolSearch", "ToolSearchOptions"]

_FIND_AND_LOAD: Final = (
    f"More tools exist than those that you are shown. To find one, call {SEARCH} with words that describe what you "
    f"need. Then call {LOAD} with the exact names: `toolName` for one, `toolNames` for several. A loaded tool can be "
    "called from the next step on."
)
_FIND: Final = (
    f"More tools exist than those that you are shown. To find one, call {SEARCH} with words that describe what you "
    "need. The tools that it finds are loaded at once and can be called from the next step on."
)
_CATALOG: Final = "Tools that can be loaded:"


class ToolSearchOptions(KeptOptions):
    """Options of `tool-search`."""

    tools: dict[str, AnyTool] = Field(
        default_factory=dict,
        description="What can be loaded, by key: `{id, options?, description?, ...}` as `tools`.",
    )
    include_resolved_tools: bool = Field(
        default=False, description="The agent's own tools are withheld, and can be searched and loaded too."
    )
    inject_catalog: bool = Field(default=False, description="List all tools in a second system message.")
    search: SearchOptions = Field(default_factory=SearchOptions, description="How to search.")
    storage: Literal["in-memory", "context"] = Field(
        default="in-memory",
        description="`in-memory`: in the store, per thread. `context`: what the visible messages found or loaded.",
    )
    filter: list[ToolRule] = Field(
        default_factory=list, description="Rules by request context; every rule must permit a tool."
    )

    @model_validator(mode="after")
    def _something_to_find(self) -> "ToolSearchOptions":
        if "tools" not in self.model_fields_set and not self.include_resolved_tools:
            raise ValueError(
                "give `tools`, or set `includeResolvedTools`; otherwise there is nothing to find"
            )
        return self


class _HelperOptions(Options):
    """Options of the helper tools: made by the processor for each step."""

    catalog: list[Entry] = Field(default_factory=list, description="What can be found.")
    scope: str = Field(default="", description="Whose loaded tools these are: agent, and thread or run.")
    ttl: float | None = Field(default=None, description="Seconds that it is kept there.")
    filtered: bool = Field(default=False, description="Whether there is a filter.")
    hidden: list[str] = Field(default_factory=list, description="Keys that are not found.")
    refused: list[str] = Field(default_factory=list, description="Keys that are not loaded.")
    search: SearchOptions = Field(default_factory=SearchOptions, description="How to search.")
    offered: list[str] = Field(default_factory=list, description="Names that the step offers as loaded.")


class _Helper(Tool):
    """What the helpers have in common."""

    options_type = _HelperOptions

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.catalog = Catalog(self.options.catalog)

    def loaded(self, context: ToolContext) -> LoadedNames:
        """The names that are loaded."""
        options = self.options
        return LoadedNames(context.store, context.environment.now, ToolSearch.id, options.scope, options.ttl)

    async def have(self, context: ToolContext) -> set[str]:
        """The names that are loaded, and with `storage: context` those that messages in sight have loaded."""
        return {*self.options.offered, *await self.loaded(context).names()}


class SearchTools(_Helper):
    """`search_tools`: finds tools by words; with `autoLoad` it loads them too (R-TS-4, R-TS-6)."""

    id = SEARCH
    description = "Finds tools by words that describe what you need."
    parameters = {  # noqa: RUF012 - read only
        "type": "object",
        "properties": {"query": {"type": "string", "description": "Words such as `create issue`."}},
        "required": ["query"],
        "additionalProperties": False,
    }

    async def execute(self, args: Any, context: ToolContext) -> dict[str, Any]:
        """Returns `{results: [{name, description, score}], message}`."""
        options = self.options
        query, auto = args["query"], options.search.auto_load
        hidden = [*options.hidden, *options.refused] if auto else options.hidden  # D-112
        hits = self.catalog.rank(query, options.search, filtered=options.filtered, hidden=hidden)
        if auto:
            loaded, have = self.loaded(context), await self.have(context)
            await loaded.add(entry.name for entry, _ in hits if entry.name not in have)
        return search_answer(query, hits, loaded=auto)


class LoadTool(_Helper):
    """`load_tool`: loads tools by name (R-TS-5)."""

    id = LOAD
    description = "Loads tools by their exact names; they can be called from the next step on."
    parameters = {  # noqa: RUF012 - read only
        "type": "object",
        "properties": {
            "toolName": {"type": "string", "description": "One tool."},
            "toolNames": {"type": "array", "items": {"type": "string"}, "description": "Several tools."},
        },
        "additionalProperties": False,
    }

    async def execute(self, args: Any, context: ToolContext) -> dict[str, Any]:
        """Returns `{success, message, toolName}` for one name, `{success, loaded, notFound, ...}` for a list."""
        options, loaded = self.options, self.loaded(context)
        have = await self.have(context)
        done = load(args, self.catalog, have, filtered=options.filtered, refused=options.refused)
        await loaded.add(done.added)
        return done.answer


@dataclass(frozen=True, slots=True)
class _Known:
    """All tools that can be loaded: their refs by key, and their entries with and without descriptions."""

    refs: dict[str, dict[str, Any]]
    catalog: Catalog
    described: list[dict[str, str]]
    named: list[dict[str, str]]

    @property
    def keys(self) -> Iterable[str]:
        """The keys of the tools, in order."""
        return [entry["key"] for entry in self.named]


def _known(tools: Mapping[str, ToolRef], resolved: dict[str, dict[str, Any]]) -> _Known:
    listed = entries(tools, resolved)
    refs = {key: ref.shown() for key, ref in tools.items()}
    named = [{"key": entry.key, "name": entry.name} for entry in listed]
    described = [
        {**each, "description": entry.description} for each, entry in zip(named, listed, strict=True)
    ]
    return _Known({**resolved, **refs}, Catalog(listed), described, named)


class ToolSearch(Processor[ToolSearchOptions]):
    """Offers the helpers, the agent's own tools, and what this conversation has loaded (R-TS-1, R-TS-2)."""

    id = "tool-search"
    name = "Tool Search Processor"
    description = "Lets the model search for tools and load those it needs."

    def __init__(self, options: ToolSearchOptions) -> None:
        super().__init__(options)
        self._configured = _known(options.tools, {})

    def permits(self, name: str, tool: dict[str, Any], context: RequestContext, phase: Phase) -> bool:
        """Whether a tool may be found, loaded or offered; override it for a rule of your own (`filter`).

        One that raises counts as no (R-TS-9). By default every rule of the option `filter` must permit the tool.

        Args:
            name: The key of the tool.
            tool: `{"id", "as"?, "description"?, ...}` as configured.
            context: The request's data.
            phase: `search`, `load` or `active`.
        """
        names = dict.fromkeys((name, tool.get("as") or tool["id"]))
        return all(rule.permits(names, context, phase) for rule in self.options.filter)

    async def process_input_step(self, args: InputStepArgs) -> InputStepResult:
        """Explains the helpers, and returns the tools of this step."""
        options, resolved = self.options, self._resolved(args)
        known = _known(options.tools, resolved) if resolved else self._configured
        denied = self._denied(known, args)
        args.message_list.add_system(_FIND if options.search.auto_load else _FIND_AND_LOAD)
        if options.inject_catalog and (shown := _lines(known, denied.get("search", []))):
            args.message_list.add_system("\n".join([_CATALOG, "", *shown]))
        scope = f"{args.services.agent}:{scope_of(args)}"
        own = {name: ref for name, ref in args.tools.items() if name not in resolved}
        loaded = await self._names(args, scope)
        offered = _offered(loaded, known, denied.get("active", []), filtered=self._filtered)
        return {"tools": {**self._helpers(known, scope, denied, loaded), **own, **offered}}

    @property
    def _filtered(self) -> bool:
        return bool(self.options.filter) or type(self).permits is not ToolSearch.permits

    def _resolved(self, args: InputStepArgs) -> dict[str, dict[str, Any]]:
        """The step's own tools that are withheld."""
        if not self.options.include_resolved_tools:
            return {}
        return {name: ref for name, ref in args.tools.items() if name not in HELPERS}

    def _denied(self, known: _Known, args: InputStepArgs) -> dict[Phase, list[str]]:
        """The keys of tools that are denied, by phase."""
        if not self._filtered:
            return {}
        phases: tuple[Phase, ...] = ("search", "load", "active")
        return {
            phase: [key for key in known.keys if not self._permitted(key, known, args, phase)]
            for phase in phases
        }

    def _permitted(self, key: str, known: _Known, args: InputStepArgs, phase: Phase) -> bool:
        try:
            return self.permits(key, known.refs[key], args.request_context, phase)
        except TripWire:
            raise
        except Exception as error:  # noqa: BLE001 - R-TS-9: a filter that fails says no
            args.services.warn(f"the filter raised {type(error).__name__} for {key!r}")
            return False

    def _helpers(
        self, known: _Known, scope: str, denied: dict[Phase, list[str]], loaded: list[str]
    ) -> dict[str, dict[str, Any]]:
        """The refs of the helper tools, with all they need."""
        search = self.options.search
        shared: dict[str, Any] = {"scope": scope, "ttl": self.options.ttl_seconds, "filtered": self._filtered}
        shared["refused"] = denied.get("load", [])
        if self.options.storage == "context":  # else the helpers find them where they keep what they load
            shared["offered"] = loaded
        found = {"hidden": denied.get("search", []), "search": search.model_dump(by_alias=True)}
        helpers = {SEARCH: {"id": SEARCH, "options": {**shared, **found, "catalog": known.described}}}
        if not search.auto_load:
            helpers[LOAD] = {"id": LOAD, "options": {**shared, "catalog": known.named}}
        return helpers

    async def _names(self, args: InputStepArgs, scope: str) -> list[str]:
        """The names loaded so far, in order (R-TS-7, R-TS-8)."""
        services, ttl = args.services, self.options.ttl_seconds
        kept = LoadedNames(services.store, services.now, ToolSearch.id, scope, ttl)
        names = await kept.names()
        if self.options.storage != "context":
            return names
        seen = visible_loads(args.messages)
        waiting = [name for name in names if name not in seen]
        if waiting != names:
            await kept.keep(waiting)
        return [*seen, *waiting]


def _lines(known: _Known, denied: list[str]) -> list[str]:
    return [
        f"- `{entry['name']}`: {shortened(entry['description'])}".removesuffix(": ")
        for entry in known.described
        if entry["key"] not in denied
    ]


def _offered(
    names: list[str], known: _Known, denied: list[str], *, filtered: bool
) -> dict[str, dict[str, Any]]:
    """The loaded tools under the names by which they were loaded (R-TS-6)."""
    offered = {}
    for name in names:
        entry = known.catalog.find(name, filtered=filtered)
        if entry is not None and entry.key not in denied:
            offered[name] = {**known.refs[entry.key], "as": name}
    return offered
