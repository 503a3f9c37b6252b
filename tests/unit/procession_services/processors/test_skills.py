"""`skills-processor` and its tools (builtins.md 25.2)."""

import asyncio
from typing import Any

import pytest

from procession.args import InputStepArgs
from procession.errors import InvalidOptionsError
from procession.testing import ProcessorKit
from procession.testing import environment as make_environment
from procession.tools import ToolContext
from procession_services.processors.core.skills import Skill
from procession_services.processors.skill_sources import SkillSource
from procession_services.processors.skills import SHOWN, SkillReadTool, Skills, SkillTool
from procession_services.processors.workspace import ROOTS

INLINE = {
    "name": "forms",
    "description": "Fills forms",
    "instructions": "Fill it in.",
    "files": {"a.txt": "one\ntwo\nthree\n"},
}
CONTEXT: Any = None


async def use(tool: Any, options: Any, **args: Any) -> Any:
    made = tool(options)
    return await made.execute(
        args, ToolContext(tool_call_id="c", tool_name=made.id, run_id="r", tenant="t", writer=CONTEXT)
    )


class Slow:
    """A source whose refresh waits for the test."""

    def __init__(self) -> None:
        self.go, self.refreshed = asyncio.Event(), 0

    async def refresh(self) -> None:
        await self.go.wait()
        self.refreshed += 1

    async def available(self) -> list[Skill]:
        return [Skill("a", "", "a")]

    async def instructions(self, skill: Skill) -> str:
        return ""

    def register_alias(self, location: str, path: str) -> bool:
        return False


class Failing(Slow):
    """A source that cannot be read."""

    async def refresh(self) -> None:
        raise OSError("secret")

    async def available(self) -> list[Skill]:
        raise OSError("secret")


def reading(from_source: SkillSource) -> type[Skills]:
    class Own(Skills):
        def source(self, args: InputStepArgs) -> SkillSource:
            return from_source

        def format_location(self, skill: Skill) -> str:
            return f"skill:{skill.name}"

    return Own


async def test_the_tools_find_what_the_catalogue_names():
    outcome = await ProcessorKit(Skills, {"skills": [INLINE]}).input_step(tools={"own": {"id": "own"}})
    tools = outcome.config.tools
    assert list(tools) == ["skill", "skill_read", "own"]
    for name in ("forms", "skills/forms/SKILL.md"):
        assert await use(SkillTool, tools["skill"].options, name=name) == {
            "success": True,
            "name": "forms",
            "location": "skills/forms/SKILL.md",
            "instructions": "Fill it in.",
            "files": ["a.txt"],
        }
    read = await use(SkillReadTool, tools["skill_read"].options, name="forms", path="a.txt", startLine=2)
    assert read == {"success": True, "content": "two\nthree\n", "truncated": False}


async def test_a_location_of_ones_own_is_an_alias_for_the_tools():
    class Own(Skills):
        def format_location(self, skill: Skill) -> str:
            return f"skill:{skill.name}"

    outcome = await ProcessorKit(Own, {"skills": [INLINE]}).input_step()
    assert "<location>skill:forms</location>" in outcome.system[0]["content"]
    assert (await use(SkillTool, outcome.config.tools["skill"].options, name="skill:forms"))[
        "success"
    ] is True


async def test_tools_of_the_agent_keep_their_names():
    outcome = await ProcessorKit(Skills, {"skills": [INLINE]}).input_step(tools={"skill": {"id": "mine"}})
    assert outcome.config.tools["skill"].id == "mine"


async def test_what_is_not_there_is_said():
    options = {"skills": [INLINE, {**INLINE, "path": "other/forms"}]}
    unknown = await use(SkillTool, options, name="form")
    assert unknown["success"] is False
    assert "forms" in unknown["message"]
    ambiguous = await use(SkillReadTool, options, name="forms", path="a.txt")
    assert ambiguous["success"] is False
    assert "other/forms/SKILL.md" in ambiguous["message"]
    for path in ("nope", "../a.txt"):
        assert (await use(SkillReadTool, options, name="other/forms", path=path))["success"] is False


async def test_a_long_file_comes_in_pieces():
    options = {"skills": [{**INLINE, "files": {"long": "x" * (SHOWN + 1)}}]}
    read = await use(SkillReadTool, options, name="forms", path="long")
    assert (len(read["content"]), read["truncated"]) == (SHOWN, True)


async def test_a_workspace_outside_of_what_the_operator_allows_is_not_read(tmp_path, monkeypatch):
    """The options of a tool may come with a request."""
    (tmp_path / "SKILL.md").write_text("---\nname: secret\n---\nsecret")
    monkeypatch.setenv(ROOTS, str(tmp_path / "allowed"))
    told = await use(SkillTool, {"workspace": str(tmp_path)}, name="secret")
    assert told["success"] is False
    assert ROOTS in told["message"]


async def test_a_refresh_is_waited_for_only_where_that_is_asked():
    source = Slow()
    kit = ProcessorKit(reading(source), {"skills": []})
    assert len((await kit.input_step()).system) == 2  # while the refresh waits
    source.go.set()
    await ProcessorKit(reading(source), {"skills": [], "blockingRefresh": True}).input_step()
    assert source.refreshed == 2
    kit.context.step_number = 1
    await kit.input_step()
    assert source.refreshed == 2


async def test_where_aliases_cannot_be_looked_up_skills_go_by_name():
    source = Slow()
    source.go.set()
    outcome = await ProcessorKit(reading(source), {"skills": []}).input_step()
    assert "by name only" in outcome.system[1]["content"]


async def test_a_source_that_fails_is_a_warning():
    logs: list[str] = []
    kit = ProcessorKit(
        reading(Failing()),
        {"skills": [], "blockingRefresh": True},
        environment=make_environment(log=logs.append),
    )
    outcome = await kit.input_step(tools={"own": {"id": "own"}})
    assert outcome.system == []
    assert list(outcome.config.tools) == ["own"]
    assert len(logs) == 2
    assert "secret" not in "".join(logs)


async def test_a_workspace_that_may_not_be_read_is_logged_with_the_remedy(tmp_path, monkeypatch):
    (tmp_path / "allowed").mkdir()
    monkeypatch.setenv(ROOTS, str(tmp_path / "allowed"))
    logs: list[str] = []
    options = {"workspace": str(tmp_path), "blockingRefresh": True}
    await ProcessorKit(Skills, options, environment=make_environment(log=logs.append)).input_step()
    why = f"the workspace {str(tmp_path)!r} is not in a directory that {ROOTS} allows"
    assert logs == [
        f"skills-processor: skills could not be refreshed: {why}",
        f"skills-processor: skills could not be listed: {why}",
    ]


@pytest.mark.parametrize("options", [{}, {"skills": [{}]}, {"workspace": ".", "format": "yaml"}])
def test_options_that_make_no_sense(options):
    with pytest.raises(InvalidOptionsError):
        Skills.build(options)
