"""`workspace-instructions-processor`: a workspace's instructions as a system message at every step (R-SK-6)."""

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any, Final

from pydantic import Field

from procession.args import InputStepArgs
from procession.errors import InvalidOptionsError
from procession.message_list import MessageList
from procession.processor import Options, Processor
from procession_services.processors.workspace import Workspace

__all__ = ["WorkspaceInstructions", "WorkspaceInstructionsOptions"]

MAX_FILE: Final = 64 * 1024


class WorkspaceInstructionsOptions(Options):
    """Options of `workspace-instructions-processor`."""

    workspace: str | None = Field(
        default=None,
        description="A directory on the service's machine; its `file` is read at every step.",
    )
    file: str = Field(
        default="AGENTS.md",
        pattern=r"\.(md|mdc|txt)$",
        description="The text with the instructions, below the workspace; `.md`, `.mdc` or `.txt`.",
    )
    instructions: str | None = Field(
        default=None, description="The instructions themselves, instead of a file."
    )


class WorkspaceInstructions(Processor[WorkspaceInstructionsOptions]):
    """Adds the instructions to the system messages; what cannot be read ends the run."""

    id = "workspace-instructions-processor"
    name = "Workspace Instructions Processor"
    description = "Adds the instructions of a workspace to the system messages."

    def __init__(self, options: WorkspaceInstructionsOptions) -> None:
        super().__init__(options)
        own = type(self).instructions is not WorkspaceInstructions.instructions
        if not own and options.workspace is None and options.instructions is None:
            told = {"workspace": "give `workspace` (a directory) or `instructions` (a text)"}
            raise InvalidOptionsError(f"processor {self.id}: {told['workspace']}", told)

    def instructions(self, args: InputStepArgs) -> str | Awaitable[str | None] | None:  # noqa: ARG002 - for overriding
        """The instructions; override it for instructions of your own. May be `async def`."""
        return self._read()

    async def process_input_step(self, args: InputStepArgs) -> MessageList:
        """Adds the text, unless it is blank."""
        found: Any = self.instructions(args)
        text = await found if inspect.isawaitable(found) else found
        if text and text.strip():
            args.message_list.add_system(text)
        return args.message_list

    async def _read(self) -> str | None:
        options = self.options
        if options.instructions is not None or options.workspace is None:
            return options.instructions
        return await asyncio.to_thread(
            lambda: Workspace(options.workspace or ".").read(options.file, MAX_FILE)
        )
