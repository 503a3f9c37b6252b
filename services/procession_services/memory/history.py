"""Message history: what was said in a thread before, and what a run adds to it (R-ME-4, R-ME-5)."""

from procession.args import InputArgs, OutputResultArgs
from procession.message_list import MessageList
from procession.processor import Options, Processor
from procession_services.memory.core.storable import storable
from procession_services.memory.scope import Conversation, Count, conversation, current_memory

DEFAULT_LAST_MESSAGES = 10


class MessageHistoryOptions(Options):
    """Options of `message-history`.

    Attributes:
        last_messages: How many of the newest messages are recalled; 0 or false: none. Left out, the memory
            options of the request decide, and where they say nothing it is 10.
    """

    last_messages: Count | None = None


class MessageHistory(Processor[MessageHistoryOptions]):
    """Recalls the newest messages of the thread, and saves the new ones when the run has succeeded."""

    id = "message-history"
    name = "Message history"
    description = "Recalls earlier messages of the thread and saves the new ones."
    host = "memory"

    async def process_input(self, args: InputArgs) -> MessageList:
        """Adds the newest messages of the thread with source `memory`.

        The list leaves out system messages, and keeps its own copy of what the request brought (D-18).

        Raises:
            MemoryScopeError: A thread without a resource, or no store here.
        """
        here = conversation(args.request_context, args.message_list)
        if here is None or (limit := self._limit(here)) == 0:
            return args.message_list
        memory = current_memory()
        if not here.read_only:
            await memory.store.create_thread(memory.tenant, here.thread, here.resource)
        recalled = await memory.store.recent(memory.tenant, here.thread, here.resource, limit)
        return args.message_list.add(recalled, "memory")

    async def process_output_result(self, args: OutputResultArgs) -> None:
        """Saves input and response as they are now, in one piece (R-PE-1, R-PE-2).

        Nothing is saved without a thread, in read-only memory, or when a run failed before it had a response.

        Raises:
            MemoryScopeError: A thread without a resource, or no store here.
        """
        here = conversation(args.request_context, args.message_list)
        response = args.message_list.get.response.db()
        failed = args.result.finish_reason == "error" and not response
        if here is None or here.read_only or failed:
            return
        if messages := storable([*args.message_list.get.input.db(), *response]):
            memory = current_memory()
            await memory.store.save(memory.tenant, here.thread, here.resource, messages)

    def _limit(self, here: Conversation) -> int:
        for count in (self.options.last_messages, here.last_messages):
            if count is not None:
                return int(count)
        return DEFAULT_LAST_MESSAGES
