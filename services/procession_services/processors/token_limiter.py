"""`token-limiter`: keeps a prompt and an answer inside a token budget (builtins.md 10; D-11, D-12, D-28).

No model calls. Input: the prompt of each call is trimmed, the conversation itself stays as it is; with
`trimMode: memory-only` recalled messages leave the conversation of the run. Output: chunks over the limit are dropped
or end the run, and the final messages are cut to the same limit.
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from procession.args import (
    HookArgs,
    InputArgs,
    InputStepArgs,
    LLMRequestArgs,
    LLMRequestResult,
    OutputResultArgs,
    OutputStreamArgs,
    RequestContext,
    StreamReturn,
)
from procession.errors import InvalidOptionsError
from procession.merging import calls_in
from procession.message_list import MessageList
from procession.messages import clone
from procession.processor import Hook, Options, Processor
from procession_schemas.messages import Message
from procession_services.processors.core.token_budget import (
    PER_CONVERSATION,
    calls_of_entry,
    calls_of_message,
    compact,
    fitting,
    items_of,
    linked,
    weigh_entry,
    weigh_message,
)
from procession_services.processors.core.token_counter import (
    ESTIMATOR,
    TokenCounter,
    encoding_of,
    is_installed,
    last_break,
    load,
    loaded,
)

_REACHED = "data-token-limit-reached"
_MEMORY_ONLY = "memory-only"


class TokenLimiterOptions(Options):
    """Options of `token-limiter`."""

    limit: int | float = Field(ge=0, description="The budget in tokens.")
    strategy: Literal["truncate", "abort"] = Field(
        default="truncate", description="Output: cut what is over the limit, or end the run."
    )
    count_mode: Literal["cumulative", "part"] = Field(
        default="cumulative", description="Streams: count all chunks together, or each by itself."
    )
    trim_mode: Literal["best-fit", "contiguous", "memory-only"] = Field(
        default="best-fit",
        description="Input: keep the newest that fit and fill up with older ones; stop at the first that does not "
        "fit; or only remove recalled messages (then output is not limited).",
    )
    at_max_remove_tokens: int | float | None = Field(
        default=None, description="memory-only: how far below the limit to go; by default a quarter of it."
    )
    encoding: Literal["auto", "estimate", "o200k_base", "cl100k_base"] = Field(
        default="auto",
        description="Count by the model's vocabulary where it is known, always by estimate, or by one vocabulary.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.trim_mode == _MEMORY_ONLY:
            removed = self.removed_tokens
            if not (math.isfinite(self.limit) and math.isfinite(removed) and 0 <= removed <= self.limit):
                raise ValueError(
                    "trimMode 'memory-only' needs a finite limit, and atMaxRemoveTokens between 0 and that limit"
                )
        return self

    @property
    def removed_tokens(self) -> float:
        """How far below the limit `memory-only` goes."""
        return self.limit * 0.25 if self.at_max_remove_tokens is None else self.at_max_remove_tokens


class TokenLimiter(Processor[TokenLimiterOptions]):
    """Limits the tokens of prompts and answers."""

    id = "token-limiter"
    name = "Token Limiter"
    description = "Keeps prompts and answers inside a token budget."
    on_error = "fail"

    def __init__(self, options: TokenLimiterOptions) -> None:
        super().__init__(options)
        if options.encoding not in ("auto", "estimate") and not is_installed():
            told = f"encoding {options.encoding!r} needs its vocabulary: install procession[tokens]"
            raise InvalidOptionsError(f"processor {self.id}: {told}", {"encoding": told})

    @classmethod
    def hooks_for(cls, options: dict[str, Any]) -> frozenset[Hook]:
        """`memory-only` works on the conversation; the other modes on prompts and answers."""
        if options.get("trimMode", options.get("trim_mode")) == _MEMORY_ONLY:
            return frozenset({Hook.INPUT, Hook.INPUT_STEP})
        return frozenset({Hook.LLM_REQUEST, Hook.OUTPUT_STREAM, Hook.OUTPUT_RESULT})

    @property
    def max_tokens(self) -> float:
        """The budget."""
        return self.options.limit

    # --- for subclasses ------------------------------------------------------------------------

    def count_message(self, message: Mapping[str, Any], counter: TokenCounter = ESTIMATOR) -> float:
        """The tokens of a stored message; override it to count differently (memory-only)."""
        return weigh_message(message).tokens(counter)

    def on_memory_trim(
        self, messages: list[Message], request_context: RequestContext
    ) -> Awaitable[None] | None:
        """Called before recalled messages are removed (memory-only)."""

    # --- input ---------------------------------------------------------------------------------

    async def process_input(self, args: InputArgs) -> None:
        """Removes recalled messages (memory-only)."""
        await self._trim_memory(args)

    async def process_input_step(self, args: InputStepArgs) -> None:
        """Removes recalled messages (memory-only); tool results may have made the conversation longer."""
        await self._trim_memory(args)

    async def process_llm_request(self, args: LLMRequestArgs) -> LLMRequestResult | None:
        """Leaves out of the prompt what does not fit; the conversation keeps it (R-TOKLIM-5)."""
        counter, prompt = await self._counter(args), args.prompt
        places = [place for place, entry in enumerate(prompt) if entry["role"] != "system"]
        kept = self._fit(
            args,
            system=sum(weigh_entry(entry).tokens(counter) for entry in prompt if entry["role"] == "system"),
            entries=[prompt[place] for place in places],
            tokens=[weigh_entry(prompt[place]).tokens(counter) for place in places],
            calls_of=calls_of_entry,
        )
        if len(kept) == len(places):
            return None
        gone = {place for index, place in enumerate(places) if index not in kept}
        return {"prompt": [entry for place, entry in enumerate(prompt) if place not in gone]}

    async def trim_list(self, args: InputStepArgs) -> None:
        """Removes what does not fit from the conversation itself, for callers without `process_llm_request`."""
        counter, messages = await self._counter(args), args.message_list.get.all.db()
        kept = self._fit(
            args,
            system=self._system_tokens(args.message_list, counter),
            entries=messages,
            tokens=[self.count_message(message, counter) for message in messages],
            calls_of=calls_of_message,
        )
        args.message_list.remove_by_ids({m["id"] for index, m in enumerate(messages) if index not in kept})

    def _fit(
        self,
        args: HookArgs,
        *,
        system: float,
        entries: Sequence[Mapping[str, Any]],
        tokens: list[float],
        calls_of: Callable[[Any], set[str]],
    ) -> set[int]:
        """The places of the entries that fit; trips where the rules want it (R-TOKLIM-6, R-TOKLIM-7, D-12)."""
        limit, trim = self.options.limit, self.options.trim_mode
        if not entries:
            args.abort(
                "The prompt has no messages besides system messages; there is nothing to send to a model."
            )
        told: dict[str, Any] = {"systemTokens": system, "limit": limit}
        if system + PER_CONVERSATION >= limit:
            args.abort(
                f"System messages ({system:g} tokens) and what frames a conversation ({PER_CONVERSATION:g}) use up the "
                f"limit of {limit:g}.",
                metadata=told,
            )
        budget = limit - system - PER_CONVERSATION
        items = items_of([entry["role"] for entry in entries], [calls_of(entry) for entry in entries], tokens)
        kept = fitting(items, budget, contiguous=trim == "contiguous")
        if kept is None:
            needed = sum(item.tokens for item in items if item.needed)
            why = (
                f"the newest user message and the tool results that answer it need {needed:g}"
                if needed > budget
                else "no message is that short"
            )
            args.abort(
                f"Of the limit of {limit:g} tokens {budget:g} are left for messages; {why}.",
                metadata={**told, "remainingBudget": budget, "messageCount": len(entries)},
            )
        return kept

    async def _trim_memory(self, args: InputArgs | InputStepArgs) -> None:
        """Removes recalled messages, oldest first, once the conversation is over the limit (R-TOKLIM-10)."""
        counter, conversation = await self._counter(args), args.message_list
        messages = conversation.get.all.db()
        tokens = [self.count_message(message, counter) for message in messages]
        total = PER_CONVERSATION + self._system_tokens(conversation, counter) + sum(tokens)
        if total <= self.options.limit:
            return
        target, removed = self.options.limit - self.options.removed_tokens, []
        for group in linked(calls_in(messages)):
            if total <= target:
                break
            if all(_is_recalled(conversation, messages[place]) for place in group):
                removed += group
                total -= sum(tokens[place] for place in group)
        if not removed:
            return
        gone = [messages[place] for place in removed]
        told = self.on_memory_trim(gone, args.request_context)
        if inspect.isawaitable(told):
            await told
        conversation.remove_by_ids({message["id"] for message in gone})

    def _system_tokens(self, conversation: MessageList, counter: TokenCounter) -> float:
        return sum(weigh_message(each).tokens(counter) for each in conversation.get_all_system_messages())

    # --- output --------------------------------------------------------------------------------

    async def process_output_stream(self, args: OutputStreamArgs) -> StreamReturn:
        """Drops text and object chunks over the limit, or aborts (R-TOKLIM-11..14)."""
        part = args.part
        if part["type"] not in ("text-delta", "object"):
            return part
        counter, kept = await self._counter(args), args.own("counted")
        whole = self.options.count_mode == "cumulative"
        tokens = _running(kept, part, counter) if whole else counter.count(_counted(part))
        if tokens <= self.options.limit:
            return part
        told = {"processorId": self.id, "limit": self.options.limit, "tokens": tokens}
        if self.options.strategy == "abort":
            args.abort(self._exceeded(tokens))
        if not kept.get("reached"):
            kept["reached"] = True
            await args.writer.custom({"type": _REACHED, "data": told, "transient": True})
            await args.services.violation(self._exceeded(tokens), told)
        return None

    async def process_output_result(self, args: OutputResultArgs) -> list[Message] | None:
        """Cuts the text parts of the answer where the limit is reached, or aborts (R-TOKLIM-15)."""
        counter, limit, total, cut = await self._counter(args), self.options.limit, 0.0, False
        messages: list[Message] = []
        for message in args.messages:
            copy = clone(message)
            for part in copy["content"]["parts"] if copy["role"] == "assistant" else ():
                if part["type"] != "text":
                    continue
                tokens = counter.count(part["text"])
                if total + tokens > limit:
                    if self.options.strategy == "abort":
                        args.abort(self._exceeded(total + tokens))
                    part["text"], cut = counter.first(part["text"], limit - total), True
                    tokens = counter.count(part["text"])
                total += tokens
            messages.append(copy)
        if not cut:
            return None
        await args.services.violation(f"The answer was cut at the limit of {limit:g} tokens")
        return messages

    def _exceeded(self, tokens: float) -> str:
        return f"The answer has {tokens:g} tokens; the limit is {self.options.limit:g}"

    async def _counter(self, args: HookArgs) -> TokenCounter:
        """What counts for the model of the step in hand."""
        encoding = self.options.encoding
        if encoding == "estimate":
            return ESTIMATOR
        name = encoding_of(args.services.model) if encoding == "auto" else encoding
        if name is None or not is_installed():
            return ESTIMATOR
        known = loaded(name)
        return known if known is not None else await asyncio.to_thread(load, name)


def _is_recalled(conversation: MessageList, message: Message) -> bool:
    return message["role"] != "system" and conversation.source_of(message["id"]) == "memory"


def _counted(part: Mapping[str, Any]) -> str:
    return str(part["payload"]["text"]) if part["type"] == "text-delta" else compact(part.get("object"))


def _running(kept: dict[str, Any], part: Mapping[str, Any], counter: TokenCounter) -> int:
    """The tokens so far, this chunk included.

    A vocabulary counts the running text, however it is cut into chunks; the estimate counts chunks.
    """
    settled, unsettled = _counted(part), str(kept.get("open", ""))
    if counter.exact and part["type"] == "text-delta":
        text = unsettled + settled
        place = last_break(text)
        settled, unsettled = text[:place], text[place:]
        kept["open"] = unsettled
    total = int(kept.get("currentTokens", 0)) + counter.count(settled)
    kept["currentTokens"] = total
    return total + counter.count(unsettled)


TokenLimiterProcessor = TokenLimiter
