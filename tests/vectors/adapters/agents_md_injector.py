"""`agents-md-injector.json`: the signal of one step, with the files of the vector in place of a disk."""

import ntpath
import posixpath
from collections.abc import Collection
from typing import Any

from procession import signals
from procession.args import InputStepArgs
from procession_services.processors.agents_md_injector import AgentsMDInjector, FileReader
from tests.vectors.adapters.by_hand import Run

_CALLBACKS = ("pathExists", "isDirectory", "readFile", "getReader")


class Files:
    """Files by path; a value that is no text cannot be read."""

    def __init__(self, root: str, files: dict[str, Any], directories: Collection[str] = ()) -> None:
        self.root, self._files = root, files
        self._directories = set(directories)
        for path in files:
            flavour: Any = ntpath if "\\" in path else posixpath
            here = path
            while (above := flavour.dirname(here)) != here:
                self._directories.add(above)
                here = above

    def exists(self, path: str) -> bool:
        return path in self._files

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def read(self, path: str) -> str:
        text = self._files.get(path)
        if not isinstance(text, str):
            raise FileNotFoundError(path)
        return text


async def observe(vector: dict[str, Any]) -> Any:
    """Runs one step."""
    given, options = vector["input"], dict(vector["options"])
    disabled = "false" in str(options.pop("isEnabled", True)).lower()
    ignored: list[str] = options.pop("getIgnoredInstructionPaths", [])
    own = {key: value for key, value in options.items() if key not in _CALLBACKS}

    class Configured(AgentsMDInjector):
        def is_enabled(self, args: InputStepArgs) -> bool:
            return not disabled

        def ignored(self, args: InputStepArgs) -> Collection[str]:
            return ignored

        def reader(self, args: InputStepArgs) -> FileReader:
            return Files(given.get("cwd", "/"), given["files"], given.get("directories", ()))

    processor = Configured.build(own)
    run = Run(processor)
    run.add(given["messages"])
    before = {message["id"] for message in run.context.messages.get.all.db()}
    await processor.process_input_step(run.input_step())
    sent = [
        m for m in run.context.messages.get.all.db() if m["role"] == signals.ROLE and m["id"] not in before
    ]
    return {"signals": [_signal(message) for message in sent]}


def _signal(message: Any) -> dict[str, Any]:
    about = signals.about(message)
    shown: dict[str, Any] = {k: about[k] for k in ("type", "tagName", "attributes", "metadata") if k in about}
    return {**shown, "contents": signals.contents(message)}


def override(_vector: dict[str, Any], _observed: Any, _differences: list[str]) -> str | None:
    """Nothing differs."""
    return None
