"""Message history: what was said in a thread before, and what a run adds to it (R-ME-4, R-ME-5, builtins.md 13)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from pydantic import Field

from procession.args import InputArgs, InputStepArgs, OutputResultArgs
from procession.message_list import MessageList
from procession.processor import Hook, Options, Processor
from procession.services import conversation_key
from procession_schemas.memory import HistoryBudget
from procession_schemas.messages import Message
from procession_schemas.run_ids import answer_id
from procession_services.memory.core.echo import only_updates, with_updates
from procession_services.memory.core.storable import storable
from procession_services.memory.core.times import to_iso, to_millis
from procession_services.memory.core.units import newest_units, rough_tokens
from procession_services.memory.scope import Conversation, Count, Memory, conversation, current_memory
from procession_services.runtime import clock

DEFAULT_LAST_MESSAGES = 10
_JUST_NOW_MS = 60_000
"""A message that says of itself that it is older brings that time along."""
PAGE = 40
"""Messages read at a time where a token budget decides how many."""
BOUNDARY = "memory-token-limiter:boundary"
"""Where the store of a tenant has, by resource and thread, what a token budget has hidden for good (R-HIST-6)."""


class MessageHistoryOptions(Options):
    """Options of `message-history`."""

    last_messages: Count | None = Field(
        default=None,
        description="How many of the newest messages are recalled; 0 or false: none. Left out, the memory options of "
        "the request decide, and where they say nothing it is 10, or with `tokenLimit` no number.",
    )
    token_limit: HistoryBudget | None = Field(
        default=None,
        description="`{maxTokens, atMaxRemoveTokens}`: read no more than that needs; `memory-token-limiter` cuts.",
    )
    save: Literal["end", "eager"] = Field(
        default="end", description="`eager`: store the input before the model is asked, too."
    )
    mark_partial: bool = Field(
        default=False, description="Give the answer of a cancelled run the metadata `partial: true`."
    )


class MessageHistory(Processor[MessageHistoryOptions]):
    """Recalls the newest messages of the thread, and saves the new ones when the run has succeeded."""

    id = "message-history"
    name = "Message history"
    description = "Recalls earlier messages of the thread and saves the new ones."
    host = "memory"

    @classmethod
    def hooks_for(cls, options: dict[str, Any]) -> frozenset[Hook]:
        """Only `save: eager` needs the hook of the steps."""
        hooks = frozenset({Hook.INPUT, Hook.OUTPUT_RESULT})
        return hooks | {Hook.INPUT_STEP} if options.get("save") == "eager" else hooks

    def count_message(self, message: Mapping[str, Any]) -> float:
        """The tokens of a message, for `tokenLimit`; it only decides how much is read, so it may be rough."""
        return rough_tokens(message)

    async def process_input(self, args: InputArgs) -> MessageList:
        """Adds the newest messages of the thread with source `memory`.

        The list leaves out system messages, and keeps its own copy of what the request brought (D-18), except that an
        incoming copy that only tells outcomes of calls adds them to the stored message. An answer of this run itself is
        left out: it was saved before Redis forgot how far the run was.

        Raises:
            MemoryScopeError: There is no store here.
        """
        here = conversation(args.request_context, args.message_list)
        if here is None:
            return args.message_list
        memory = current_memory()
        if not here.read_only:
            await memory.store.create_thread(memory.tenant, here.thread, here.resource)
        own = answer_id(args.run_id)
        recalled = [each for each in await self._recalled(args, memory, here) if each["id"] != own]
        whole = await made_whole(args.message_list, memory, here, recalled)
        put_behind(args.message_list, recalled)
        args.message_list.add([message for message in recalled if message["id"] not in whole], "memory")
        return args.message_list

    async def process_input_step(self, args: InputStepArgs) -> None:
        """Saves the input before the first model call (`save: eager`)."""
        here = conversation(args.request_context, args.message_list)
        if args.step_number == 0 and here is not None and not here.read_only:
            await self._save(here, args.message_list.get.input.db())

    async def process_output_result(self, args: OutputResultArgs) -> None:
        """Saves input and response as they are now, in one piece (R-PE-1, R-PE-2).

        Nothing is saved without a thread, in read-only memory, or when a run failed before it had a response.

        Raises:
            MemoryScopeError: There is no store here.
        """
        here = conversation(args.request_context, args.message_list)
        response = args.message_list.get.response.db()
        failed = args.result.finish_reason == "error" and not response
        if here is None or here.read_only or failed:
            return
        if self.options.mark_partial and args.result.finish_reason == "aborted" and response:
            content = response[-1]["content"]
            content["metadata"] = {**(content.get("metadata") or {}), "partial": True}
        await self._save(here, [*args.message_list.get.input.db(), *response])

    async def _save(self, here: Conversation, messages: list[Message]) -> None:
        if not (lasting := storable(messages)):
            return
        memory = current_memory()
        await memory.store.save(memory.tenant, here.thread, here.resource, lasting)
        kept = here.retention
        if kept is None:
            return
        gone = await memory.store.trim(
            memory.tenant,
            here.thread,
            here.resource,
            older_than=_days_ago(kept.max_age_days),
            keep=kept.max_messages,
        )
        if gone and memory.recall is not None:
            await memory.recall.forget(memory.tenant, here.resource, here.thread, gone)

    async def _recalled(self, args: InputArgs, memory: Memory, here: Conversation) -> list[Message]:
        limit = self._limit(here)
        budget = self.options.token_limit
        if budget is None:
            return await memory.store.recent(memory.tenant, here.thread, here.resource, limit or 0)
        hidden = await args.services.store.get(f"{BOUNDARY}:{conversation_key(here.resource, here.thread)}")
        return await self._within(memory, here, budget, limit, boundary_of(hidden, budget))

    async def _within(
        self,
        memory: Memory,
        here: Conversation,
        budget: HistoryBudget,
        limit: int | None,
        boundary: "Boundary",
    ) -> list[Message]:
        """The newest messages, read page by page until the budget, the number or the thread is used up (R-HIST-6)."""
        found: list[Message] = []
        while True:
            page = await memory.store.recent(memory.tenant, here.thread, here.resource, PAGE, skip=len(found))
            found = [*page, *found]
            visible = [m for m in found if m["role"] != "system" and boundary.shows(m)]
            enough = limit is not None and len(visible) >= limit
            used = sum(map(self.count_message, visible))
            behind = bool(found) and found[0]["createdAt"] < boundary.at
            if enough or len(page) < PAGE or behind or used > budget.max_tokens:
                return newest_units(visible, limit)

    def _limit(self, here: Conversation) -> int | None:
        """How many messages are recalled; None for no limit."""
        if self.options.last_messages is not None:
            return int(self.options.last_messages)
        if self.options.token_limit is not None:
            return None
        return DEFAULT_LAST_MESSAGES if here.last_messages is None else int(here.last_messages)


def _days_ago(days: float | None) -> str | None:
    """The time so many days ago; None where there is no such time, and nothing is older."""
    try:
        return None if days is None else clock.iso(clock.now() - timedelta(days=days))
    except OverflowError:
        return None


async def made_whole(
    messages: MessageList, memory: Memory, here: Conversation, recalled: Sequence[Message]
) -> set[str]:
    """Replaces each incoming copy that only tells outcomes of calls by the stored message with these; gives their ids.

    Saved as it came, such a copy would replace the whole stored message, also where that is not recalled (D-113).
    """
    told = {message["id"]: message for message in messages.get.input.db() if only_updates(message)}
    stored = [message for message in recalled if message["id"] in told]
    if missing := told.keys() - {message["id"] for message in stored}:
        stored += await memory.store.find(memory.tenant, here.thread, here.resource, list(missing))
    wholes = [
        with_updates(message, told[message["id"]]) for message in stored if message["role"] == "assistant"
    ]
    messages.add(wholes, "input")
    return {message["id"] for message in wholes}


def put_behind(messages: MessageList, recalled: Sequence[Message]) -> None:
    """Moves the new messages of a run behind those of its thread, whose times other clocks have told.

    A client's clock may be late, that of another machine ahead, or ours was set back: then a question would stand in
    front of what it is about. What was said long ago, by its own account, stays where it was.
    """
    if not recalled:
        return
    now = to_millis(clock.now_iso())
    newest = max(to_millis(message["createdAt"]) for message in recalled)
    known = {message["id"] for message in recalled}
    for message in messages.get.input.db():
        if message["id"] not in known and now - _JUST_NOW_MS <= to_millis(message["createdAt"]) <= newest:
            newest += 1
            message["createdAt"] = to_iso(newest)


@dataclass(frozen=True, slots=True)
class Boundary:
    """Up to where a token budget has hidden messages: a time, and which of that time; None for all of them."""

    at: str = ""
    ids: Collection[str] | None = None

    def shows(self, message: Message) -> bool:
        """Whether it is behind the boundary."""
        if message["createdAt"] != self.at or self.ids is None:
            return message["createdAt"] > self.at
        return message["id"] not in self.ids


def boundary_of(stored: Any, budget: HistoryBudget) -> Boundary:
    """What is hidden; it counts only for the limits it was made with (R-HIST-6)."""
    if not isinstance(stored, dict):
        return Boundary()
    same = stored.get("maxTokens") == budget.max_tokens
    if not same or stored.get("atMaxRemoveTokens") != budget.removed_tokens:
        return Boundary()
    return Boundary(str(stored.get("createdAt", "")), stored.get("messageIds"))
