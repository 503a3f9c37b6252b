"""The base of all detectors that ask a model: options, which messages, the call, its failure, text in a stream.

A detector derives from `Detector[ItsOptions]`, `ItsOptions` from `DetectorOptions` (plus `StreamOptions` where it
judges streams), and uses three methods:

- `ask(args, text, schema=..., system=...)` asks the model; None where it failed and `errorStrategy` is `warn`;
- `each_message(args, judge)` runs `judge(message, text)` over the messages to examine;
- `stream(args, judge)` holds and judges the text of a stream; use it in `process_output_stream`, and
  `flush(args, judge)` in `flush_stream`.
"""

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from procession.args import HookArgs, InputArgs, OutputResultArgs, OutputStreamArgs
from procession.processor import Options, Processor
from procession.services import ModelCallError, ModelRequest, object_of
from procession_schemas.chunks import Chunk
from procession_schemas.messages import Message
from procession_services.processors.core.detector_text import UNTRUSTED, detector_text, examined_ids, fenced
from procession_services.processors.core.judged_stream import Judge, JudgedStream, StreamMode
from procession_services.processors.core.lenient_options import LenientOptions

JudgeMessage = Callable[[Message, str], Awaitable[Message | None]]
"""Judges a message with its text; returns it, another in its place, or None to drop it."""


class StructuredOutputOptions(Options):
    """How the answer's form is asked for."""

    json_prompt_injection: bool = Field(
        default=False,
        description="Ask for JSON in the prompt, for models without a response format of their own.",
    )


class DetectorOptions(LenientOptions):
    """Options of every detector that asks a model."""

    model: str = Field(description="Model of the detector, `provider/name`.", min_length=1)
    instructions: str = Field(default="", description="System prompt in place of the detector's own.")
    last_message_only: bool = Field(default=False, description="Judge the newest message only.")
    scope: Literal["new", "all"] = Field(
        default="new",
        description="`new`: judge what this request brings. `all`: everything, recalled history included (D-7).",
    )
    error_strategy: Literal["strict", "warn"] = Field(
        default="strict",
        description="When the model fails. `strict`: the run is blocked. `warn`: the text passes unjudged (D-1).",
    )
    structured_output_options: StructuredOutputOptions = Field(
        default_factory=StructuredOutputOptions, description="How the answer's form is asked for."
    )
    provider_options: dict[str, Any] = Field(
        default_factory=dict, description="Passed to the provider, by provider name."
    )
    timeout: float = Field(default=30.0, gt=0, description="Seconds until a model call counts as failed.")


class StreamOptions(DetectorOptions):
    """Options of detectors that judge the text of a stream as well."""

    chunk_window: int = Field(
        default=0,
        ge=0,
        le=100,
        description="How many earlier pieces are judged along with each piece (D-14).",
    )
    stream_mode: StreamMode = Field(
        default="hold",
        description="`hold`: text goes out once every piece that it was judged with has passed. `window`: once it has "
        "been judged itself. `observe`: at once, and only warnings follow.",
    )
    piece_size: int = Field(
        default=200,
        ge=1,
        le=20_000,
        description="Characters after which a piece ends with its sentence; each piece costs one model call.",
    )
    max_wait: float | None = Field(
        default=None,
        gt=0,
        description="Seconds after which held text is judged even if its piece is not complete. Verdicts then "
        "depend on the provider's pace; without this option, only on the text (D-8).",
    )

    @model_validator(mode="after")
    def _stream_mode_fits(self) -> Self:
        strategy = getattr(self, "strategy", "warn")
        if self.stream_mode == "observe" and strategy != "warn":
            raise ValueError(
                f"streamMode 'observe' lets text out before it is judged, so strategy {strategy!r} cannot keep it in; "
                "use strategy 'warn', or streamMode 'hold' or 'window'"
            )
        if self.stream_mode == "window" and not self.chunk_window:
            raise ValueError(
                "streamMode 'window' needs chunkWindow >= 1; without earlier pieces it would be 'hold'"
            )
        return self


class ParallelOptions(DetectorOptions):
    """Options of detectors that may judge the input beside the model call."""

    parallel: bool = Field(
        default=False,
        description="Judge the input while the model is already answering; the answer waits for the verdict.",
    )

    @model_validator(mode="after")
    def _parallel_changes_nothing(self) -> Self:
        if self.parallel and getattr(self, "strategy", "block") not in {"block", "warn"}:
            raise ValueError(
                "parallel: the model has already read the input by then, so strategy must be 'block' or 'warn'"
            )
        return self


