"""Questions about a text, the schema of their answers, and conditions on them (builtins.md 22).

An answer is `{"type": "boolean", "probability"}` or `{"type": "choice", "choice", "probabilities"?}`.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import Field

from procession.processor import Options
from procession_services.processors.core.category_scores import PROBABILITY


class Answer(TypedDict):
    """The answer to one question; probabilities go from 0 to 1."""

    type: Literal["boolean", "choice"]
    probability: NotRequired[float]
    choice: NotRequired[str]
    probabilities: NotRequired[dict[str, float]]


class BooleanQuestion(Options):
    """A question whose answer is the probability of yes."""

    type: Literal["boolean"] = Field(description="Answered by a probability.")
    question: str = Field(min_length=1, description="What the model is asked.")


class ChoiceQuestion(Options):
    """A question with given answers."""

    type: Literal["choice"] = Field(description="Answered by one of `choices`.")
    question: str = Field(min_length=1, description="What the model is asked.")
    choices: dict[str, str] | list[str] = Field(
        min_length=2, description="The answers; as an object, each with a text that says when it is right."
    )

    @property
    def names(self) -> list[str]:
        """The answers."""
        return list(self.choices)


Question = Annotated[BooleanQuestion | ChoiceQuestion, Field(discriminator="type")]
Questions = Mapping[str, BooleanQuestion | ChoiceQuestion]


class Condition(Options):
    """When an answer counts: a boolean with at least a probability, or a choice (with at least one)."""

    question: str = Field(description="Name of the question.")
    is_: str | None = Field(default=None, alias="is", description="The choice that counts.")
    at_least: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Least probability: of yes (default 0.5), or of the choice (default: any).",
    )

    def holds(self, answers: Mapping[str, Answer]) -> bool:
        """Whether the answer is as it says; a choice without a probability does not reach a least one."""
        answer = answers[self.question]
        if answer["type"] == "boolean":
            return answer["probability"] >= (0.5 if self.at_least is None else self.at_least)
        if answer["choice"] != self.is_:
            return False
        return self.at_least is None or answer.get("probabilities", {}).get(self.is_, -1.0) >= self.at_least

    def problem(self, questions: Questions) -> str | None:
        """What is wrong with it for these questions, or None."""
        question = questions.get(self.question)
        if question is None:
            return f"there is no question {self.question!r}; the questions are {', '.join(questions)}"
        if isinstance(question, BooleanQuestion):
            return (
                f"{self.question!r} is a boolean question: give `atLeast`, not `is`"
                if self.is_ is not None
                else None
            )
        if self.is_ not in question.names:
            return f"{self.question!r} has no choice {self.is_!r}; `is` must be one of {', '.join(question.names)}"
        return None


def misfit(conditions: Iterable[Condition], questions: Questions) -> str | None:
    """What is wrong with the first condition that does not fit the questions, or None."""
    return next((problem for each in conditions if (problem := each.problem(questions))), None)


def answers_schema(questions: Questions, *, any_choice: bool = False) -> dict[str, Any]:
    """JSON Schema of the answers, by name of the question; `any_choice` allows choices that nobody offered."""
    return {
        "type": "object",
        "properties": {name: _answer_schema(each, any_choice=any_choice) for name, each in questions.items()},
        "required": list(questions),
    }


def _answer_schema(question: BooleanQuestion | ChoiceQuestion, *, any_choice: bool) -> dict[str, Any]:
    if isinstance(question, BooleanQuestion):
        return {"type": "object", "properties": {"probability": PROBABILITY}, "required": ["probability"]}
    probabilities = {
        "type": ["object", "null"],
        "properties": dict.fromkeys(question.names, PROBABILITY),
        "additionalProperties": PROBABILITY,
    }
    return {
        "type": "object",
        "properties": {
            "choice": {"type": "string", "minLength": 1} | ({} if any_choice else {"enum": question.names}),
            "probabilities": probabilities,
        },
        "required": ["choice"],
    }


def read_answers(reply: Mapping[str, Any], questions: Questions) -> dict[str, Answer]:
    """The answers in a reply that fits the schema."""
    return {name: _read(reply[name], question) for name, question in questions.items()}


def _read(given: Mapping[str, Any], question: BooleanQuestion | ChoiceQuestion) -> Answer:
    if isinstance(question, BooleanQuestion):
        return {"type": "boolean", "probability": given["probability"]}
    answer: Answer = {"type": "choice", "choice": given["choice"]}
    if given.get("probabilities"):
        answer["probabilities"] = dict(given["probabilities"])
    return answer


def questions_text(questions: Questions) -> str:
    """The questions as a model reads them."""
    return "\n".join(_told(name, question) for name, question in questions.items())


def _told(name: str, question: BooleanQuestion | ChoiceQuestion) -> str:
    if isinstance(question, BooleanQuestion):
        return f"- {name}: {question.question} Give the probability of yes, from 0 to 1."
    lines = [f"- {name}: {question.question} Choose one, and give each one's probability if you can:"]
    if isinstance(question.choices, dict):
        lines += [f"  - {choice}: {criteria}" for choice, criteria in question.choices.items()]
    else:
        lines += [f"  - {choice}" for choice in question.choices]
    return "\n".join(lines)
