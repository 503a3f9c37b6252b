"""`skill-search.json`: each entry of a script is one step of a request; the helper that it calls runs for real."""

import itertools
from typing import Any

from procession.args import InputStepArgs
from procession.testing import ProcessorKit
from procession.testing import environment as make_environment
from procession_services.processors.core.skills import Skill
from procession_services.processors.skill_search import LoadSkill, SearchSkills, SkillSearch
from procession_services.processors.skill_sources import SkillSource
from tests.vectors.adapters.skills import StubSource
from tests.vectors.adapters.tool_search import call_context

THREAD = "t"
"""The thread of an entry that says nothing about it; null is a request without one."""


class _Run:
    """What the steps of a vector share."""

    def __init__(self, vector: dict[str, Any]) -> None:
        given = vector["input"]
        # the recorded workspace had no skills although `input` lists them: only the name of the vector says so
        source = StubSource([] if "without-skills" in vector["name"] else given["skills"], given)
        self.given, self.options, self.logs = given, {"skills": [], **vector["options"]}, list[str]()
        clock, self.numbers = itertools.count(), itertools.count()
        self.environment = make_environment(now=lambda: float(next(clock)), log=self.logs.append)

        class Stubbed(SkillSearch):
            def source(self, args: InputStepArgs) -> SkillSource:
                return source

        class Search(SearchSkills):
            def source(self) -> SkillSource:
                return source

            def hits(self, query: str, skills: list[Skill]) -> list[tuple[str, float]]:
                return [(hit["skillName"], hit["score"]) for hit in given.get("hits", [])]

        class Load(LoadSkill):
            def source(self) -> SkillSource:
                return source

        self.processor = Stubbed
        self.tools = {Search.id: Search, Load.id: Load}

    async def step(self, each: dict[str, Any]) -> dict[str, Any]:
        thread = each.get("thread", self.given.get("thread", THREAD))
        kit = ProcessorKit(
            self.processor,
            self.options,
            environment=self.environment,
            request_context={"mastra__threadId": thread} if thread else {},
        )
        kit.context.run_id = f"run-{next(self.numbers)}"
        self.logs.clear()
        own = {name: {"id": name} for name in self.given.get("stepTools", [])}
        outcome = await kit.input_step(tools=own)
        texts = [message["content"] for message in outcome.system]
        made = {
            "toolNames": list(outcome.config.tools),
            "systemMessages": len(texts),
            "loadedSkillMessages": [text for text in texts if text.startswith("[Skill: ")],
        }
        if self.logs:
            made["logLevels"] = ["warn"] * len(self.logs)
        if name := each.get("call"):
            tool = self.tools[name](outcome.config.tools[name].options)
            context = call_context(self.environment, name, kit.context.run_id)
            made["result"] = await tool.execute(each.get("args", {}), context)
        return made


async def observe(vector: dict[str, Any]) -> Any:
    """Runs the script."""
    run = _Run(vector)
    return {"steps": [await run.step(each) for each in vector["input"]["script"]]}


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """D-80: a request without a thread has a set of its own, so it sees no skill that another one loaded."""
    given = vector["input"]
    anonymous = [not each.get("thread", given.get("thread", THREAD)) for each in given["script"]]
    if sum(anonymous) < 2:
        return None
    for alone, want, have in zip(anonymous, vector["expected"]["steps"], observed["steps"], strict=True):
        hidden = want["loadedSkillMessages"] if alone else []
        due = {
            "toolNames": want["toolNames"],
            "systemMessages": want["systemMessages"] - len(hidden),
            "loadedSkillMessages": [text for text in want["loadedSkillMessages"] if text not in hidden],
        }
        if any(have[key] != value for key, value in due.items()):
            return None
        if (have.get("result") or {}).get("success") != (want.get("result") or {}).get("success"):
            return None
    return "D-80"
