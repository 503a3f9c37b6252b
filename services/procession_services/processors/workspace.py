"""Reading below a directory, and nowhere else: no way up, no link out, no device, no file without end.

Options that name a directory may come with a request, so the operator says which directories there are: the
environment variable `PROCESSION_WORKSPACES`, paths separated as in `PATH`; by default the directory in which the
service was started. A workspace is one of these or lies below one.
"""

import copy
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from procession.errors import ProcessionError

ROOTS: Final = "PROCESSION_WORKSPACES"
MAX_DEPTH: Final = 6
MAX_ENTRIES: Final = 20_000
"""Directory entries that a search for files looks at."""
_SHOWN: Final = 200
"""Characters of the name of a workspace that a message shows: a request may bring one of any length."""
_LEFT_OUT: Final = frozenset({".git", "node_modules", "__pycache__", ".venv"})


class WorkspaceError(ProcessionError):
    """A path that may not be read, or cannot; the message says which and why."""


class NoWorkspaceError(WorkspaceError):
    """The workspace itself may not be read, or does not exist; the message quotes only the option that names it."""


class Workspace:
    """A directory to read from.

    Args:
        root: Its path, relative to the working directory of the service or absolute.

    Raises:
        NoWorkspaceError: It lies outside the directories that the operator allows, or is not a directory.
    """

    def __init__(self, root: str) -> None:
        self.root, name = Path(root).resolve(), root[:_SHOWN]
        allowed = os.environ.get(ROOTS) or "."
        roots = [Path(each).resolve() for each in allowed.split(os.pathsep) if each]
        if not any(self.root.is_relative_to(each) for each in roots):
            raise NoWorkspaceError(f"the workspace {name!r} is not in a directory that {ROOTS} allows")
        if not self.root.is_dir():
            raise NoWorkspaceError(
                f"the workspace {name!r} is not a directory on the machine of this service"
            )

    def below(self, path: str) -> Self:
        """The workspace that is a directory of this one; raises WorkspaceError."""
        made = copy.copy(self)
        made.root = self._inside(path)
        return made

    def read(self, path: str, limit: int) -> str:
        """The text of a file; whatever is not valid UTF-8 in it is replaced.

        Args:
            path: Relative to the root.
            limit: Bytes that the file may have.

        Raises:
            WorkspaceError: It lies outside, is missing, no regular file, or too long.
        """
        return self._take(path, limit, whole=True)

    def head(self, path: str, limit: int) -> str:
        """The beginning of a file; raises as `read`, except for a long one."""
        return self._take(path, limit, whole=False)

    def find(self, name: str) -> Iterator[str]:
        """Directories with a file of that name, relative to the root, in order; not below one another.

        Links are not followed; at most `MAX_DEPTH` levels and `MAX_ENTRIES` entries are looked at.
        """
        left, waiting = MAX_ENTRIES, [(self.root, 0)]
        while waiting:
            directory, depth = waiting.pop()
            below: list[tuple[Path, int]] = []
            found = False
            for entry in _entries(directory):
                left -= 1
                if left < 0:
                    return
                if entry.is_dir(follow_symlinks=False) and entry.name not in _LEFT_OUT:
                    below.append((Path(entry.path), depth + 1))
                found = found or (entry.name == name and entry.is_file(follow_symlinks=False))
            if found:
                yield directory.relative_to(self.root).as_posix()
            elif depth < MAX_DEPTH:
                waiting += reversed(below)

    def names(self, path: str, limit: int) -> list[str]:
        """Files below a directory, relative to it, in order, `limit` at the most; raises as `read`."""
        start = self._inside(path)
        waiting: list[tuple[Path, int]] = [(start, 0)]
        names: list[str] = []
        while waiting and len(names) < limit:
            directory, depth = waiting.pop()
            for entry in _entries(directory):
                if entry.is_file(follow_symlinks=False):
                    names.append(Path(entry.path).relative_to(start).as_posix())
                elif depth < MAX_DEPTH and entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), depth + 1))
        return sorted(names)[:limit]

    def _inside(self, path: str) -> Path:
        try:
            target = (self.root / path).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            raise WorkspaceError(f"there is no file {path!r} in the workspace") from None
        if not target.is_relative_to(self.root):
            raise WorkspaceError(f"{path!r} leads out of the workspace")
        return target

    def _take(self, path: str, limit: int, *, whole: bool) -> str:
        target = self._inside(path)
        try:
            handle = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            raise WorkspaceError(f"{path!r} cannot be read") from None
        try:
            self._check(handle, path)  # before it becomes a file object, which no directory can
            with os.fdopen(handle, "rb", closefd=False) as file:
                data = file.read(limit + 1)
        finally:
            os.close(handle)
        if whole and len(data) > limit:
            raise WorkspaceError(f"{path!r} is longer than {limit} bytes")
        return data[:limit].decode("utf-8", errors="replace")

    def _check(self, handle: int, path: str) -> None:
        """Looks at what was opened: the path may have changed since it was examined."""
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise WorkspaceError(f"{path!r} is no regular file")
        opened = Path(f"/proc/self/fd/{handle}")
        if opened.exists() and not opened.resolve().is_relative_to(self.root):
            raise WorkspaceError(f"{path!r} leads out of the workspace")


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []
