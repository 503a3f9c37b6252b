"""`skills-processor`: tells the model which skills there are; it fetches those it needs (builtins.md 25.2).

No model. Two system messages at every step, and the tools `skill` and `skill_read`, which run in the tools service:
a workspace must be the same directory there and in the input processors' service.
"""

from typing import Any, Final

from pydantic import Field

from procession.args import InputStepArgs, InputStepResult
from procession.tools import Tool, ToolContext
from procession_services.processors.core.skills import Format, Skill, catalog, guidance, matching, not_found
from procession_services.processors.skill_sources import (
    ConfiguredSkills,
    SkillOptions,
    SkillProcessor,
    SourceOptions,
)
from procession_services.processors.workspace import WorkspaceError

__all__ = ["SkillReadTool", "SkillTool", "Skills", "SkillsOptions"]

SHOWN: Final = 64_000
"""Characters of a file that one call of `skill_read` returns."""
_HOW: Final = "The catalogue of skills has the names."


class SkillsOptions(SkillOptions):
    """Options of `skills-processor`."""

    format: Format = Field(default="xml", description="How the catalogue is written.")


class SkillToolOptions(SourceOptions):
    """Options of `skill` and `skill_read`: made by the processor."""

    aliases: dict[str, str] = Field(default_factory=dict, description="Paths of skills by other locations.")


class _SkillTool(Tool):
    """What the two tools have in common."""

    options_type = SkillToolOptions

    async def find(self, asked: str) -> tuple[ConfiguredSkills, Skill]:
        """The one skill that is meant; raises WorkspaceError where the question names none, or several."""
        source = ConfiguredSkills(self.options, self.options.aliases)
        listed = await source.available()
        found = matching(listed, asked, source.aliases)
        if len(found) == 1:
            return source, found[0]
        if not found:
            raise WorkspaceError(not_found(asked, listed, _HOW))
        places = ", ".join(skill.file for skill in found)
        raise WorkspaceError(f'There are several skills "{asked}". Name one by its location: {places}.')


class SkillTool(_SkillTool):
    """`skill`: gives the instructions of a skill."""

    id = "skill"
    description = "Activates a skill: gives its instructions and the names of its files."
    parameters = {  # noqa: RUF012 - read only
        "type": "object",
        "properties": {"name": {"type": "string", "description": "Name or location of the skill."}},
        "required": ["name"],
        "additionalProperties": False,
    }

    async def execute(self, args: Any, context: ToolContext) -> dict[str, Any]:  # noqa: ARG002 - a tool's signature
        """Returns `{success, name, location, instructions, files}`, or `{success: false, message}`."""
        try:
            source, skill = await self.find(args["name"])
            text, files = await source.instructions(skill), await source.files(skill)
        except WorkspaceError as error:
            return {"success": False, "message": str(error)}
        told = {"name": skill.name, "location": skill.file, "instructions": text, "files": files}
        return {"success": True, **told}


class SkillReadTool(_SkillTool):
    """`skill_read`: gives a file of a skill."""

    id = "skill_read"
    description = "Reads a file that a skill brings, by its path within the skill."
    parameters = {  # noqa: RUF012 - read only
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Name or location of the skill."},
            "path": {"type": "string", "description": "Such as `references/api.md`."},
            "startLine": {"type": "integer", "minimum": 1, "description": "First line; default: 1."},
        },
        "required": ["name", "path"],
        "additionalProperties": False,
    }

    async def execute(self, args: Any, context: ToolContext) -> dict[str, Any]:  # noqa: ARG002 - a tool's signature
        """Returns `{success, content, truncated}`, or `{success: false, message}`."""
        try:
            source, skill = await self.find(args["name"])
            text = await source.read(skill, args["path"])
        except WorkspaceError as error:
            return {"success": False, "message": str(error)}
        lines = text.splitlines(keepends=True)
        rest = "".join(lines[args.get("startLine", 1) - 1 :])
        return {"success": True, "content": rest[:SHOWN], "truncated": len(rest) > SHOWN}


class Skills(SkillProcessor[SkillsOptions]):
    """Lists the skills in the system messages of every step (R-SK-1..3)."""

    id = "skills-processor"
    name = "Skills Processor"
    description = "Tells the model which skills it can activate."

    def format_location(self, skill: Skill) -> str:
        """The location that the catalogue shows; override it for one of your own (`formatLocation`)."""
        return skill.file

    async def process_input_step(self, args: InputStepArgs) -> InputStepResult | None:
        """Adds catalogue and guidance, and the tools; nothing where there are no skills."""
        source = self.source(args)
        skills = await self.read(source, args)
        if not skills:
            return None
        aliases, by_location, entries = {}, True, []
        for skill in skills:
            location = self.format_location(skill)
            if location != skill.file:
                aliases[location] = skill.path
                by_location = source.register_alias(location, skill.path) and by_location
            told = {"name": skill.name, "description": skill.description}
            entries.append({**told, "location": location, "source": skill.source})
        args.message_list.add_system(catalog(entries, self.options.format))
        args.message_list.add_system(guidance(by_location=by_location))
        given = self.options.model_dump(by_alias=True, include={"workspace", "skills"})
        tools = {
            tool.id: {"id": tool.id, "options": {**given, "aliases": aliases}}
            for tool in (SkillTool, SkillReadTool)
        }
        return {"tools": {**tools, **args.tools}}
