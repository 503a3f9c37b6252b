"""Skills from options and from a directory."""

from typing import Any

import pytest

from procession_services.processors import skill_sources as module
from procession_services.processors.skill_sources import ConfiguredSkills, SourceOptions
from procession_services.processors.workspace import ROOTS, WorkspaceError


def skill(root, path, text="---\nname: {name}\ndescription: about {name}\n---\nDO {name}\n"):
    directory = root / path
    directory.mkdir(parents=True)
    (directory / "SKILL.md").write_text(text.replace("{name}", path.rpartition("/")[2]))
    return directory


def source(root=None, **options: Any):
    return ConfiguredSkills(SourceOptions.model_validate({"workspace": root and str(root), **options}))


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv(ROOTS, str(tmp_path))
    return tmp_path


async def test_a_directory_with_skills(root):
    skill(root, "skills/beta")
    (skill(root, "skills/alpha") / "notes.md").write_text("notes")
    made = source(root)
    alpha, beta = await made.available()
    assert (alpha.name, alpha.description, alpha.path, alpha.source) == (
        "alpha",
        "about alpha",
        "skills/alpha",
        "local",
    )
    assert beta.name == "beta"
    assert await made.instructions(alpha) == "DO alpha"
    assert await made.files(alpha) == ["notes.md"]
    assert await made.read(alpha, "notes.md") == "notes"


async def test_a_skill_reads_its_own_files_only(root):
    skill(root, "skills/alpha")
    (root / "skills" / "other").write_text("other")
    (root / "skills" / "alpha" / "link").symlink_to(root / "skills" / "other")
    made = source(root)
    (alpha,) = await made.available()
    for path in ("../other", "link", str(root / "skills" / "other"), "nope"):
        with pytest.raises(WorkspaceError):
            await made.read(alpha, path)


async def test_hidden_files_are_no_part_of_a_skill(root):
    directory = skill(root, "alpha")
    (directory / ".env").write_text("secret")
    made = source(root)
    (alpha,) = await made.available()
    assert await made.files(alpha) == []
    for path in (".env", "./.env", "x/../.env"):
        with pytest.raises(WorkspaceError):
            await made.read(alpha, path)


async def test_inline_skills_come_before_those_of_the_directory(root):
    skill(root, "skills/alpha")
    inline = {
        "name": "mine",
        "description": "d",
        "instructions": "DO mine",
        "path": "skills/alpha",
        "source": "managed",
    }
    made = source(root, skills=[{**inline, "files": {"a.md": "A"}}])
    (mine,) = await made.available()
    assert (mine.name, mine.source) == ("mine", "managed")
    assert await made.instructions(mine) == await made.read(mine, "SKILL.md") == "DO mine"
    assert await made.files(mine) == ["a.md"]
    assert await made.read(mine, "a.md") == "A"
    with pytest.raises(WorkspaceError):
        await made.read(mine, "b.md")


async def test_a_broken_skill_does_not_hide_the_others(root):
    skill(root, "a", "no front matter")
    skill(root, "b", "---\nname: [\n---")
    skill(root, "c")
    skill(root, "d", "---\nname: d\n" + "#" * module.HEAD)
    assert [each.name for each in await source(root).available()] == ["c"]


async def test_what_is_new_is_found_after_a_refresh(root):
    made = source(root)
    assert await made.available() == []
    skill(root, "new")
    assert await made.available() == []
    await made.refresh()
    assert [each.name for each in await made.available()] == ["new"]


async def test_a_skill_that_is_gone_or_too_long(root):
    directory = skill(root, "a")
    made = source(root)
    (found,) = await made.available()
    (directory / "SKILL.md").write_text("---\nname: a\n---\n" + "x" * module.MAX_FILE)
    with pytest.raises(WorkspaceError, match="longer"):
        await made.instructions(found)
    (directory / "SKILL.md").write_text("now without front matter")
    with pytest.raises(WorkspaceError, match="front matter"):
        await made.instructions(found)
    (directory / "SKILL.md").unlink()
    with pytest.raises(WorkspaceError, match="no file"):
        await made.instructions(found)


async def test_only_so_many_skills(root, monkeypatch):
    for name in "abc":
        skill(root, name)
    monkeypatch.setattr(module, "MAX_SKILLS", 2)
    assert len(await source(root).available()) == 2


async def test_a_directory_that_may_not_be_read(root):
    with pytest.raises(WorkspaceError, match=ROOTS):
        await source(root.parent).available()
