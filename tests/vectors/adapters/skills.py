"""`skills.json`: the catalogue as text, and the system messages of some steps of one run."""

import asyncio
import re
from typing import Any

from procession.args import InputStepArgs
from procession.testing import ProcessorKit
from procession.testing import environment as make_environment
from procession_services.processors.core.skills import Skill, catalog
from procession_services.processors.skill_sources import SkillSource
from procession_services.processors.skills import Skills

EXTERNAL = ("beta",)
"""The vectors give names only; the rest is what their script made of them."""
_PREFIX = re.compile(r"'(.*)' \+ name")
_FAILS = re.compile("fail|throw|reject|error", re.IGNORECASE)


class StubSource:
    """The skills of a vector, and what was asked of them."""

    def __init__(self, names: list[str], given: dict[str, Any]) -> None:
        self.skills = [
            Skill(name, name[:1].upper(), f"skills/{name}", "external" if name in EXTERNAL else "local")
            for name in sorted(names)
        ]
        self.refreshed, self.aliases = 0, list[list[str]]()
        self._fails = any(
            "refresh" in key.lower() and _FAILS.search(str(value)) for key, value in given.items()
        )
        self._aliases = not any("alias" in key.lower() and value is False for key, value in given.items())

    async def refresh(self) -> None:
        """Counts the call."""
        self.refreshed += 1
        if self._fails:
            raise RuntimeError("the source failed")

    async def available(self) -> list[Skill]:
        """The skills."""
        await asyncio.sleep(0)  # lets a refresh that nobody waits for begin
        return self.skills

    async def instructions(self, skill: Skill) -> str:
        """The text of a skill."""
        return f"DO {skill.description}"

    def register_alias(self, location: str, path: str) -> bool:
        """Notes the alias, where the source can."""
        if self._aliases:
            self.aliases.append([location, path])
        return self._aliases


async def observe(vector: dict[str, Any]) -> Any:
    """Formats a catalogue, or runs the steps."""
    options, given = dict(vector["options"]), vector["input"]
    if given.get("call") == "formatSkillsCatalog":
        return {"text": catalog(given["entries"], options.get("format") or "xml")}
    prefix = _PREFIX.fullmatch(options.pop("formatLocation", "") or "")
    source, logs = StubSource(given["skills"], given), list[str]()

    class Stubbed(Skills):
        def source(self, args: InputStepArgs) -> SkillSource:
            return source

        def format_location(self, skill: Skill) -> str:
            return prefix[1] + skill.name if prefix else super().format_location(skill)

    kit = ProcessorKit(Stubbed, {"skills": [], **options}, environment=make_environment(log=logs.append))
    steps = []
    for number in given["stepNumbers"]:
        kit.context.step_number = number
        steps.append(_shown([message["content"] for message in (await kit.input_step()).system]))
    made = {"perStep": steps, "refreshCalls": source.refreshed, "aliases": source.aliases}
    return made | ({"logLevels": ["warn"] * len(logs)} if logs else {})


def _shown(system: list[str]) -> dict[str, Any]:
    if not system:
        return {"systemMessages": 0}
    guidance = system[-1]
    return {
        "systemMessages": len(system),
        "catalog": system[0],
        "guidanceMentionsDisambiguateByLocation": "location" in guidance and "tells them apart" in guidance,
        "guidanceSaysByNameOnly": "by name only" in guidance,
    }
