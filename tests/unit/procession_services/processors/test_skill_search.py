"""`skill-search` and its helpers (builtins.md 25.3); the vectors cover much of the rest."""

import itertools
from typing import Any

import pytest

from procession.errors import InvalidOptionsError
from procession.testing import DictStore, ProcessorKit
from procession.testing import environment as make_environment
from procession.tools import ToolContext
from procession_services.processors.skill_search import LoadSkill, SearchSkills, SkillSearch
from procession_services.processors.workspace import ROOTS

SKILLS = [
    {"name": "forms", "description": "Fills forms", "instructions": "Fill it in."},
    {"name": "mail", "description": "Writes letters", "instructions": "Dear you."},
]


class Conversation:
    """Steps of requests that share a store."""

    def __init__(self, **options: Any) -> None:
        self.now, ticks = 0.0, itertools.count()
        clock = lambda: self.now + next(ticks) / 1000  # noqa: E731
        self.logs: list[str] = []
        self.environment = make_environment(store=DictStore(clock), now=clock, log=self.logs.append)
        self.options = options or {"skills": SKILLS}

    async def step(self, thread: str | None = "t", run: str = "run", tools: Any = None) -> Any:
        context = {"mastra__threadId": thread} if thread else {}
        kit = ProcessorKit(SkillSearch, self.options, environment=self.environment, request_context=context)
        kit.context.run_id = run
        return await kit.input_step(tools=tools or {})

    async def shown(self, *args: Any) -> list[str]:
        return [message["content"] for message in (await self.step(*args)).system[1:]]

    async def call(self, name: str, *args: Any, **arguments: Any) -> Any:
        ref = (await self.step(*args)).config.tools[name]
        tool = {"search_skills": SearchSkills, "load_skill": LoadSkill}[name](ref.options)
        writer: Any = None
        about = ToolContext(
            tool_call_id="c", tool_name=name, run_id="r", tenant="t", writer=writer,
            environment=self.environment,
        )  # fmt: skip
        return await tool.execute(arguments, about)


async def test_found_loaded_and_shown_in_the_order_of_loading():
    talk = Conversation()
    found = await talk.call("search_skills", query="letters")
    assert [hit["name"] for hit in found["results"]] == ["mail"]
    assert await talk.shown() == []
    assert (await talk.call("load_skill", skillName="mail"))["success"] is True
    assert (await talk.call("load_skill", skillName="forms"))["success"] is True
    assert await talk.shown() == ["[Skill: mail]\n\nDear you.", "[Skill: forms]\n\nFill it in."]


async def test_an_unknown_skill_is_not_loaded():
    talk = Conversation()
    answer = await talk.call("load_skill", skillName="form")
    assert answer["success"] is False
    assert "forms" in answer["message"]
    assert await talk.shown() == []


async def test_requests_without_a_thread_do_not_share_what_they_load():
    """D-80."""
    talk = Conversation()
    await talk.call("load_skill", None, "one", skillName="mail")
    assert len(await talk.shown(None, "one")) == 1
    assert await talk.shown(None, "two") == []


async def test_an_unused_set_is_forgotten():
    talk = Conversation(skills=SKILLS, ttl=10_000)
    await talk.call("load_skill", skillName="mail")
    talk.now += 9
    assert len(await talk.shown()) == 1
    talk.now += 11
    assert await talk.shown() == []


async def test_files_are_read_as_they_are_now(tmp_path, monkeypatch):
    monkeypatch.setenv(ROOTS, str(tmp_path))
    file = tmp_path / "a" / "SKILL.md"
    file.parent.mkdir()
    file.write_text("---\nname: a\ndescription: d\n---\nold")
    talk = Conversation(workspace=str(tmp_path), blockingRefresh=True)
    await talk.call("load_skill", skillName="a")
    file.write_text("---\nname: a\ndescription: d\n---\nnew")
    assert await talk.shown() == ["[Skill: a]\n\nnew"]
    file.write_text("no longer a skill")
    outcome = await talk.step(tools={"own": {"id": "own"}})
    assert (outcome.system, list(outcome.config.tools)) == ([], ["own"])


async def test_the_limits_of_a_search():
    talk = Conversation(
        skills=[{"name": f"s{i}", "description": "same"} for i in range(9)], search={"topK": 3}
    )
    assert len((await talk.call("search_skills", query="same"))["results"]) == 3
    talk.options["search"] = {"minScore": 50}
    assert (await talk.call("search_skills", query="same"))["results"] == []


async def test_helpers_take_the_place_of_tools_of_their_name_with_a_warning():
    talk = Conversation()
    tools = (await talk.step(tools={"load_skill": {"id": "mine"}})).config.tools
    assert tools["load_skill"].id == "load_skill"
    assert "load_skill" in talk.logs[0]


@pytest.mark.parametrize(
    "options", [{}, {"skills": [], "search": {"topK": 0}}, {"skills": [], "format": "xml"}]
)
def test_options_that_make_no_sense(options):
    with pytest.raises(InvalidOptionsError):
        SkillSearch.build(options)
