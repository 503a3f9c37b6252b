"""`skill-search`: the model searches for skills and loads those it needs into its context (builtins.md 25.3).

No model; one read of the store per step, and one of each loaded skill's file. The helpers run in the tools service.
"""

from typing import Any, Final

from pydantic import Field

from procession.args import InputStepArgs, InputStepResult
from procession.errors import TripWire
from procession.processor import Options
from procession.tools import Tool, ToolContext
from procession_services.processors.core.skills import (
    Skill,
    SkillIndex,
    matching,
    not_found,
    search_answer,
)
from procession_services.processors.loaded import KeptOptions, LoadedNames, scope_of
from procession_services.processors.skill_sources import (
    ConfiguredSkills,
    SkillOptions,
    SkillProcessor,
    SkillSource,
    SourceOptions,
)

__all__ = ["LoadSkill", "SearchSkills", "SkillSearch", "SkillSearchOptions"]

SEARCH: Final = "search_skills"
LOAD: Final = "load_skill"
_HELP: Final = (
    f"Skills are instructions for certain tasks. To find one, call {SEARCH} with words that describe the task; then "
    f"call {LOAD} with its exact name. From the next step on its instructions are part of your context."
)


class SkillSearchTuning(Options):
    """How `search_skills` searches."""

    top_k: int = Field(default=5, ge=1, description="Most results that a search returns.")
    min_score: float = Field(default=0, description="Results must score more than this.")


class SkillSearchOptions(KeptOptions, SkillOptions):
    """Options of `skill-search`."""

    search: SkillSearchTuning = Field(default_factory=SkillSearchTuning, description="How to search.")


class _HelperOptions(SourceOptions):
    """Options of the helper tools: made by the processor for each step."""

    search: SkillSearchTuning = Field(default_factory=SkillSearchTuning, description="How to search.")
    scope: str = Field(default="", description="Whose loaded skills these are: agent, and thread or run.")
    ttl: float | None = Field(default=None, description="Seconds that they are kept.")


class _Helper(Tool):
    """What the helpers have in common."""

    options_type = _HelperOptions

    def source(self) -> SkillSource:
        """The skills, as they are now."""
        return ConfiguredSkills(self.options)


class SearchSkills(_Helper):
    """`search_skills`: finds skills by words (R-SK-5)."""

    id = SEARCH
    description = "Finds skills by words that describe the task."
    parameters = {  # noqa: RUF012 - read only
        "type": "object",
        "properties": {"query": {"type": "string", "description": "Words such as `fill in a form`."}},
        "required": ["query"],
        "additionalProperties": False,
    }

    async def execute(self, args: Any, context: ToolContext) -> dict[str, Any]:  # noqa: ARG002 - a tool's signature
        """Returns `{results: [{name, description, score}], message}`."""
        skills, search = await self.source().available(), self.options.search
        hits = self.hits(args["query"], skills)
        return search_answer(args["query"], hits, skills, search.top_k, search.min_score)

    def hits(self, query: str, skills: list[Skill]) -> list[tuple[str, float]]:
        """Names and scores, best first, a name perhaps more than once; override it for a search of your own."""
        return SkillIndex(skills).search(query)


class LoadSkill(_Helper):
    """`load_skill`: loads a skill by name (R-SK-5)."""

    id = LOAD
    description = (
        "Loads a skill by its exact name; its instructions are in your context from the next step on."
    )
    parameters = {  # noqa: RUF012 - read only
        "type": "object",
        "properties": {"skillName": {"type": "string", "description": "The skill."}},
        "required": ["skillName"],
        "additionalProperties": False,
    }

    async def execute(self, args: Any, context: ToolContext) -> dict[str, Any]:
        """Returns `{success, message, skillName}`, without the name where there is no such skill."""
        name, options = args["skillName"], self.options
        loaded = LoadedNames(
            context.store, context.environment.now, SkillSearch.id, options.scope, options.ttl
        )
        if name in await loaded.names():
            return {"success": True, "message": f'The skill "{name}" was loaded before.', "skillName": name}
        skills = await self.source().available()
        if not any(skill.name == name for skill in skills):
            return {"success": False, "message": not_found(name, skills, f"Find skills with {SEARCH}.")}
        await loaded.add([name])
        message = f'The skill "{name}" is loaded; its instructions are in your context from the next step on.'
        return {"success": True, "message": message, "skillName": name}


class SkillSearch(SkillProcessor[SkillSearchOptions]):
    """Offers the helpers, and shows the skills that this conversation has loaded (R-SK-4)."""

    id = "skill-search"
    name = "Skill Search Processor"
    description = "Lets the model search for skills and load those it needs."

    async def process_input_step(self, args: InputStepArgs) -> InputStepResult | None:
        """Adds what is loaded to the system messages, and the helpers to the tools."""
        source = self.source(args)
        skills = await self.read(source, args)
        if not skills:
            return None
        args.message_list.add_system(_HELP)
        ttl = self.options.ttl_seconds
        scope = f"{args.services.agent}:{scope_of(args)}"
        loaded = LoadedNames(args.services.store, args.services.now, SkillSearch.id, scope, ttl)
        for name in await loaded.names():
            await _show(name, source, skills, args)
        given = self.options.model_dump(by_alias=True, include={"workspace", "skills", "search"})
        options = {**given, "scope": scope, "ttl": ttl}
        helpers = {name: {"id": name, "options": options} for name in (SEARCH, LOAD)}
        for name in helpers.keys() & args.tools.keys():
            args.services.warn(f"the helper tool {name} replaces the agent's tool of that name")
        return {"tools": {**args.tools, **helpers}}


async def _show(name: str, source: SkillSource, skills: list[Skill], args: InputStepArgs) -> None:
    """Adds the instructions of a loaded skill; one that is gone is left out with a warning."""
    for skill in matching(skills, name, {})[:1]:
        try:
            text = await source.instructions(skill)
        except TripWire:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a source of an author raises
            args.services.warn(f"a loaded skill could not be read: {type(error).__name__}")
        else:
            args.message_list.add_system(f"[Skill: {name}]\n\n{text}")
