"""`observational-memory`: a model's notes stand in for the oldest messages of long threads (builtins.md 27.3)."""

from functools import partial
from typing import Final, Literal

from pydantic import Field

from procession.args import HookArgs, InputStepArgs, OutputResultArgs
from procession.message_list import MessageList
from procession.processor import Options, Processor
from procession.services import ModelCallError
from procession_schemas.memory import ObservationalConfig
from procession_schemas.messages import Message
from procession_services.memory.core.markers import temporal_markers
from procession_services.memory.core.observed import NOTHING, Observed, behind, tokens
from procession_services.memory.core.observing import system_text
from procession_services.memory.core.times import to_iso, to_millis
from procession_services.memory.history import MessageHistory, made_whole, put_behind
from procession_services.memory.notebook import Notebook
from procession_services.memory.scope import Conversation, conversation, current_memory
from procession_services.runtime import clock

__all__ = ["ObservationalMemory", "ObservationalMemoryOptions"]

TAG: Final = "observational-memory"


class ObservationalMemoryOptions(ObservationalConfig, Options):
    """Options of `observational-memory`: those of the configuration, and how the messages are saved."""

    save: Literal["end", "eager"] = Field(
        default="end", description="`eager`: store the input before the model is asked, too."
    )
    mark_partial: bool = Field(
        default=False, description="Give the answer of a cancelled run the metadata `partial: true`."
    )


