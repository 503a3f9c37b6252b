"""`semantic-recall`: brings back old messages that are like the question, and indexes new ones (builtins.md 14)."""

from typing import Annotated, Any

from pydantic import Field

from procession.args import HookArgs, InputArgs, OutputResultArgs
from procession.message_list import MessageList
from procession.processor import Options, Processor
from procession_schemas.base import JsonObject
from procession_schemas.memory import MessageRange, Scope
from procession_schemas.messages import Message
from procession_schemas.run_ids import answer_id
from procession_services.memory.core.recall_text import other_conversations, question_of
from procession_services.memory.core.storable import storable
from procession_services.memory.ports import EmbedderChangedError, VectorsUnavailableError
from procession_services.memory.recall import IndexRef, entry_of
from procession_services.memory.scope import Conversation, MemoryScopeError, conversation, current_memory
from procession_services.memory.working import TAG
from procession_services.runtime.words import number_of

_TOLD = (EmbedderChangedError, MemoryScopeError, VectorsUnavailableError)

__all__ = ["SemanticRecall", "SemanticRecallOptions"]


class SemanticRecallOptions(Options):
    """Options of `semantic-recall`."""

    top_k: int = Field(default=4, ge=1, le=100, description="Hits asked from the index.")
    message_range: Annotated[int, Field(ge=0)] | MessageRange = Field(
        default=1, description="Neighbours of each hit: on both sides, or `{before, after}`."
    )
    scope: Scope = Field(
        default="resource", description="Search this thread, or all threads of the resource."
    )
    threshold: float | None = Field(default=None, description="Only hits with at least this score, up to 1.")
    index_name: str | None = Field(
        default=None,
        max_length=200,
        description="Name of the index; by default it is made of the embedder's.",
    )
    embedder: str | None = Field(
        default=None, description="`provider/model`, `onnx` or `lexical`; default: PROCESSION_EMBEDDER."
    )
    embedder_options: JsonObject = Field(
        default_factory=dict, description="For the model behind the gateway, such as `{dimensions: 512}`."
    )


class SemanticRecall(Processor[SemanticRecallOptions]):
    """Recalls by meaning. Whatever fails in that costs only the recall: the run goes on, with a warning (R-SEM-10)."""

    id = "semantic-recall"
    name = "Semantic recall"
    description = "Recalls old messages that are like the question."
    host = "memory"

    async def process_input(self, args: InputArgs) -> MessageList:
        """Adds hits and their neighbours: those of this thread as messages, others as one system message."""
        messages = args.message_list
        here = conversation(args.request_context, messages)
        question = question_of(messages.get.all.db())
        if here is None or question is None:
            return messages
        try:
            found = await self._found(here, question)
        except Exception as error:  # noqa: BLE001 - embedder, index and store fail in many ways; none may end the run
            _warn(args, "semantic recall failed", error)
            return messages
        present = {answer_id(args.run_id), *(message["id"] for message in messages.get.all.db())}
        told = [message for message in found if message["role"] != "system"]
        own = [message for message in told if message.get("threadId") == here.thread]
        messages.add([message for message in own if message["id"] not in present], "memory")
        # An id says which message it is within its thread only.
        others = [message for message in told if message.get("threadId") != here.thread]
        if self.options.scope == "resource" and (text := other_conversations(others)):
            messages.add_system(text, TAG)
        return messages

    async def process_output_result(self, args: OutputResultArgs) -> MessageList:
        """Hands what is stored of response and input over to be indexed, behind the run's back (D-85)."""
        messages = args.message_list
        here = conversation(args.request_context, messages)
        if here is None or here.read_only:
            return messages
        new = storable([*messages.get.response.db(), *messages.get.input.db()])
        entries = [entry for each in new if (entry := entry_of(each, here.resource, here.thread))]
        if not entries:
            return messages
        memory = current_memory()
        try:
            await memory.store.create_thread(memory.tenant, here.thread, here.resource)
            await memory.index.submit(self._index(memory.tenant), here.resource, here.thread, entries)
        except Exception as error:  # noqa: BLE001 - the answer is there; `procession memory reindex` makes up for it
            _warn(args, f"{number_of(len(entries), 'message')} could not be queued for the index", error)
        return messages

    def _index(self, tenant: str) -> IndexRef:
        options = self.options
        return IndexRef(tenant, options.index_name or None, options.embedder, options.embedder_options)

    async def _found(self, here: Conversation, question: str) -> list[Message]:
        memory, options = current_memory(), self.options
        hits = await memory.index.search(
            self._index(memory.tenant),
            question,
            top_k=options.top_k,
            resource=here.resource,
            thread=here.thread if options.scope == "thread" else None,
        )
        wanted = [
            (hit.thread, hit.message)
            for hit in hits
            if options.threshold is None or hit.score >= options.threshold
        ]
        near: Any = options.message_range
        before, after = (near, near) if isinstance(near, int) else (near.before, near.after)
        return await memory.store.around(memory.tenant, here.resource, wanted, before=before, after=after)


def _warn(args: HookArgs, what: str, error: Exception) -> None:
    told = f": {error}" if isinstance(error, _TOLD) else ""  # others might quote the conversation
    args.services.warn(f"{what}: {type(error).__name__}{told}")
