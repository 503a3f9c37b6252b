"""Where skills come from: options, and a directory of the machine on which a service runs."""

import asyncio
from typing import Protocol, TypeVar

from pydantic import Field, model_validator

from procession.args import InputStepArgs
from procession.errors import TripWire
from procession.processor import Options, Processor
from procession_services.processors.core.skills import FILE, InvalidSkillError, Skill, by_path, parse
from procession_services.processors.workspace import NoWorkspaceError, Workspace, WorkspaceError

__all__ = [
    "ConfiguredSkills", "InlineSkill", "SkillOptions", "SkillProcessor", "SkillSource", "SourceOptions",
]  # fmt: skip

MAX_SKILLS = 500
MAX_FILE = 256 * 1024
"""Bytes of a skill file, and of a file that it brings."""
MAX_FILES = 100
HEAD = 16 * 1024
"""Bytes of a skill file that are read to list and to search it."""


class InlineSkill(Options):
    """A skill in the configuration itself."""

    name: str = Field(min_length=1, description="What the model calls it.")
    description: str = Field(default="", description="When to use it.")
    instructions: str = Field(default="", description="What the model is told when it activates the skill.")
    path: str | None = Field(
        default=None, description="Tells skills with the same name apart; default: `skills/NAME`."
    )
    source: str = Field(default="local", description="Shown in the catalogue.")
    files: dict[str, str] = Field(default_factory=dict, description="Texts that `skill_read` gives, by path.")

    def listed(self) -> Skill:
        """The skill as it is listed."""
        path = self.path or f"skills/{self.name}"
        return Skill(self.name, self.description, path, self.source, self.instructions[:HEAD])


class SourceOptions(Options):
    """Options that say where skills come from."""

    workspace: str | None = Field(
        default=None, description="A directory with `SKILL.md` files on the machines of the services."
    )
    skills: list[InlineSkill] = Field(default_factory=list, description="Skills given here.")


class SkillOptions(SourceOptions):
    """Options of what shows skills to a model: at least one place must be given."""

    blocking_refresh: bool = Field(
        default=False, description="The first step waits until the workspace has been looked through again."
    )

    @model_validator(mode="after")
    def _one(self) -> "SkillOptions":
        if self.workspace is None and "skills" not in self.model_fields_set:
            raise ValueError("give `workspace` (a directory) or `skills` (a list)")
        return self


class SkillSource(Protocol):
    """What skill processors read; give your own by overriding their method `source`."""

    async def refresh(self) -> None:
        """Looks for skills again."""

    async def available(self) -> list[Skill]:
        """The skills, by name, each path once."""

    async def instructions(self, skill: Skill) -> str:
        """What the skill says; raises WorkspaceError where it is gone."""

    def register_alias(self, location: str, path: str) -> bool:
        """Notes another location of a skill; False where that cannot be looked up."""


async def _refresh(source: SkillSource, args: InputStepArgs) -> None:
    try:
        await source.refresh()
    except TripWire:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a source of an author raises
        args.services.warn(f"skills could not be refreshed: {_told(error)}")


def _told(error: Exception) -> str:
    """What is logged of an error: others than those about the workspace itself might quote the conversation."""
    return str(error) if isinstance(error, NoWorkspaceError) else type(error).__name__


async def _refresh_behind(source: SkillSource, args: InputStepArgs) -> None:
    try:
        await _refresh(source, args)
    except TripWire:
        args.services.warn(
            "a refresh of the skills aborted in the background; with blockingRefresh it would end the run"
        )


class ConfiguredSkills:
    """The skills that options name."""

    def __init__(self, options: SourceOptions, aliases: dict[str, str] | None = None) -> None:
        self._options = options
        self._inline = {skill.listed().path: skill for skill in reversed(options.skills)}
        self._found: list[Skill] | None = None
        self.aliases = dict(aliases or {})

    async def refresh(self) -> None:
        """Looks through the workspace again; raises WorkspaceError when it is not a directory that may be read."""
        self._found = await asyncio.to_thread(self._scan)

    async def available(self) -> list[Skill]:
        """The skills; the workspace is looked through on first use."""
        if self._found is None:
            await self.refresh()
        return by_path([*(skill.listed() for skill in self._options.skills), *(self._found or [])])

    async def instructions(self, skill: Skill) -> str:
        """What the skill says, as it is now; raises WorkspaceError."""
        if skill.path in self._inline:
            return self._inline[skill.path].instructions
        text = await asyncio.to_thread(self._workspace().read, skill.file, MAX_FILE)
        try:
            return parse(text, skill.path)[1]
        except InvalidSkillError as error:
            raise WorkspaceError(f"{skill.file!r} {error}") from None

    async def read(self, skill: Skill, path: str) -> str:
        """A file of the skill, by its path within; raises WorkspaceError. Hidden files do not count."""
        if _hidden(path):
            raise WorkspaceError(f"there is no file {path!r} in the skill")
        inline = self._inline.get(skill.path)
        if inline is None:
            return await asyncio.to_thread(self._workspace().below(skill.path).read, path, MAX_FILE)
        if path == FILE:
            return inline.instructions
        if path not in inline.files:
            raise WorkspaceError(f"there is no file {path!r} in the skill")
        return inline.files[path]

    async def files(self, skill: Skill) -> list[str]:
        """The files of the skill beside its instructions."""
        inline = self._inline.get(skill.path)
        if inline is not None:
            return sorted(inline.files)
        names = await asyncio.to_thread(self._workspace().names, skill.path, MAX_FILES)
        return [name for name in names if name != FILE and not _hidden(name)]

    def register_alias(self, location: str, path: str) -> bool:
        """Notes another location of a skill."""
        self.aliases[location] = path
        return True

    def _workspace(self) -> Workspace:
        return Workspace(self._options.workspace or ".")

    def _scan(self) -> list[Skill]:
        if self._options.workspace is None:
            return []
        workspace, found = self._workspace(), []
        for path in workspace.find(FILE):
            try:
                found.append(parse(workspace.head(f"{path}/{FILE}", HEAD), path)[0])
            except (InvalidSkillError, WorkspaceError):
                continue  # one file that is no skill must not hide the others
            if len(found) == MAX_SKILLS:
                break
        return found


SkillsT = TypeVar("SkillsT", bound=SkillOptions)


class SkillProcessor(Processor[SkillsT]):
    """Shows skills to a model. What goes wrong with them is a warning, and no skills (builtins.md 2: it fails open)."""

    def __init__(self, options: SkillsT) -> None:
        super().__init__(options)
        self._source = ConfiguredSkills(options)
        self._refreshing: set[asyncio.Task[None]] = set()

    def source(self, args: InputStepArgs) -> SkillSource:  # noqa: ARG002 - for overriding
        """Where this request's skills come from; override it for a source of your own."""
        return self._source

    async def read(self, source: SkillSource, args: InputStepArgs) -> list[Skill]:
        """The skills. The first step of a run has the source look again, and may wait for that (R-SK-1)."""
        wait = self.options.blocking_refresh
        if args.step_number == 0:
            task = asyncio.create_task((_refresh if wait else _refresh_behind)(source, args))
            self._refreshing.add(task)
            task.add_done_callback(self._refreshing.discard)
            if wait:
                await task
        try:
            return await source.available()
        except TripWire:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a source of an author raises
            args.services.warn(f"skills could not be listed: {_told(error)}")
            return []


def _hidden(path: str) -> bool:
    return any(part.startswith(".") and part not in (".", "..") for part in path.split("/"))
