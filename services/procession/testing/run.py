"""The run that a kit plays: attempts begin, are accepted or taken back, and the data travel in between."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from itertools import count
from typing import Any

import orjson

from procession.args import RequestContext, Violation, Writer
from procession.calls import Calls, Link
from procession.context import RunContext, add_usage
from procession.errors import ProcessorError, TripWire
from procession.json_values import UNTOUCHED
from procession.message_list import MessageList
from procession.processor import Hook
from procession.response import ResponseCollector
from procession.services import Environment
from procession.steps import current_step
from procession.stream import StreamChain
from procession.system_messages import feedback
from procession.writers import TurnWriter
from procession_schemas.chunks import Chunk
from procession_schemas.messages import StepResult
from procession_schemas.work import StepConfig


class KitRun:
    """What the orchestrator and the services do around the hooks, as far as one processor can see it."""

    def __init__(
        self,
        array: list[Link],
        model: str,
        request_context: Mapping[str, Any],
        environment: Environment,
    ) -> None:
        self.array = array
        self.config = StepConfig(model=model)
        self._new_id = map("message-{}".format, count(1)).__next__
        self.context = RunContext(
            run_id="run-1",
            tenant="test",
            agent="test",
            message_id="answer-1",
            messages=MessageList(new_id=self._new_id, now=_now),
            request_context=RequestContext(request_context),
        )
        self.violations: list[Violation] = []
        self.delivered: list[Chunk] = []
        self.calls = Calls(clock=lambda: 0, violation=self._violated, environment=environment)
        self._parts: list[list[Chunk]] = [[] for _ in array]
        self._feedback: list[str] = []
        self._started = self._open = False

    @property
    def written(self) -> list[Chunk]:
        """The `data-*` chunks among those that reached the client."""
        return [chunk for chunk in self.delivered if chunk["type"].startswith("data-")]

    def links(self, hook: Hook) -> list[Link]:
        """The processors that have the hook."""
        return [
            link
            for link in self.array
            if hook in link.processor.traits(link.processor.options.model_dump(by_alias=True)).hooks
        ]

    # --- attempts ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begins an attempt: system messages and settings are those of the run again (R-SY-3, R-IS-8)."""
        ctx = self.context
        if not self._started:
            self._started = True
            ctx.messages.freeze_baseline()
        ctx.messages.reset_system(self._feedback)
        ctx.messages.begin_response(ctx.message_id)
        ctx.config = deepcopy(self.config)
        ctx.prompt = ctx.cached = ctx.response = None
        ctx.outcomes = []
        self._open = True

    def begin_attempt(self) -> None:
        """Makes sure that an attempt is under way."""
        if not self._open:
            self.begin()

    def begin_answer(self) -> None:
        """Makes sure of an attempt that has no answer yet."""
        if self.context.response is not None:
            self.accept()
        self.begin_attempt()

    def accept(self) -> None:
        """Counts the attempt as a step, where it has an answer."""
        ctx = self.context
        if not self._open or ctx.response is None:
            return
        ctx.steps.append(current_step(ctx))
        ctx.messages.accept_response()
        ctx.response["accepted"] = True
        ctx.step_number += 1
        self._open, self._feedback = False, []

    def reject(self, reason: str, tripwire: TripWire | None = None) -> None:
        """Takes the attempt back; one that is tried again is counted (R-AB-28)."""
        ctx = self.context
        if self._open:
            ctx.messages.rollback_response(failed=tripwire is None)
        step: StepResult = {"stepNumber": ctx.step_number, "text": "", "finishReason": reason}
        if tripwire:
            step["tripwire"] = {"reason": tripwire.reason, "processorId": tripwire.processor_id}
            self._feedback.append(feedback(tripwire.reason))
        if reason == "retry":
            ctx.retry_count += 1
        ctx.steps.append(step)
        ctx.response, ctx.outcomes, ctx.pending_parts = None, [], []
        self._open = False

    # --- the answer of the model ---------------------------------------------------------------

    def arrive(self, chunks: Iterable[Chunk]) -> None:
        """Takes an answer that no stream processor saw."""
        collector = ResponseCollector(keep_chunks=True)
        for chunk in chunks:
            collector.arrived(chunk)
            collector.passed(chunk)
        self.take(collector)

    def take(self, collector: ResponseCollector) -> None:
        """Puts an answer into the conversation."""
        ctx = self.context
        ctx.response = collector.to_dict()
        ctx.usage = add_usage(ctx.usage, ctx.response["usage"])
        ctx.pending_parts += collector.parts
        self.keep_pending()

    def answered(self, how: str) -> dict[str, Any]:
        """The answer of the attempt; raises ValueError when there is no answer yet."""
        if self.context.response is None:
            raise ValueError(f"there is no answer yet; call stream(...) first, or {how}")
        return self.context.response

    def keep_pending(self) -> None:
        """Keeps parts with the answer (R-WR-8)."""
        ctx = self.context
        if ctx.pending_parts:
            if not self._started:
                self.begin()
            ctx.messages.append_response_parts(ctx.pending_parts)
            ctx.pending_parts = []

    # --- chunks --------------------------------------------------------------------------------

    def chain(self, collector: ResponseCollector) -> StreamChain:
        """The stream processors, for the chunks of an answer."""
        return self._chain(self.links(Hook.OUTPUT_STREAM), collector)

    def writer(self, *, chained: bool = True) -> Writer:
        """A writer for hooks outside the stream: through the stream processors, or straight (R-WR-7)."""
        links = self.links(Hook.OUTPUT_STREAM) if chained else []
        return TurnWriter(self._chain(links, None).feed)

    def _chain(self, links: list[Link], collector: ResponseCollector | None) -> StreamChain:
        parts = [self._parts[link.index] for link in links]
        deliver = self._deliver_written if collector is None else self._deliver
        return StreamChain(links, self.context, self.calls, deliver, parts=parts, collector=collector)

    def _deliver(self, chunk: Chunk) -> None:
        try:
            self.delivered.append(orjson.loads(orjson.dumps(chunk, option=UNTOUCHED)))
        except TypeError as error:
            text = f"a chunk ({chunk['type']}) contains something that is not JSON: {error}"
            raise ProcessorError(text, code="CHUNK_NOT_SENDABLE") from error

    def _deliver_written(self, chunk: Chunk) -> None:
        self._deliver(chunk)
        if chunk["type"].startswith("data-") and not chunk.get("transient"):
            self.context.pending_parts.append({"type": chunk["type"], "data": chunk.get("data")})

    # --- between the services ------------------------------------------------------------------

    def travel(self, hook: Hook) -> None:
        """Sends the run's data from one service to the next.

        Raises:
            ProcessorError: Something in them is not JSON.
        """
        ctx = self.context
        for link in self.array:
            ctx.state(link.id)
        try:
            body = ctx.to_json(hook.value)
        except ProcessorError as error:
            if error.code == "CONTEXT_NOT_JSON" and len(links := self.links(hook)) == 1:
                error.processor_id = links[0].id
            raise
        data = orjson.loads(body)
        self.context = RunContext.from_dict(data, new_id=self._new_id, now=_now)

    async def _violated(self, violation: Violation, _hook: Hook, _retry: bool) -> None:  # noqa: FBT001 - a callback's shape
        self.violations.append(violation)


def _now() -> str:
    return "2026-01-01T00:00:00.000Z"