DetectorT = TypeVar("DetectorT", bound=DetectorOptions)


class Detector(Processor[DetectorT]):
    """A processor that has a model judge text.

    Class attributes:
        subject: What failed, in the reason of a strict block: `Moderation`.
    """

    on_error = "fail"
    subject: ClassVar[str] = "Detection"

    @classmethod
    def runs_parallel(cls, options: dict[str, Any]) -> bool:
        """Whether an instance with these options runs beside the model call instead of before it."""
        return bool(options.get("parallel"))

    async def ask(
        self, args: HookArgs, text: str, *, schema: dict[str, Any], system: str, remark: str = ""
    ) -> Any:
        """Has the model judge a text (R-COM-18, R-COM-19).

        Args:
            args: Arguments of the hook.
            text: What is judged; it is quoted so that it cannot pose as instructions.
            schema: JSON Schema of the answer.
            system: System prompt, unless the option `instructions` gives one.
            remark: What the user prompt says beside the text.

        Returns:
            The answer, or None where the model failed and `errorStrategy` is `warn` (R-COM-21).

        Raises:
            TripWire: The model failed, and `errorStrategy` is `strict`.
        """
        options = self.options
        question = f"{remark}\n\n{fenced(text)}" if remark else fenced(text)
        request = ModelRequest(
            model=options.model,
            prompt=[
                {"role": "system", "content": f"{options.instructions or system}\n\n{UNTRUSTED}"},
                {"role": "user", "content": [{"type": "text", "text": question}]},
            ],
            schema=schema,
            json_prompt_injection=options.structured_output_options.json_prompt_injection,
            model_settings={"temperature": 0},
            provider_options=options.provider_options,
            timeout=options.timeout,
        )
        return await self.answered(args, request)

    async def answered(self, args: HookArgs, request: ModelRequest) -> Any:
        """Makes a model call with this detector's treatment of failures; returns and raises as `ask` does."""
        problem = "gave no answer"
        try:
            answer = await args.services.generate(request)
            problem = "gave an answer that does not fit its schema"
            return object_of(answer, request.schema or {})
        except ModelCallError:  # its text may quote the conversation
            args.services.warn(
                f"{self.subject} failed: {request.model} {problem} ({self.options.error_strategy})"
            )
        if self.options.error_strategy == "strict":
            args.abort(f"{self.subject} failed: the model of {self.id} gave no usable answer")
        return None

    async def each_message(
        self, args: InputArgs | OutputResultArgs, judge: JudgeMessage
    ) -> list[Message] | None:
        """Judges the messages that the options name, one after another (R-COM-15..17, D-7).

        Returns:
            The messages as `judge` leaves them; None where it changed nothing.
        """
        new = None
        if isinstance(args, InputArgs) and self.options.scope == "new":
            new = args.message_list.get.input.db()
        ids = examined_ids(args.messages, new, last_only=self.options.last_message_only)
        out: list[Message] = []
        changed = False
        for message in args.messages:
            text = detector_text(message) if message["id"] in ids else ""
            judged = await judge(message, text) if text else message
            changed = changed or judged is not message
            if judged is not None:
                out.append(judged)
        return out if changed else None

    async def stream(self, args: OutputStreamArgs, judge: Judge) -> list[Chunk]:
        """Takes a chunk of a stream: text is held until `judge` has seen it, everything else keeps its place.

        Raw events of the provider, which have the text as it was, go nowhere unless the stream is only observed (D-89).
        """
        options: Any = self.options
        if args.part["type"] == "raw" and options.stream_mode != "observe":
            return []
        held = self._judged(args, judge)
        waits = held.holds
        out = await held.take(args.part)
        self._wake(args, held, waits=waits)
        return out

    async def flush(self, args: OutputStreamArgs, judge: Judge) -> list[Chunk]:
        """Judges and gives out what is held."""
        return await self._judged(args, judge).flush()

    def _judged(self, args: OutputStreamArgs, judge: Judge) -> JudgedStream:
        options: Any = self.options
        held = args.own("stream")
        return JudgedStream(held, judge, options.stream_mode, options.piece_size, options.chunk_window)

    def _wake(self, args: OutputStreamArgs, held: JudgedStream, *, waits: bool) -> None:
        """Has the runtime come back: at once to abort, else when held text has waited for `maxWait`."""
        limit: float | None = self.options.max_wait  # type: ignore[attr-defined]  # one with StreamOptions
        if held.tripped:
            args.wake_after(0)
        elif limit is not None and held.holds != waits:
            args.wake_after(limit if held.holds else None)
