"""`classifier`: has a model answer questions about a text, and acts on the answers (builtins.md 22.1).

What to do is said by `actions`, or in Python by overriding `on_result`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from procession.args import Abort, HookArgs, InputArgs, OutputResultArgs, OutputStreamArgs
from procession.errors import InvalidOptionsError
from procession.processor import Options
from procession.services import Services
from procession_schemas.chunks import Chunk
from procession_schemas.messages import Message
from procession_services.processors.core.judged_stream import Verdict
from procession_services.processors.core.option_codes import CodedOptionsError, coded
from procession_services.processors.core.questions import (
    Answer,
    Condition,
    Question,
    answers_schema,
    misfit,
    questions_text,
    read_answers,
)
from procession_services.processors.detector import Detector, StreamOptions

Phase = Literal["input", "output", "stream"]

_CODES = {
    "chunkWindow": "CLASSIFIER_PROCESSOR_INVALID_CHUNK_WINDOW",
    "maxInputLength": "CLASSIFIER_PROCESSOR_INVALID_MAX_INPUT_LENGTH",
    "questions": "CLASSIFIER_PROCESSOR_QUESTIONS_REQUIRED",
}


class Action(Options):
    """What happens when an answer is as `when` says."""

    when: Condition = Field(description="`{question, is}` or `{question, atLeast}`.")
    do: Literal["block", "retry", "filter", "warn"] = Field(
        description="`block`: the run ends. `retry`: the model tries again, inside its loop. `filter`: the message, "
        "or the piece of a stream, is dropped. `warn`: it passes, the violation is reported."
    )
    reason: str = Field(
        default="", description="What the client is told; by default the question and its answer."
    )


class ClassifierOptions(StreamOptions):
    """Options of `classifier`."""

    questions: dict[str, Question] = Field(
        min_length=1,
        description="What is asked, by name: `{type: boolean, question}` or `{type: choice, question, choices}`.",
    )
    actions: tuple[Action, ...] = Field(
        default=(), description="What to do; every action that applies is taken, until one blocks."
    )
    max_input_length: int | None = Field(
        default=None,
        ge=0,
        description="How many characters of a text are sent: the first of a message, the last of a stream; a longer "
        "piece of a stream is sent in parts.",
    )

    @model_validator(mode="after")
    def _actions_fit(self) -> Self:
        if wrong := misfit((action.when for action in self.actions), self.questions):
            raise ValueError(f"actions: {wrong}")
        acts = {action.do for action in self.actions} - {"warn"}
        if self.stream_mode == "observe" and acts:
            raise ValueError(
                f"streamMode 'observe' lets text out before it is judged; actions {', '.join(sorted(acts))} need "
                "'hold' or 'window'"
            )
        return self


@dataclass(slots=True)
class Classification:
    """One decision of `on_result`.

    Attributes:
        phase: Where the text comes from: `input`, `output` (the whole answer) or `stream`.
        text: The text that was classified.
        abort: Ends the run, as in every hook.
        services: As in every hook.
        filtered: Whether the message or piece is dropped.
        noted: Whether something was reported.
    """

    phase: Phase
    text: str
    abort: Abort
    services: Services
    filtered: bool = False
    noted: bool = False

    def filter(self) -> None:
        """Drops the message, or the piece of a stream."""
        self.filtered = True

    async def warn(self, message: str, detail: Any = None) -> None:
        """Reports a violation and lets the text pass."""
        self.noted = True
        await self.services.violation(message, detail)


class Classifier(Detector[ClassifierOptions]):
    """Asks about messages and streamed text (R-CLS)."""

    id = "classifier"
    name = "Classifier"
    description = "Has a model answer questions about a text, and acts on the answers."
    subject = "Classification"

    def __init__(self, options: ClassifierOptions) -> None:
        super().__init__(options)
        self._schema = answers_schema(options.questions)
        self._system = _PROMPT.format(questions=questions_text(options.questions))

    @classmethod
    def build(cls, options: dict[str, Any] | None = None) -> Self:
        """Makes an instance; raises InvalidOptionsError, with the contract's id where it has one (R-CLS-1)."""
        if options and "classifier" in options:
            told = (
                f"classifier {options['classifier']!r}: registered classifiers are not supported; "
                "give `model` and `questions`"
            )
            wrong = InvalidOptionsError(f"processor {cls.id}: {told}", {"classifier": told})
            raise CodedOptionsError("CLASSIFIER_PROCESSOR_MASTRA_NOT_REGISTERED", wrong)
        try:
            return super().build(options)
        except InvalidOptionsError as error:
            raise coded(error, _CODES) from error.__cause__

    async def on_result(self, answers: Mapping[str, Answer], call: Classification) -> None:
        """Acts on the answers: by default as `actions` say; override it to decide in code (R-CLS-3)."""
        for action in self.options.actions:
            if not action.when.holds(answers):
                continue
            question = action.when.question
            answer = answers[question]
            reason = action.reason or f"{question}: {answer.get('choice', 'yes')}"
            metadata = {"question": question, "answer": answer}
            if action.do in {"block", "retry"}:
                call.abort(reason, retry=action.do == "retry", metadata=metadata)
            if action.do == "filter":
                call.filter()
            await call.warn(reason, {**metadata, "action": action.do})
            call.services.warn(f"{question} applies ({action.do})")

    async def process_input(self, args: InputArgs) -> list[Message] | None:
        """Asks about the request's messages."""
        return await self._messages(args, "input")

    async def process_output_result(self, args: OutputResultArgs) -> list[Message] | None:
        """Asks about the answer as a whole."""
        return await self._messages(args, "output")

    async def process_output_stream(self, args: OutputStreamArgs) -> list[Chunk]:
        """Asks about the text of the stream, piece by piece."""
        return await self.stream(args, partial(self._piece, args))

    async def flush_stream(self, args: OutputStreamArgs) -> list[Chunk]:
        """Asks about what is held."""
        return await self.flush(args, partial(self._piece, args))

    async def _messages(self, args: InputArgs | OutputResultArgs, phase: Phase) -> list[Message] | None:
        async def judge(message: Message, text: str) -> Message | None:
            call = await self._classify(args, text[: self.options.max_input_length], phase)
            return None if call.filtered else message

        return await self.each_message(args, judge)

    async def _piece(self, args: OutputStreamArgs, text: str, piece: str) -> Verdict:
        noted = False
        for seen in _windows(text, len(text) - len(piece), self.options.max_input_length):
            call = await self._classify(args, seen, "stream")
            if call.filtered:
                return Verdict(None, flagged=True)
            noted = noted or call.noted
        return Verdict(piece, flagged=noted)

    async def _classify(self, args: HookArgs, text: str, phase: Phase) -> Classification:
        call = Classification(phase, text, args.abort, args.services)
        reply = await self.ask(args, text, schema=self._schema, system=self._system)
        if reply is not None:
            await self.on_result(read_answers(reply, self.options.questions), call)
        return call


def _windows(text: str, start: int, limit: int | None) -> list[str]:
    """What is sent of a text whose end, from `start` on, is new: no more than `limit` at once, and all that is new."""
    if not limit:
        return [text if limit is None else ""]
    ends = [*range(start + limit, len(text), limit), len(text)]
    return [text[max(0, end - limit) : end] for end in ends]


_PROMPT = """\
You answer questions about a text. The questions are:
{questions}

Answer each from the text alone."""
