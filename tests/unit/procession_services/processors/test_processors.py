"""A decision to end the run that an author's method makes comes through every processor that calls it (R-AB-1)."""

import asyncio
import json
from typing import Any

import pytest

from procession.errors import ProcessorError, TripWire
from procession.testing import ProcessorKit, ScriptedModels, environment
from procession_services.processors.core.skills import Skill
from procession_services.processors.model_selection import ModelSelection
from procession_services.processors.pii_detector import PIIDetector
from procession_services.processors.prompt_injection_detector import PromptInjectionDetector
from procession_services.processors.response_cache import ResponseCache
from procession_services.processors.skill_search import SkillSearch
from procession_services.processors.skills import Skills
from procession_services.processors.token_cost_control import TokenCostControl
from procession_services.processors.tool_search import ToolSearch

SKILL = Skill("mail", "", "skills/mail", "local", "")
CHOICES = {
    "model": "m/judge",
    "choices": [{"model": "p/a", "criteria": "x"}, {"model": "p/b", "criteria": "y"}],
}
RULES = {
    "model": "m/judge",
    "questions": {"code": {"type": "boolean", "question": "?"}},
    "rules": [{"when": {"question": "code", "atLeast": 0.5}, "model": "p/coder"}],
}
ANSWERS = {
    "ModelSelection": json.dumps({"code": {"probability": 1}}),
    "PromptInjectionDetector": json.dumps({"categories": [], "reason": None}),
}


def raising(processor: Any, method: str) -> Any:
    """The processor with a method that raises what the test wants."""

    def body(self: Any, *_: Any) -> Any:
        raise type(self).raised

    async def later(self: Any, *_: Any) -> Any:
        raise type(self).raised

    awaited = asyncio.iscoroutinefunction(getattr(processor, method))
    return type(processor.__name__, (processor,), {method: later if awaited else body})


def reading(processor: Any, method: str) -> Any:
    """The processor with a source of skills that raises in one of its methods."""

    class Source:
        async def refresh(self) -> None:
            self._maybe("refresh")

        async def available(self) -> list[Skill]:
            self._maybe("available")
            return [SKILL]

        async def instructions(self, _skill: Skill) -> str:
            self._maybe("instructions")
            return ""

        def register_alias(self, *_: str) -> bool:
            return False

        def _maybe(self, name: str) -> None:
            if name == method:
                raise made.raised

    made: Any = type(processor.__name__, (processor,), {"source": lambda *_: Source()})
    return made


WAITING = {"skills": [], "blockingRefresh": True}
CASES = {
    "model-selection on_decision": (raising(ModelSelection, "on_decision"), CHOICES, "input"),
    "model-selection select": (raising(ModelSelection, "select"), RULES, "input"),
    "prompt-injection on_detection": (
        raising(PromptInjectionDetector, "on_detection"),
        {"model": "m/judge"},
        "input",
    ),
    "pii on_detection": (raising(PIIDetector, "on_detection"), {}, "input"),
    "response-cache key_for": (raising(ResponseCache, "key_for"), {}, "llm_request"),
    "token-cost-control max_cost": (
        raising(TokenCostControl, "max_cost"),
        {"maxCost": 1, "scope": "run"},
        "input_step",
    ),
    "tool-search permits": (
        raising(ToolSearch, "permits"),
        {"tools": {"mail": {"id": "mail", "description": "Sends mail"}}},
        "input_step",
    ),
    "skill-search available": (reading(SkillSearch, "available"), WAITING, "input_step"),
    "skill-search refresh": (reading(SkillSearch, "refresh"), WAITING, "input_step"),
    "skill-search instructions": (reading(SkillSearch, "instructions"), WAITING, "input_step"),
    "skills available": (reading(Skills, "available"), WAITING, "input_step"),
}


def kit(processor: Any, options: dict[str, Any], raised: BaseException) -> ProcessorKit:
    processor.raised = raised
    models = ScriptedModels([ANSWERS.get(processor.__name__, "{}")])
    return ProcessorKit(processor, options, environment=environment(models))


async def call(made: ProcessorKit, hook: str) -> Any:
    await made.calls.environment.store("t").insert(
        "skill-search:test:run:run-1", "0.0 mail"
    )  # as `load_skill` does
    if hook == "input":
        return await made.input("hello")
    made.message_list.add("hello", "input")
    return await getattr(made, hook)()


@pytest.mark.parametrize(("processor", "options", "hook"), CASES.values(), ids=CASES)
class TestWhatAnAuthorsMethodRaises:
    async def test_a_tripwire_ends_the_run(self, processor: Any, options: dict[str, Any], hook: str) -> None:
        outcome = await call(kit(processor, options, TripWire("stop here")), hook)
        assert outcome.tripwire is not None
        assert outcome.tripwire.reason == "stop here"

    async def test_what_it_waited_for_in_vain_is_not_swallowed(
        self, processor: Any, options: dict[str, Any], hook: str
    ) -> None:
        with pytest.raises(ProcessorError) as caught:
            await call(kit(processor, options, asyncio.CancelledError()), hook)
        assert caught.value.name == "CancelledError"


async def test_a_refresh_that_nobody_waits_for_can_only_warn() -> None:
    logs: list[str] = []
    processor = reading(Skills, "refresh")
    processor.raised = TripWire("stop here")
    made = ProcessorKit(processor, {"skills": []}, environment=environment(log=logs.append))
    assert (await made.input_step()).tripwire is None
    await asyncio.sleep(0)
    assert "blockingRefresh" in logs[0]
    assert "stop here" not in logs[0]
