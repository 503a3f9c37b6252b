"""Calls the hooks of a processor as a run does, with the runners of the services."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import asdict

from procession import hooks
from procession.args import APIError, RequestContext, State, Violation
from procession.calls import Calls, Link
from procession.context import RunContext
from procession.errors import TripWire
from procession.message_list import MessageList
from procession.processor import METHODS, Hook, Processor
from procession.prompt import to_prompt
from procession.response import ResponseCollector
from procession.services import Environment
from procession.testing import answers
from procession.testing.environment import environment as make_environment
from procession.testing.outcomes import (
    ErrorOutcome,
    Outcome,
    RequestOutcome,
    StepOutcome,
    StreamOutcome,
    ToolOutcome,
)
from procession.testing.run import KitRun
from procession_schemas.chunks import Chunk
from procession_schemas.messages import Message
from procession_schemas.work import StepConfig

AnyProcessor = type[Processor[Any]] | Processor[Any]
_OUTSIDE = (Hook.INPUT, Hook.OUTPUT_RESULT)
"""Hooks with no attempt to take back (R-AB-27)."""


class ProcessorKit:
    """One run of one processor: each method calls one hook and tells what came of it.

    The calls share what a run shares: state, conversation, steps, retry count. An attempt that was aborted is taken
    back and, where a retry was asked for, counted; the next answer counts the one before as a step. What a hook raises
    comes out as `ProcessorError` with the original as its cause, an abort as `outcome.tripwire`.

    Args:
        processor: A class, or an instance made with `build`.
        options: Options of a class, in either spelling.
        then: Processors behind it in the array, to test what they get.
        id: Its instance id (`as` in an agent); by default the id of the class.
        instructions: System message of the run.
        model: `provider/name`.
        request_context: The caller's data.
        on_error: What an exception in a hook does, as in an agent.
        timeout: Seconds that one call may take.
        environment: Models, store and time, as `procession.testing.environment(...)` makes them.

    Raises:
        InvalidOptionsError: An option is unknown or wrong.
    """

    def __init__(
        self,
        processor: AnyProcessor,
        options: Mapping[str, Any] | None = None,
        *,
        then: Sequence[AnyProcessor] = (),
        id: str | None = None,  # noqa: A002 - the contract's word
        instructions: str = "",
        model: str = "test/model",
        request_context: Mapping[str, Any] | None = None,
        on_error: Literal["fail", "skip"] | None = None,
        timeout: float | None = None,
        environment: Environment | None = None,
    ) -> None:
        first = processor.build(dict(options or {})) if isinstance(processor, type) else processor
        behind = [other.build() if isinstance(other, type) else other for other in then]
        self.id = id or first.id
        array = [Link(first, self.id, 0, on_error, timeout)]
        array += [Link(other, other.id, place) for place, other in enumerate(behind, 1)]
        self._run = KitRun(array, model, request_context or {}, environment or make_environment())
        if instructions:
            self._run.context.messages.add_system(instructions)

    # --- what the run has ----------------------------------------------------------------------

    @property
    def context(self) -> RunContext:
        """The run's data; set `step_number`, `retry_count` or `steps` to test a later moment of a run."""
        return self._run.context

    @property
    def state(self) -> State:
        """The processor's state."""
        return self.context.state(self.id)

    @property
    def message_list(self) -> MessageList:
        """The conversation; add to it what a test needs."""
        return self.context.messages

    @property
    def messages(self) -> list[Message]:
        """The conversation's messages, oldest first."""
        return self.context.messages.get.all.db()

    @property
    def request_context(self) -> RequestContext:
        """The caller's data."""
        return self.context.request_context

    @property
    def written(self) -> list[Chunk]:
        """Every `data-*` chunk that reached the client."""
        return self._run.written

    @property
    def violations(self) -> list[Violation]:
        """What was reported as a violation, once for each abort."""
        return self._run.violations

    @property
    def calls(self) -> Calls:
        """The tallies of all hooks (`report(link, hook)`), and the signal that tells hooks of a cancelled run."""
        return self._run.calls

    # --- what happens without a hook -----------------------------------------------------------

    def prompt(self) -> list[dict[str, Any]]:
        """The prompt of the next call, feedback for a retried attempt included."""
        self._run.begin_answer()
        return to_prompt(self.message_list)

    def answer(
        self,
        text: str = "",
        *,
        tool_calls: Sequence[Mapping[str, Any]] = (),
        finish_reason: str | None = None,
        usage: Mapping[str, int | None] | None = None,
    ) -> None:
        """Lets the model answer, past the stream processors; arguments as in `answers.answer`."""
        run = self._run
        run.begin_answer()
        told = {"tool_calls": tool_calls, "finish_reason": finish_reason, "usage": usage}
        run.arrive(self._whole([text] if text else [], **told))

    # --- the hooks -----------------------------------------------------------------------------

    async def input(self, messages: Any = ()) -> Outcome:
        """Calls `process_input`, after adding messages (a text, a message, or a list of these) as the caller's."""
        self.context.messages.add(messages, "input")
        return Outcome(
            **await self._call(Hook.INPUT, lambda links: hooks.run_input(self.context, links, self.calls))
        )

    async def input_step(self, **config: Any) -> StepOutcome:
        """Calls `process_input_step` at the beginning of an attempt.

        Args:
            config: Settings of the run: `model`, `tools` (`{name: {"id": ...}}`), `tool_choice`, `active_tools`,
                `model_settings`, `provider_options`, `structured_output`.
        """
        run = self._run
        run.config = StepConfig.checked({**asdict(run.config), **config})
        run.accept()
        run.begin()
        told = await self._call(
            Hook.INPUT_STEP,
            lambda links: hooks.run_input_step(self.context, links, self.calls, run.writer()),
        )
        return StepOutcome(config=self.context.config, **told)

    async def llm_request(self, prompt: list[dict[str, Any]] | None = None) -> RequestOutcome:
        """Calls `process_llm_request` on a prompt, by default that of the conversation."""
        run = self._run
        run.begin_answer()
        self.context.prompt = prompt
        told = await self._call(
            Hook.LLM_REQUEST,
            lambda links: hooks.run_llm_request(self.context, links, self.calls, run.writer()),
        )
        return RequestOutcome(prompt=self.context.prompt or [], response=self.context.cached, **told)

    async def stream(
        self,
        chunks: Sequence[str | Chunk],
        *,
        tool_calls: Sequence[Mapping[str, Any]] = (),
        finish_reason: str | None = None,
    ) -> StreamOutcome:
        """Calls `process_output_stream` for each chunk of an answer.

        Args:
            chunks: Texts, which make a whole answer (see `answers.answer`); or, as soon as one of them is a chunk,
                exactly the chunks of a stream, a text being one `text-delta`.
            tool_calls: `{"toolName", "args"?, "toolCallId"?}` behind the texts.
            finish_reason: By default `stop`, or `tool-calls`.
        """
        run, collector = self._run, ResponseCollector(keep_chunks=True)
        run.begin_answer()
        start = len(run.delivered)

        async def feed(_links: list[Link]) -> None:
            chain = run.chain(collector)
            try:
                async with chain:
                    for chunk in self._whole(chunks, tool_calls=tool_calls, finish_reason=finish_reason):
                        await chain.feed(chunk)
                    await chain.end()
                run.take(collector)
            except Exception as error:
                if spoiled := chain.spoiled(error):
                    raise spoiled from error
                raise

        told = await self._call(Hook.OUTPUT_STREAM, feed)
        made = collector.to_dict()
        return StreamOutcome(
            chunks=run.delivered[start:], text=made["text"], tool_calls=made["toolCalls"], **told
        )

    async def llm_response(
        self, chunks: Sequence[str | Chunk] | None = None, *, from_cache: bool = False
    ) -> Outcome:
        """Calls `process_llm_response` with the answer of the last `stream`, or with one given here as there."""
        run = self._run
        if chunks is not None:
            run.begin_answer()
            run.arrive(self._whole(chunks))
        run.answered("llm_response([...])")["fromCache"] = from_cache
        return Outcome(
            **await self._call(
                Hook.LLM_RESPONSE,
                lambda links: hooks.run_llm_response(self.context, links, self.calls, run.writer()),
            )
        )

    async def output_step(
        self,
        text: str | None = None,
        *,
        tool_calls: Sequence[Mapping[str, Any]] = (),
        finish_reason: str | None = None,
        usage: Mapping[str, int | None] | None = None,
    ) -> Outcome:
        """Calls `process_output_step` with the answer of the last `stream`, or with one given here."""
        run = self._run
        if text is not None or tool_calls:
            self.answer(text or "", tool_calls=tool_calls, finish_reason=finish_reason, usage=usage)
        run.answered("output_step(text=...)")
        return Outcome(
            **await self._call(
                Hook.OUTPUT_STEP,
                lambda links: hooks.run_output_step(self.context, links, self.calls, run.writer()),
            )
        )

    async def tool_result(self, tool_name: str, result: Any, *, args: Any = None) -> ToolOutcome:
        """Calls `process_tool_result` for the waiting call of that tool, or for a call made up here."""
        run, ctx = self._run, self.context
        waiting = [c for c in ctx.messages.pending_tool_calls() if c["toolName"] == tool_name]
        if not waiting:
            call_id = f"call-{len(ctx.steps) + 1}"
            self.answer(tool_calls=[{"toolName": tool_name, "toolCallId": call_id, "args": args or {}}])
            waiting = [c for c in ctx.messages.pending_tool_calls() if c["toolCallId"] == call_id]
        outcome: dict[str, Any] = {
            "toolCallId": waiting[0]["toolCallId"],
            "toolName": tool_name,
            "args": waiting[0]["args"],
            "result": result,
        }
        ctx.outcomes.append(outcome)

        async def record(links: list[Link]) -> None:
            writer = run.writer(chained=False)
            await hooks.run_tool_result(ctx, links, self.calls, writer, outcome)
            if "result" in outcome:
                ctx.messages.set_tool_result(outcome["toolCallId"], outcome["result"])

        told = await self._call(Hook.TOOL_RESULT, record)
        return ToolOutcome(result=outcome.get("result"), **told)

    async def output_result(self, text: str | None = None, *, finish_reason: str = "stop") -> Outcome:
        """Calls `process_output_result` at the end of the run, after a last answer where a text is given."""
        run = self._run
        if text is not None:
            self.answer(text)
        run.accept()

        async def finish(links: list[Link]) -> None:
            writer = run.writer(chained=False)
            await hooks.run_output_result(self.context, links, self.calls, writer, finish_reason)
            run.keep_pending()

        return Outcome(**await self._call(Hook.OUTPUT_RESULT, finish))

    async def api_error(self, message: str = "the provider failed", **fields: Any) -> ErrorOutcome:
        """Calls `process_api_error` with an `APIError`; `fields` are its others, such as `status_code`."""
        run, retry = self._run, False
        run.begin_attempt()

        async def ask(links: list[Link]) -> None:
            nonlocal retry
            error = APIError(message, **fields)
            retry = await hooks.run_api_error(self.context, links, self.calls, run.writer(), error)
            if retry:
                run.reject("retry")

        told = await self._call(Hook.API_ERROR, ask)
        return ErrorOutcome(retry=retry, **told)

    # --- inside --------------------------------------------------------------------------------

    async def _call(self, hook: Hook, call: Callable[[list[Link]], Awaitable[None]]) -> dict[str, Any]:
        """Runs one hook and returns the fields of its outcome; raises ValueError where no processor has it."""
        run = self._run
        links = run.links(hook)
        if not links:
            raise ValueError(f"{self.id} has no {METHODS[hook]}")
        tripwire, start = None, len(run.written)
        try:
            await call(links)
        except TripWire as raised:
            tripwire = raised
            if hook not in _OUTSIDE:
                run.reject("retry" if raised.retry else "tripwire", raised)
        run.travel(hook)
        return {
            "tripwire": tripwire,
            "messages": self.messages,
            "system": self.message_list.get_all_system_messages(),
            "written": run.written[start:],
        }

    def _whole(self, chunks: Sequence[str | Chunk], **fields: Any) -> list[Chunk]:
        texts = [chunk for chunk in chunks if isinstance(chunk, str)]
        if len(texts) == len(chunks):
            return answers.answer(texts, message_id=self.context.message_id, **fields)
        return [answers.text_delta(chunk) if isinstance(chunk, str) else chunk for chunk in chunks]
