"""`memory-input-filter`: keeps of a request what the thread does not have yet (R-MIF, builtins.md 16)."""

from pydantic import Field

from procession.args import InputArgs
from procession.message_list import MessageList
from procession.processor import Options, Processor
from procession_schemas.messages import Message
from procession_services.memory.core.echo import (
    is_update,
    moved_forward,
    select,
    without_provider_data,
)
from procession_services.memory.scope import Conversation, Memory, conversation, current_memory


class MemoryInputFilterOptions(Options):
    """Options of `memory-input-filter`."""

    retain_full_input: bool = Field(default=False, description="Leave the input as it is.")


class MemoryInputFilter(Processor[MemoryInputFilterOptions]):
    """Lets through only the new messages of clients that send the whole conversation again."""

    id = "memory-input-filter"
    name = "Memory input filter"
    description = "Keeps of a request what the thread does not have yet."
    host = "memory"

    async def process_input(self, args: InputArgs) -> MessageList:
        """Replaces the input by what is new in it; the store is asked only where that could be less.

        Raises:
            MemoryScopeError: There is no store here.
        """
        messages = args.message_list
        given = messages.get.input.db()
        here = conversation(args.request_context, messages)
        if self.options.retain_full_input or here is None or not given:
            return messages
        selected = select(given)
        if selected is None:
            return messages
        memory = current_memory()
        if not await memory.store.recent(memory.tenant, here.thread, here.resource, 1):
            kept = without_provider_data(given)
        elif not selected.kept and not await _stored(memory, here, given[-1]):
            return messages  # an instruction in the form of an assistant message (R-MIF-6)
        else:
            kept = [*await _news(memory, here, selected.before), *selected.kept]
        messages.remove_by_ids({message["id"] for message in given})
        messages.add(kept, "input", merge=False)
        return messages


async def _stored(memory: Memory, here: Conversation, message: Message) -> Message | None:
    found = await memory.store.find(memory.tenant, here.thread, here.resource, [message["id"]])
    return found[0] if found else None


async def _news(memory: Memory, here: Conversation, message: Message | None) -> list[Message]:
    """What a client did with calls of the stored message in front of the new ones (R-MIF-7)."""
    if message is None or not any(map(is_update, message["content"]["parts"])):
        return []
    stored = await _stored(memory, here, message)
    news = moved_forward(message, stored) if stored is not None else None
    return [news] if news is not None else []
