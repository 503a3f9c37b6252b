"""A workspace: what may be read, and what may not."""

import os
from pathlib import Path

import pytest

from procession_services.processors import workspace as module
from procession_services.processors.workspace import ROOTS, Workspace, WorkspaceError


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A workspace inside a directory with a secret next to it."""
    monkeypatch.setenv(ROOTS, str(tmp_path / "allowed"))
    (tmp_path / "secret").write_text("secret")
    made = tmp_path / "allowed" / "work"
    (made / "sub").mkdir(parents=True)
    (made / "sub" / "file").write_text("text é")
    return made


def test_a_file_is_read(root):
    workspace = Workspace(str(root))
    assert workspace.read("sub/file", 100) == workspace.read("sub/../sub/file", 100) == "text é"
    assert workspace.read(str(root / "sub" / "file"), 100) == "text é"
    assert workspace.below("sub").read("file", 100) == "text é"


@pytest.mark.parametrize(
    "path", ["../../secret", "/etc/passwd", "sub/../../../secret", "nope", "", ".", "sub", "a\0b"]
)
def test_nothing_else_is(root, path):
    with pytest.raises(WorkspaceError):
        Workspace(str(root)).read(path, 100)


def test_links_out_of_the_root_are_refused_and_those_within_are_not(root):
    (root / "out").symlink_to(root.parents[1] / "secret")
    (root / "dir").symlink_to(root.parents[1])
    (root / "in").symlink_to(root / "sub" / "file")
    (root / "loop").symlink_to(root / "loop")
    workspace = Workspace(str(root))
    for path in ("out", "dir/secret", "loop"):
        with pytest.raises(WorkspaceError):
            workspace.read(path, 100)
    with pytest.raises(WorkspaceError):
        workspace.below("dir")
    assert workspace.read("in", 100) == "text é"


def test_a_path_that_becomes_a_link_after_it_was_examined_is_refused(root, monkeypatch):
    workspace = Workspace(str(root))
    (root / "moved").symlink_to(root.parents[1])
    monkeypatch.setattr(Workspace, "_inside", lambda self, path: self.root / path)
    with pytest.raises(WorkspaceError, match="leads out"):
        workspace.read("moved/secret", 100)


def test_a_pipe_does_not_hang_the_reader(root):
    os.mkfifo(root / "pipe")
    with pytest.raises(WorkspaceError, match="no regular file"):
        Workspace(str(root)).read("pipe", 100)


def test_long_files_are_refused_and_their_heads_are_not(root):
    (root / "long").write_bytes(b"x" * 101)
    workspace = Workspace(str(root))
    with pytest.raises(WorkspaceError, match="longer than 100 bytes"):
        workspace.read("long", 100)
    assert workspace.read("long", 101) == "x" * 101
    assert workspace.head("long", 10) == "x" * 10


def test_what_is_no_utf8_is_replaced(root):
    (root / "binary").write_bytes(b"a\xffb")
    assert Workspace(str(root)).read("binary", 100) == "a\ufffdb"


@pytest.mark.parametrize("where", ["../..", "../../secret", "nope", "sub/file"])
def test_a_root_that_is_none(root, where):
    with pytest.raises(WorkspaceError):
        Workspace(str(root / where))


def test_by_default_it_lies_below_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.delenv(ROOTS, raising=False)
    monkeypatch.chdir(tmp_path)
    assert Workspace(".").root == tmp_path.resolve()
    with pytest.raises(WorkspaceError, match=ROOTS):
        Workspace("..")


def test_several_roots(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).mkdir()
    monkeypatch.setenv(ROOTS, os.pathsep.join(str(tmp_path / name) for name in "ab"))
    assert [Workspace(str(tmp_path / name)).root.name for name in "ab"] == ["a", "b"]
    with pytest.raises(WorkspaceError):
        Workspace(str(tmp_path))


def make(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x")


def test_directories_with_a_file_are_found_in_order(root):
    make(
        root,
        "b/SKILL.md",
        "a/x/SKILL.md",
        "b/in/SKILL.md",
        ".hidden/SKILL.md",
        "node_modules/a/SKILL.md",
        "c/skill.md",
    )
    (root / "link").symlink_to(root / "b")
    (root / "d").mkdir()
    (root / "d" / "SKILL.md").symlink_to(root / "b" / "SKILL.md")
    assert list(Workspace(str(root)).find("SKILL.md")) == [".hidden", "a/x", "b"]


def test_depth_and_number_are_bounded(root, monkeypatch):
    make(root, "/".join("abcdefg") + "/SKILL.md", "/".join("abcdef") + "2/SKILL.md")
    found = list(Workspace(str(root)).find("SKILL.md"))
    assert found == ["/".join("abcdef") + "2"]
    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    assert list(Workspace(str(root)).find("SKILL.md")) == []


def test_names_of_files_below_a_directory(root):
    make(root, "s/b", "s/a/c", "s/a/d")
    (root / "s" / "link").symlink_to(root / "sub")
    workspace = Workspace(str(root))
    assert workspace.names("s", 10) == ["a/c", "a/d", "b"]
    assert len(workspace.names("s", 2)) == 2
    with pytest.raises(WorkspaceError):
        workspace.names("..", 10)
