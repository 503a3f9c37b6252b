"""`quality-guardrail`: has the model try again."""

from pydantic import Field

from procession import Options, OutputStepArgs, Processor


class QualityGuardrailOptions(Options):
    """Options of `quality-guardrail`."""

    threshold: float = Field(default=0.7, ge=0, le=1, description="The score that an answer needs.")
    attempts: int = Field(default=3, ge=0, description="Retries before the answer is blocked.")
    words: int = Field(default=10, ge=1, description="Words of an answer that scores 1.")


class QualityGuardrail(Processor[QualityGuardrailOptions]):
    """Rejects weak answers with a reason that the model reads before it tries again.

    The agent needs `maxProcessorRetries`; without a budget a request for a retry blocks at once.
    """

    id = "quality-guardrail"
    description = "Rejects weak answers and asks for better ones."

    def process_output_step(self, args: OutputStepArgs) -> None:
        """Judges the text of the attempt, before any tool runs."""
        score = self.score(args.text)
        if score >= self.options.threshold:
            return
        if args.retry_count < self.options.attempts:
            args.abort(
                "Response quality too low. Please provide more detail.",
                retry=True,
                metadata={"qualityScore": score},
            )
        args.abort("Response quality too low after multiple attempts.")

    def score(self, text: str) -> float:
        """How good a text is, from 0 to 1; here a matter of length, to be overridden with something better."""
        return min(1.0, len(text.split()) / self.options.words)
