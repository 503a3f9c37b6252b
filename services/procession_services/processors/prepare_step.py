"""`prepare-step`: decides step by step with what the model is called (R-OTH-1).

No model, no cost. Input step only. An agent's `prepareStep` puts it behind all other input processors.
"""

from collections.abc import Awaitable
from typing import Any, Self, cast

from pydantic import Field, model_validator

from procession.args import InputStepArgs, InputStepResult, InputStepReturn
from procession.processor import Options, Processor

__all__ = ["PrepareStep", "PrepareStepOptions", "StepRule"]


class StepRule(Options):
    """What holds for some steps; what is left out stays as it is."""

    since: int = Field(default=0, ge=0, description="The first step that it applies to, from 0.")
    until: int | None = Field(
        default=None, ge=0, description="The last step that it applies to; default: all that follow."
    )
    after_tool: str | None = Field(default=None, description="Only after a step that called this tool.")
    model: str | None = Field(default=None, min_length=1, description="`provider/name`.")
    tool_choice: Any = Field(default=None, description="`auto`, `none`, `required`, or one tool.")
    active_tools: list[str] | None = Field(
        default=None, description="Names of the tools that the model sees."
    )
    model_settings: dict[str, Any] | None = Field(default=None, description="In place of the agent's.")
    provider_options: dict[str, Any] | None = Field(default=None, description="In place of the agent's.")

    @model_validator(mode="after")
    def _is_a_span(self) -> Self:
        if self.until is not None and self.until < self.since:
            raise ValueError(f"`until` ({self.until}) comes before `since` ({self.since})")
        return self

    def holds(self, args: InputStepArgs) -> bool:
        """Whether it holds for a step."""
        if args.step_number < self.since or (self.until is not None and args.step_number > self.until):
            return False
        called = [call["toolName"] for step in args.steps[-1:] for call in step.get("toolCalls", [])]
        return self.after_tool is None or self.after_tool in called

    def result(self) -> InputStepResult:
        """What the hook returns."""
        keys = ("model", "tool_choice", "active_tools", "model_settings", "provider_options")
        told = {key: value for key in keys if (value := getattr(self, key)) is not None}
        return cast("InputStepResult", told)


class PrepareStepOptions(Options):
    """Options of `prepare-step`."""

    rules: list[StepRule] = Field(
        default_factory=list, description="The first rule that applies to a step counts."
    )


class PrepareStep(Processor[PrepareStepOptions]):
    """Applies rules; override `prepare_step` to decide in code."""

    id = "prepare-step"
    name = "Prepare Step"
    description = "Sets model, tools and settings step by step."

    def prepare_step(self, args: InputStepArgs) -> InputStepReturn | Awaitable[InputStepReturn]:
        """Returns what `process_input_step` may return."""
        rule = next((rule for rule in self.options.rules if rule.holds(args)), None)
        return rule.result() if rule else None

    def process_input_step(self, args: InputStepArgs) -> InputStepReturn | Awaitable[InputStepReturn]:
        """Hands on what `prepare_step` decides."""
        return self.prepare_step(args)
