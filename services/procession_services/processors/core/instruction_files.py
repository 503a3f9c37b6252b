"""Which instruction file belongs to what a tool touched, and what of it is told (R-AMD-1..4)."""

import json
import ntpath
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from html import unescape
from typing import Any, Final, Protocol

from procession_services.processors.core.token_estimate import estimate

NAMES: Final = ("AGENTS.md", "CLAUDE.md", "CONTEXT.md")
"""Names of instruction files, best first."""
REMINDER: Final = "dynamic-agents-md"

_FIELDS: Final = ("path", "file", "filePath", "target", "targetPath", "dest", "destination")
_LOWER: Final = frozenset(name.lower() for name in NAMES)
_REMINDED: Final = ("systemReminder", "dynamicAgentsMdReminder", "signal")
_MARKUP: Final = re.compile(r"<system-reminder\b([^<>]*)>")
_PATH: Final = re.compile(r"""\bpath=(?:"([^"]*)"|'([^']*)')""")
_WINDOWS: Final = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_LONGEST: Final = 4096
_DEEPEST: Final = 64
_CHARACTERS_PER_TOKEN: Final = 4


class FileReader(Protocol):
    """What is asked of the files; paths are absolute. `root` is where relative ones begin."""

    root: str

    def exists(self, path: str) -> bool:
        """Whether there is a file that may be read."""

    def is_directory(self, path: str) -> bool:
        """Whether it is a directory."""

    def read(self, path: str) -> str:
        """The text of a file; raises OSError."""


def touched(messages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The paths that finished tool calls were given, newest call first (R-AMD-1)."""
    for message in reversed(list(messages)):
        for part in reversed(message["content"].get("parts") or ()):
            call = part.get("toolInvocation")
            if isinstance(call, Mapping) and call.get("state") == "result":
                yield from _paths_in(call.get("args"))


def _paths_in(arguments: Any) -> Iterator[str]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return
    if isinstance(arguments, Mapping):
        values = (arguments.get(name) for name in _FIELDS)
        yield from (value for value in values if isinstance(value, str) and _is_path(value))


def _is_path(text: str) -> bool:
    """Whether it can be one; what is longer or deeper than real paths are would only cost time."""
    deep = text.count("/") + text.count("\\") > _DEEPEST
    return bool(text.strip()) and "\0" not in text and len(text) <= _LONGEST and not deep


def absolute(path: str, root: str) -> str:
    """A path without `..`, from the root where it is relative; a Windows path stays one."""
    if _WINDOWS.match(path):
        return ntpath.normpath(path)
    return "/" + posixpath.normpath(posixpath.join(root, path)).lstrip("/")


def file_for(path: str, reader: FileReader, known: dict[str, str | None]) -> str | None:
    """The instruction file for an absolute path: itself, or the nearest one above it (R-AMD-2).

    `known` keeps what was found for a directory, for the paths that follow.
    """
    flavour: Any = ntpath if _WINDOWS.match(path) else posixpath
    if flavour.basename(path).lower() in _LOWER:
        return path
    directory = path if reader.is_directory(path) else flavour.dirname(path)
    walked: list[str] = []
    found: str | None = None
    while found is None and directory not in known:
        walked.append(directory)
        candidates = (flavour.join(directory, name) for name in NAMES)
        found = next((candidate for candidate in candidates if reader.exists(candidate)), None)
        above = flavour.dirname(directory)
        if above == directory:
            break
        directory = above
    found = found or known.get(directory)
    known |= dict.fromkeys(walked, found)
    return found


def announced(messages: Iterable[Mapping[str, Any]]) -> set[str]:
    """The files of which the conversation tells already, by metadata or by markup in its text (R-AMD-3)."""
    told: set[str] = set()
    for message in messages:
        if message["role"] not in ("user", "signal"):
            continue
        content = message["content"]
        told |= {path for path in _noted(content.get("metadata")) if path}
        for part in content.get("parts") or ():
            if part.get("type") == "text":
                told |= set(_marked(part.get("text") or ""))
    return told


def _noted(metadata: Any) -> Iterator[str]:
    if not isinstance(metadata, Mapping):
        return
    for name in _REMINDED:
        note = metadata.get(name)
        places = [note, note.get("attributes"), note.get("metadata")] if isinstance(note, Mapping) else []
        for place in places:
            if isinstance(place, Mapping) and isinstance(place.get("path"), str):
                yield place["path"]


def _marked(text: str) -> Iterator[str]:
    for tag in _MARKUP.finditer(text):
        if found := _PATH.search(tag[1]):
            yield unescape(found[1] or found[2] or "")


def shortened(text: str, limit: int) -> str:
    """A text of at most about `limit` tokens, cut at the end of a line, with a note where it is cut (R-AMD-4)."""
    total = estimate(text)
    if total <= limit:
        return text
    start = text[: limit * _CHARACTERS_PER_TOKEN]
    shown = (start[:at] if (at := start.rfind("\n")) > 0 else start).rstrip()
    note = f"[truncated — showing first ~{estimate(shown)} of ~{total} estimated tokens]"
    return f"{shown}\n\n{note}"
