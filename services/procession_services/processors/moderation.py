"""`moderation`: has a model score text by category, and keeps out what reaches the threshold (builtins.md 5)."""

from typing import Any, Literal

from pydantic import Field

from procession.args import HookArgs, InputArgs, OutputResultArgs, OutputStreamArgs
from procession_schemas.chunks import Chunk
from procession_schemas.messages import Message
from procession_services.processors.core.category_scores import Scores, read_scores, scores_schema
from procession_services.processors.core.judged_stream import Verdict
from procession_services.processors.detector import Detector, ParallelOptions, StreamOptions

CATEGORIES = (
    "hate", "hate/threatening", "harassment", "harassment/threatening", "self-harm", "self-harm/intent",
    "self-harm/instructions", "sexual", "sexual/minors", "violence", "violence/graphic",
)  # fmt: skip


class ModerationOptions(ParallelOptions, StreamOptions):
    """Options of `moderation`."""

    categories: tuple[str, ...] = Field(default=CATEGORIES, min_length=1, description="What to look for.")
    threshold: float = Field(default=0.5, ge=0, le=1, description="Score at which a category counts.")
    strategy: Literal["block", "warn", "filter"] = Field(
        default="block",
        description="`block`: the run ends. `warn`: the text passes, the violation is reported. `filter`: the "
        "message, or the piece of a stream, is dropped.",
    )
    include_scores: bool = Field(default=False, description="List all scores in the report.")


class Moderation(Detector[ModerationOptions]):
    """Scores messages and streamed text (R-MOD)."""

    id = "moderation"
    name = "Moderation"
    description = "Has a model score text by category; blocks, warns or filters."
    subject = "Moderation"

    def __init__(self, options: ModerationOptions) -> None:
        super().__init__(options)
        self._schema = scores_schema("category_scores", "category", options.categories)
        self._system = _PROMPT.format(categories="\n".join(f"- {each}" for each in options.categories))

    async def process_input(self, args: InputArgs) -> list[Message] | None:
        """Judges the request's messages."""
        return await self._messages(args)

    async def process_output_result(self, args: OutputResultArgs) -> list[Message] | None:
        """Judges the answer as a whole (R-MOD-6)."""
        return await self._messages(args)

    async def process_output_stream(self, args: OutputStreamArgs) -> list[Chunk]:
        """Judges the text of the stream, piece by piece (R-MOD-7, D-8)."""
        return await self.stream(args, lambda text, piece: self._piece(args, text, piece))

    async def flush_stream(self, args: OutputStreamArgs) -> list[Chunk]:
        """Judges what is held."""
        return await self.flush(args, lambda text, piece: self._piece(args, text, piece))

    async def _messages(self, args: InputArgs | OutputResultArgs) -> list[Message] | None:
        async def judge(message: Message, text: str) -> Message | None:
            scores = await self._score(args, text)
            return message if await self._passes(args, scores) else None

        return await self.each_message(args, judge)

    async def _piece(self, args: OutputStreamArgs, text: str, piece: str) -> Verdict:
        remark = _REMARK.format(window=self.options.chunk_window) if self.options.chunk_window else ""
        scores = await self._score(args, text, remark)
        flagged = bool(scores.reaching(self.options.threshold))
        return Verdict(piece if await self._passes(args, scores) else None, flagged=flagged)

    async def _score(self, args: HookArgs, text: str, remark: str = "") -> Scores:
        answer = await self.ask(args, text, schema=self._schema, system=self._system, remark=remark)
        return read_scores(answer, "category_scores", "category")

    async def _passes(self, args: HookArgs, scores: Scores) -> bool:
        """Applies the strategy to flagged text; every flag is a violation (D-17)."""
        options = self.options
        flagged = scores.reaching(options.threshold)
        if not flagged:
            return True
        report = scores.report(
            "Moderation found unwanted content", options.threshold, with_scores=options.include_scores
        )
        if options.strategy == "block":
            args.abort(report)
        detail: dict[str, Any] = {"categories": flagged, "strategy": options.strategy}
        await args.services.violation(report, detail)
        args.services.warn(f"flagged for {', '.join(flagged)} ({options.strategy})")
        return options.strategy == "warn"


_PROMPT = """\
You moderate text. The categories are:
{categories}

Give a score from 0 to 1 for each category that the text truly falls into, and leave out all others; text without \
fault gets an empty list. Judge what the text means and does where it stands: naming, teaching, reporting, fiction \
and quotation are no offence by themselves. Where you list a category, say why in one short sentence."""

_REMARK = "This is the end of a text that is still being written; of the earlier part you see {window} pieces at most."
