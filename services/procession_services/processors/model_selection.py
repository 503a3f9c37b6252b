"""`model-selection`: has a small model choose the model of a request (builtins.md 22.2).

Either from `choices` with criteria, or by `questions` and `rules` on their answers; in Python by overriding `select`.
A failure never ends the run: the configured model answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from procession.args import HookArgs, InputArgs, InputStepArgs, InputStepResult
from procession.errors import InvalidOptionsError, ProcessionError, TripWire
from procession.processor import Options, Processor
from procession.services import ModelRequest, object_of
from procession_services.processors.core.detector_text import UNTRUSTED, detector_text, fenced
from procession_services.processors.core.option_codes import coded, problem
from procession_services.processors.core.own_state import own_by_options
from procession_services.processors.core.questions import (
    Answer,
    ChoiceQuestion,
    Condition,
    Question,
    Questions,
    answers_schema,
    misfit,
    questions_text,
    read_answers,
)
from procession_services.processors.detector import StructuredOutputOptions

Abstained = Literal["no-text", "error", "below-threshold", "no-model-for-choice"]

_CHOICE = "model"
_FEWEST = 2
_CODES = {"questions": "MODEL_SELECTION_QUESTIONS_REQUIRED"}


class ModelChoice(Options):
    """A model that may answer, and when."""

    model: str = Field(min_length=1, description="`provider/name`.")
    criteria: str = Field(description="Which requests it is for.")
    name: str = Field(default="", description="What the deciding model calls it; by default its id.")


class ModelRule(Options):
    """A model for an answer."""

    when: Condition = Field(description="`{question, is}` or `{question, atLeast}`.")
    model: str = Field(min_length=1, description="`provider/name`.")


class ModelSelectionOptions(Options):
    """Options of `model-selection`: `choices`, or `questions` with `rules`."""

    model: str = Field(min_length=1, description="The model that decides, `provider/name`.")
    choices: tuple[ModelChoice, ...] | None = Field(
        default=None, description="At least two models to choose from."
    )
    instructions: str = Field(
        default="", description="How to choose; by default the least capable model that still does the job."
    )
    min_probability: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Least probability of a choice; below it, the configured model answers.",
    )
    questions: dict[str, Question] | None = Field(
        default=None,
        min_length=1,
        description="What is asked about the request, by name, in place of `choices`.",
    )
    rules: tuple[ModelRule, ...] = Field(
        default=(), description="The first rule that applies names the model."
    )
    scope: Literal["run", "first-step"] = Field(
        default="run", description="`first-step`: later steps use the configured model again."
    )
    structured_output_options: StructuredOutputOptions = Field(
        default_factory=StructuredOutputOptions, description="How the answer's form is asked for."
    )
    provider_options: dict[str, Any] = Field(
        default_factory=dict, description="Passed to the provider, by provider name."
    )
    timeout: float = Field(default=10.0, gt=0, description="Seconds until the decision counts as failed.")

    @field_validator("choices")
    @classmethod
    def _choices_differ(cls, choices: tuple[ModelChoice, ...] | None) -> tuple[ModelChoice, ...] | None:
        if choices is None:
            return None
        if len(choices) < _FEWEST:
            raise problem(
                "MODEL_SELECTION_INSUFFICIENT_CHOICES", f"needs at least two choices, has {len(choices)}"
            )
        names = [choice.name or choice.model for choice in choices]
        for name in names:
            if names.count(name) > 1:
                told = f"two choices are called {name!r}: give one of them another `name`"
                raise problem("MODEL_SELECTION_DUPLICATE_CHOICE", told)
        for choice, name in zip(choices, names, strict=True):
            if not choice.criteria.strip():
                raise problem("MODEL_SELECTION_MISSING_CRITERIA", f"choice {name!r} has no criteria")
        return choices

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.choices is None) is (self.questions is None):
            raise problem("MODEL_SELECTION_QUESTIONS_REQUIRED", "give either `choices` or `questions`")
        if wrong := misfit((rule.when for rule in self.rules), self.questions or {}):
            raise ValueError(f"rules: {wrong}")
        return self


@dataclass(frozen=True, slots=True)
class Selection:
    """What was decided for a request: a model, or why there is none (R-MSEL-5)."""

    model: str | None = None
    choice: str | None = None
    probability: float | None = None
    abstained: Abstained | None = None


class ModelSelection(Processor[ModelSelectionOptions]):
    """Decides once for each request, from its latest user message (R-MSEL)."""

    id = "model-selection"
    name = "Model selection"
    description = "Has a model choose the model that answers."

    def __init__(self, options: ModelSelectionOptions) -> None:
        super().__init__(options)
        self._models = {choice.name or choice.model: choice.model for choice in options.choices or ()}
        self._questions = options.questions or _model_question(options.choices or ())

    @classmethod
    def build(cls, options: dict[str, Any] | None = None) -> Self:
        """Makes an instance; raises InvalidOptionsError, with the contract's id where it has one (R-MSEL-1)."""
        try:
            return super().build(options)
        except InvalidOptionsError as error:
            raise coded(error, _CODES) from error.__cause__

    def select(self, answers: Mapping[str, Answer]) -> str | None:
        """The model for these answers, None for the configured one: by default as `rules` say; override it."""
        return next((rule.model for rule in self.options.rules if rule.when.holds(answers)), None)

    async def on_decision(self, selection: Selection) -> None:
        """Hears of the decision for each request; override it. Only a `TripWire` that it raises counts."""

    async def process_input(self, args: InputArgs) -> None:
        """Decides; messages never change."""
        selection = await self._decide(args)
        if selection.model is not None:
            self._kept(args)["model"] = selection.model
        try:
            await self.on_decision(selection)
        except TripWire:
            raise
        except Exception as error:  # noqa: BLE001 - R-MSEL-5: a listener never changes the decision
            args.services.warn(f"on_decision raised {type(error).__name__}")

    def process_input_step(self, args: InputStepArgs) -> InputStepResult | None:
        """Gives the model, until a fallback has taken over (R-MSEL-4)."""
        state = self._kept(args)
        if args.model.id != state.setdefault("configured", args.model.id):
            state.pop("model", None)
        if "model" not in state or (self.options.scope == "first-step" and args.step_number):
            return None
        return {"model": state["model"]}

    def _kept(self, args: HookArgs) -> dict[str, Any]:
        return own_by_options(args.state, "selected", self.options)

    async def _decide(self, args: InputArgs) -> Selection:
        request = next((each for each in reversed(args.messages) if each["role"] == "user"), None)
        text = detector_text(request) if request else ""
        if not text:
            return Selection(abstained="no-text")
        try:
            answers = await self._ask(args, text)
            return self._chosen(answers) if self.options.choices else Selection(self.select(answers))
        except TripWire:
            raise
        except Exception as error:  # noqa: BLE001 - R-MSEL-3: whatever fails, the configured model answers
            known = (
                "its model gave no usable answer"
                if isinstance(error, ProcessionError)
                else type(error).__name__
            )
            args.services.warn(f"no decision, so the configured model answers: {known}")
            return Selection(abstained="error")

    async def _ask(self, args: InputArgs, text: str) -> dict[str, Answer]:
        options = self.options
        system = options.instructions or (_CHOOSE if options.choices else _ASK)
        told = f"{system}\n\n{questions_text(self._questions)}\n\n{UNTRUSTED}"
        answer = await args.services.generate(
            ModelRequest(
                model=options.model,
                prompt=[
                    {"role": "system", "content": told},
                    {"role": "user", "content": [{"type": "text", "text": fenced(text)}]},
                ],
                schema=answers_schema(self._questions),
                json_prompt_injection=options.structured_output_options.json_prompt_injection,
                model_settings={"temperature": 0},
                provider_options=options.provider_options,
                timeout=options.timeout,
            )
        )
        return read_answers(
            object_of(answer, answers_schema(self._questions, any_choice=True)), self._questions
        )

    def _chosen(self, answers: Mapping[str, Answer]) -> Selection:
        """What an answer of the choices form means (R-MSEL-3)."""
        answer = answers[_CHOICE]
        choice = answer["choice"]
        probability = answer.get("probabilities", {}).get(choice)
        least = self.options.min_probability
        if least is not None and (probability is None or probability < least):
            return Selection(None, choice, probability, "below-threshold")
        if choice not in self._models:
            return Selection(None, choice, probability, "no-model-for-choice")
        return Selection(self._models[choice], choice, probability)


def _model_question(choices: tuple[ModelChoice, ...]) -> Questions:
    criteria = {choice.name or choice.model: choice.criteria for choice in choices}
    question = "Which model should answer the request?"
    return {_CHOICE: ChoiceQuestion(type="choice", question=question, choices=criteria)}


_CHOOSE = (
    "You choose the model that answers a user's request. Take the least capable one that still does the job well; "
    "the criteria say what each is for."
)
_ASK = "You answer questions about a user's request."