class ObservationalMemory(Processor[ObservationalMemoryOptions]):
    """Loads notes and the messages that are in none, and sees to it that notes are made in time.

    They are made ahead, behind the runs (`observers.py`), and wait until there are too many messages; then they count
    from one moment to the next (R-OM-2). A run waits for an observer only where there are far too many.
    """

    id = "observational-memory"
    name = "Observational Memory"
    description = "Keeps notes of long threads in place of their oldest messages."
    host = "memory"

    def __init__(self, options: ObservationalMemoryOptions) -> None:
        super().__init__(options)
        self._history = MessageHistory.build({"save": options.save, "markPartial": options.mark_partial})

    async def process_input_step(self, args: InputStepArgs) -> MessageList | None:
        """Adds the messages that are in no note (once) and the notes (at each step).

        Raises:
            MemoryScopeError: There is no store here.
            TripWire: Messages or notes are far too long, and the observer makes no new notes (R-OM-3).
        """
        here = conversation(args.request_context, args.message_list)
        if here is None:
            return None
        if "notes" not in args.state:
            args.state["notes"] = await self._recall(args, here)
        if self.options.save == "eager":
            await self._history.process_input_step(args)
        if args.state["notes"]:
            args.message_list.add_system(args.state["notes"], TAG)
        return args.message_list

    async def process_output_result(self, args: OutputResultArgs) -> None:
        """Saves what is new, and has it noted where it has become much."""
        here = conversation(args.request_context, args.message_list)
        if here is None or here.read_only:
            return
        book = self._book(here)
        _put_behind_notes(args.message_list, await book.seen())
        await self._history.process_output_result(args)
        observed, messages = await book.load()
        if book.wants_notes(observed, messages) or book.wants_shortening(observed):
            await current_memory().observers.submit(book)
        elif self.options.observation.interval is None and self._too_much(observed, messages):
            try:
                await self._note(args, book)
            except ModelCallError:
                args.services.warn("the observer made no notes; the next run asks it again")

    async def _recall(self, args: InputStepArgs, here: Conversation) -> str:
        """Adds the messages that are in no note to the conversation; gives the notes, as the model is told them."""
        memory, book = current_memory(), self._book(here)
        if not here.read_only:
            await memory.store.create_thread(memory.tenant, here.thread, here.resource)
        observed, messages = await book.load()
        if not here.read_only:
            observed, messages = await self._in_time(args, book, observed, messages)
        await made_whole(args.message_list, memory, here, messages)
        put_behind(args.message_list, messages)
        present = {args.message_id, *(message["id"] for message in args.messages)}
        args.message_list.add([m for m in messages if m["id"] not in present], "memory")
        if self.options.temporal_markers:
            shown = args.message_list.get.all.db()
            args.message_list.add(temporal_markers(shown, observed.until.get(here.thread, "")), "memory")
        return system_text(observed) if observed.notes else ""

    async def _in_time(
        self, args: InputStepArgs, book: Notebook, observed: Observed, messages: list[Message]
    ) -> tuple[Observed, list[Message]]:
        """Lets notes count that wait, where there is too much; waits for an observer where there is far too much."""
        if self._too_much(observed, messages) and (observed.pieces or observed.condensed):
            observed, messages = await self._activate(args, book, messages)
        block_tokens = self.options.observation.block_tokens
        if tokens(messages) <= block_tokens and observed.tokens <= self.options.reflection.block_tokens:
            return observed, messages
        try:
            return await self._note(args, book)
        except ModelCallError:  # its text may quote the conversation
            args.abort(
                "Observation failed: messages or notes are far too long, and the observer made no new notes"
            )

    def _too_much(self, observed: Observed, messages: list[Message]) -> bool:
        options = self.options
        return (
            tokens(messages) > options.observation.message_tokens
            or observed.tokens > options.reflection.observation_tokens
        )

    async def _activate(
        self, args: HookArgs, book: Notebook, messages: list[Message]
    ) -> tuple[Observed, list[Message]]:
        """Has notes count that were made ahead; what they cost is shown in this run's report."""
        options, spent = self.options, NOTHING

        def change(observed: Observed) -> Observed | None:
            nonlocal spent
            made, spent = observed, NOTHING
            if tokens(messages) > options.observation.message_tokens:
                made, spent = observed.activated(book.thread, messages, options.observation.kept_tokens)
            if made.condensed and made.tokens > options.reflection.observation_tokens:
                spent += made.condensed.spent
                made = made.shortened(made.condensed)
            return None if made is observed else made

        made = await book.change(change)
        if spent.calls:
            args.services.count_model(calls=spent.calls, tokens=spent.tokens, cost=spent.cost)
        return made, behind(messages, made.until.get(book.thread, ""))

    async def _note(self, args: HookArgs, book: Notebook) -> tuple[Observed, list[Message]]:
        """Has messages and notes made shorter until there are not too many any more, and waits for that.

        Raises:
            ModelCallError: A model gives no notes, or another observer takes too long.
        """
        options, ask = self.options, args.services.generate
        async with current_memory().observers.alone(book) as alone:
            if not alone:
                raise ModelCallError("another observer has been at work on the thread for too long")
            observed, messages = await self._activate(args, book, (await book.load())[1])
            while tokens(messages) > options.observation.message_tokens:
                if not (unseen := book.unseen(observed, messages)):
                    break
                piece = await book.observe(ask, observed, unseen)
                observed = await book.change(partial(Observed.with_notes, piece=piece))
                messages = behind(messages, piece.until)
            if observed.tokens > options.reflection.observation_tokens:
                made = await book.condense(ask, observed)
                observed = await book.change(partial(Observed.shortened, condensed=made))
            return observed, messages

    def _book(self, here: Conversation) -> Notebook:
        memory = current_memory()
        return Notebook(memory.store, memory.tenant, here.resource, here.thread, self.options)


def _put_behind_notes(messages: MessageList, seen: str) -> None:
    """Puts what a run brings behind what is in notes: by its time it would count as noted.

    A run that waits for a person is overtaken by others; its turn was said when it is saved.
    """
    brought = [*messages.get.input.db(), *messages.get.response.db()]
    if any(message["createdAt"] <= seen for message in brought):
        start = max(to_millis(clock.now_iso()), to_millis(seen) + 1)
        for number, message in enumerate(brought):
            message["createdAt"] = to_iso(start + number)
