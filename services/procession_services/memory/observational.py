"""`observational-memory`: a model's notes stand in for the oldest messages of long threads (builtins.md 27.3)."""

from typing import Final

from procession.args import HookArgs, InputStepArgs, OutputResultArgs
from procession.message_list import MessageList
from procession.processor import Options, Processor
from procession.services import ModelCallError, ModelRequest
from procession_schemas.memory import ObservationalConfig
from procession_schemas.messages import Message
from procession_services.memory.core.observing import (
    DEFAULT_MODEL,
    Observed,
    observer_prompt,
    reflector_prompt,
    system_text,
)
from procession_services.memory.core.storable import storable
from procession_services.memory.core.units import rough_tokens
from procession_services.memory.scope import Conversation, Memory, conversation, current_memory

__all__ = ["ObservationalMemory", "ObservationalMemoryOptions"]

TAG: Final = "observational-memory"
PAGE: Final = 100
BLOCK_AFTER: Final = 1.2
"""So many times the threshold, and a run waits for the observer before it asks its model (R-OM-2)."""
_SECONDS: Final = 120.0


class ObservationalMemoryOptions(ObservationalConfig, Options):
    """Options of `observational-memory`: `model`, `scope`, `observation` and `reflection`."""


class ObservationalMemory(Processor[ObservationalMemoryOptions]):
    """Loads notes and the messages that are not in them; observes and reflects when there are too many.

    That is done when the answer is out, and its cost is part of the run's report. Only when that has failed and far too
    much is left, a run waits for it, and ends where it fails again (R-OM-3).
    """

    id = "observational-memory"
    name = "Observational Memory"
    description = "Keeps notes of long threads in place of their oldest messages."
    host = "memory"

    async def process_input_step(self, args: InputStepArgs) -> MessageList | None:
        """Adds the messages that are in no note (once) and the notes (at each step).

        Raises:
            MemoryScopeError: There is no store here.
            ModelCallError: Far too much is unobserved, and the observer does not answer.
        """
        here = conversation(args.request_context, args.message_list)
        if here is None:
            return None
        if "notes" not in args.state:
            memory = current_memory()
            if not here.read_only:
                await memory.store.create_thread(memory.tenant, here.thread, here.resource)
            observed, open_ = await self._load(memory, here)
            if not here.read_only and _tokens(open_) > BLOCK_AFTER * self.options.observation.message_tokens:
                observed, open_ = await self._observe(args, memory, here, observed, open_)
            present = {message["id"] for message in args.messages}
            args.message_list.add([m for m in open_ if m["id"] not in present], "memory")
            args.state["notes"] = system_text(observed) if observed.notes else ""
        if args.state["notes"]:
            args.message_list.add_system(args.state["notes"], TAG)
        return args.message_list

    async def process_output_result(self, args: OutputResultArgs) -> None:
        """Saves what is new, then makes notes of what has become too much; that may fail and is tried again."""
        here = conversation(args.request_context, args.message_list)
        response = args.message_list.get.response.db()
        if here is None or here.read_only or (args.result.finish_reason == "error" and not response):
            return
        memory = current_memory()
        if lasting := storable([*args.message_list.get.input.db(), *response]):
            await memory.store.save(memory.tenant, here.thread, here.resource, lasting)
        observed, open_ = await self._load(memory, here)
        if _tokens(open_) <= self.options.observation.message_tokens:
            return
        try:
            await self._observe(args, memory, here, observed, open_)
        except ModelCallError:
            args.services.warn("the observer gave no answer; the next run asks again")

    async def _load(self, memory: Memory, here: Conversation) -> tuple[Observed, list[Message]]:
        """The notes, and the messages behind them, oldest first."""
        observed = Observed.read(await memory.store.note(*self._home(memory, here), kind="observations"))
        until, found = observed.until.get(here.thread, ""), list[Message]()
        while True:
            page = await memory.store.recent(memory.tenant, here.thread, here.resource, PAGE, skip=len(found))
            found = [*page, *found]
            if len(page) < PAGE or page[0]["createdAt"] <= until:
                return observed, [m for m in found if m["createdAt"] > until and m["role"] != "system"]

    def _home(self, memory: Memory, here: Conversation) -> tuple[str, str, str | None]:
        return memory.tenant, here.resource, here.thread if self.options.scope == "thread" else None

    async def _observe(
        self, args: HookArgs, memory: Memory, here: Conversation, observed: Observed, messages: list[Message]
    ) -> tuple[Observed, list[Message]]:
        """Notes of all messages but the last turn, condensed where they are too long; gives what is left."""
        start = _last_turn(messages)
        done, left = messages[:start], messages[start:]
        if not done:
            return observed, messages
        options = self.options
        notes = await self._ask(args, options.observation.model, observer_prompt(observed, done), 0.3)
        made = observed.with_notes(notes, here.thread, done[-1]["createdAt"])
        if len(made.notes) / 4 > options.reflection.observation_tokens:
            condensed = await self._ask(args, options.reflection.model, reflector_prompt(made), 0.0)
            made = Observed(condensed.strip(), made.until)
        home, before = self._home(memory, here), observed.text() if observed.until else None
        if not await memory.store.replace_note(*home, made.text(), expected=before, kind="observations"):
            return observed, messages  # another run was faster; its notes count from the next run on
        return made, left

    async def _ask(
        self, args: HookArgs, model: str | None, prompt: list[dict[str, object]], temperature: float
    ) -> str:
        request = ModelRequest(
            model=model or self.options.model or DEFAULT_MODEL,
            prompt=prompt,
            model_settings={"temperature": temperature},
            timeout=_SECONDS,
        )
        answer = await args.services.generate(request)
        if not answer.text.strip():
            raise ModelCallError("the notes are empty")
        return answer.text


def _tokens(messages: list[Message]) -> float:
    return sum(map(rough_tokens, messages))


def _last_turn(messages: list[Message]) -> int:
    """The place of the last user message, which with what follows it is never only in notes."""
    places = [place for place, message in enumerate(messages) if message["role"] == "user"]
    return places[-1] if places else len(messages)
