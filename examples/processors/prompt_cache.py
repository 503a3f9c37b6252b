"""`prompt-cache`: `process_llm_request` and `process_llm_response` work together through the state."""

from collections import OrderedDict
from typing import Any

from pydantic import Field

from procession import LLMRequestArgs, LLMRequestResult, LLMResponseArgs, Options, Processor


class PromptCacheOptions(Options):
    """Options of `prompt-cache`."""

    entries: int = Field(default=100, ge=1, description="Answers that are kept.")


class PromptCache(Processor[PromptCacheOptions]):
    """Answers a prompt that was answered before without a call.

    The cache belongs to the process, not to a run, so it is the one thing that may live on the instance. Replayed
    chunks go through the output processors like live ones. For production it lacks two things: all replicas should
    share the answers, and the key should hold whatever else changes them, such as tools and settings.
    """

    id = "prompt-cache"
    description = "Replays answers to prompts that this process has seen."

    def __init__(self, options: PromptCacheOptions) -> None:
        super().__init__(options)
        self._answers: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()

    def process_llm_request(self, args: LLMRequestArgs) -> LLMRequestResult | None:
        """Answers in the model's place, or leaves the key for the other hook."""
        args.state["key"] = key = f"{args.model.id} {args.prompt!r}"
        return {"response": {"chunks": self._answers[key]}} if key in self._answers else None

    def process_llm_response(self, args: LLMResponseArgs) -> None:
        """Keeps a live answer."""
        if args.from_cache:
            return
        self._answers[args.state["key"]] = args.chunks
        if len(self._answers) > self.options.entries:
            self._answers.popitem(last=False)
