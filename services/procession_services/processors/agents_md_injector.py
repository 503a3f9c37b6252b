"""`agents-md-injector`: tells the model what the instruction file nearest to what its tools touch says (R-AMD).

No model, no cost. Input step only. The files are those of the machine that runs the input processors.
"""

import asyncio
from collections.abc import Collection, Iterable
from typing import Final

from pydantic import Field

from procession.args import InputStepArgs
from procession.processor import Options, Processor
from procession_services.processors.core.instruction_files import (
    REMINDER,
    FileReader,
    absolute,
    announced,
    file_for,
    shortened,
    touched,
)
from procession_services.processors.workspace import Workspace, WorkspaceError

__all__ = ["AgentsMDInjector", "AgentsMDInjectorOptions", "FileReader", "WorkspaceFiles"]

MAX_FILE: Final = 256 * 1024
"""Bytes of a file that are looked at."""


class AgentsMDInjectorOptions(Options):
    """Options of `agents-md-injector`."""

    workspace: str = Field(
        default=".",
        description="A directory on the service's machine; nothing outside it is read (D-79).",
    )
    max_tokens: int = Field(default=1000, ge=1, description="Estimated tokens of a file that are shown.")
    reminder_text: str | None = Field(
        default=None, description="Shown instead of a file that is blank or unreadable."
    )
    ignored_paths: list[str] = Field(
        default_factory=list, description="Instruction files that are never shown; relative to the workspace."
    )


class WorkspaceFiles:
    """The files of a workspace; raises WorkspaceError where there is no such workspace."""

    def __init__(self, workspace: str) -> None:
        self._workspace = Workspace(workspace)
        self.root = str(self._workspace.root)

    def exists(self, path: str) -> bool:
        """Whether there is such a regular file in the workspace."""
        try:
            self._workspace.head(path, 0)
        except WorkspaceError:
            return False
        return True

    def is_directory(self, path: str) -> bool:
        """Whether there is such a directory in the workspace."""
        try:
            return self._workspace.below(path).root.is_dir()
        except WorkspaceError:
            return False

    def read(self, path: str) -> str:
        """The beginning of a file; raises OSError where it may not be read."""
        try:
            return self._workspace.head(path, MAX_FILE)
        except WorkspaceError as error:
            raise OSError(str(error)) from error


class AgentsMDInjector(Processor[AgentsMDInjectorOptions]):
    """Sends one signal a step, for the newest tool call whose instruction file the model does not know yet.

    Override `is_enabled`, `ignored` and `reader` for what the options cannot say.
    """

    id = "agents-md-injector"
    name = "Agents.md Injector"
    description = "Shows the model the instruction files that belong to the files its tools touch."
    on_error = "skip"

    def is_enabled(self, args: InputStepArgs) -> bool:  # noqa: ARG002 - for overriding
        """Whether it does anything in this step."""
        return True

    def ignored(self, args: InputStepArgs) -> Collection[str]:  # noqa: ARG002 - for overriding
        """Instruction files that are not told."""
        return self.options.ignored_paths

    def reader(self, args: InputStepArgs) -> FileReader:  # noqa: ARG002 - for overriding
        """Where the files are; it is made and used in a thread."""
        return WorkspaceFiles(self.options.workspace)

    async def process_input_step(self, args: InputStepArgs) -> None:
        """Sends the reminder, where there is one to send (R-AMD-1..4)."""
        if not self.is_enabled(args):
            return
        messages = args.message_list.get.all.db()
        paths = list(dict.fromkeys(touched(messages)))
        if not paths:
            return
        told = {*announced(messages), *self.ignored(args)}
        found = await asyncio.to_thread(lambda: self._find(paths, told, self.reader(args)))
        if found is None:
            return
        path, text = found
        await args.services.send_signal(
            {
                "type": "reactive",
                "tagName": "system-reminder",
                "contents": text,
                "attributes": {"type": REMINDER, "path": path},
                "metadata": {"path": path, "type": REMINDER},
            }
        )

    def _find(self, paths: Iterable[str], told: Iterable[str], reader: FileReader) -> tuple[str, str] | None:
        """The first file that is new, and what of it is told."""
        skipped = {absolute(path, reader.root) for path in told}
        known: dict[str, str | None] = {}
        for path in paths:
            file = file_for(absolute(path, reader.root), reader, known)
            if file is None or file in skipped:
                continue
            skipped.add(file)
            if text := self._text(file, reader):
                return file, text
        return None

    def _text(self, file: str, reader: FileReader) -> str:
        try:
            text = reader.read(file).strip()
        except OSError:
            text = ""
        return (
            shortened(text, self.options.max_tokens) if text else (self.options.reminder_text or "").strip()
        )
