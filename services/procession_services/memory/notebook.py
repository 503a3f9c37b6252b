"""The notes of one thread or resource: read, made by a model, and changed by several at a time."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from procession.services import ModelAnswer, ModelCallError, ModelRequest
from procession_schemas.memory import OBSERVING_MODEL, ObservationalConfig
from procession_schemas.messages import Message
from procession_services.memory.core.observed import (
    Condensed,
    Observed,
    Piece,
    Spent,
    batch,
    behind,
    noteworthy,
    tokens,
)
from procession_services.memory.core.observing import observer_prompt, reflector_prompt
from procession_services.memory.ports import MessageStore

__all__ = ["SECONDS", "Ask", "Notebook"]

Ask = Callable[[ModelRequest], Awaitable[ModelAnswer]]
"""Asks a model; raises ModelCallError."""
SECONDS: Final = 120.0
"""How long an observer may think, and how long a run waits for one that another has asked."""
_PAGE: Final = 100
_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class Notebook:
    """Notes of a thread, or with scope `resource` of all threads of a resource, as seen from one of them."""

    store: MessageStore
    tenant: str
    resource: str
    thread: str
    options: ObservationalConfig

    @property
    def home(self) -> tuple[str, str, str | None]:
        """Whose notes these are: tenant, resource, and where they are a thread's that one."""
        return self.tenant, self.resource, self.thread if self.options.scope == "thread" else None

    async def load(self) -> tuple[Observed, list[Message]]:
        """The notes, and the messages that are in none that counts, oldest first."""
        observed = await self._observed()
        until, found = observed.until.get(self.thread, ""), list[Message]()
        while True:
            page = await self.store.recent(self.tenant, self.thread, self.resource, _PAGE, skip=len(found))
            found = [*page, *found]
            if len(page) < _PAGE or page[0]["createdAt"] <= until:
                return observed, [m for m in behind(found, until) if m["role"] != "system"]

    async def seen(self) -> str:
        """The time up to which the thread is noted, notes that wait included."""
        return (await self._observed()).seen(self.thread)

    async def _observed(self) -> Observed:
        return Observed.read(await self.store.note(*self.home, kind="observations"))

    async def change(self, change: Callable[[Observed], Observed | None]) -> Observed:
        """Stores what `change` makes of the notes as they are; None leaves them. Changes of others all count.

        Raises:
            ModelCallError: Others change the notes all the time.
        """
        for _ in range(_TRIES):
            stored = await self.store.note(*self.home, kind="observations")
            before = Observed.read(stored)
            after = change(before)
            if after is None:
                return before
            if await self.store.replace_note(*self.home, after.text(), expected=stored, kind="observations"):
                return after
        raise ModelCallError("others kept changing the notes")

    def unseen(self, observed: Observed, messages: Sequence[Message]) -> list[Message]:
        """The messages that the observer can note next: in no note, and not of the last turn."""
        return behind(noteworthy(messages), observed.seen(self.thread))

    def wants_notes(self, observed: Observed, messages: Sequence[Message]) -> bool:
        """Whether notes are to be made ahead."""
        interval = self.options.observation.interval
        return interval is not None and tokens(self.unseen(observed, messages)) >= interval

    def wants_shortening(self, observed: Observed) -> bool:
        """Whether the notes are to be condensed ahead."""
        ahead = self.options.observation.interval is not None and observed.condensed is None
        return ahead and observed.tokens >= self.options.reflection.ahead_tokens

    async def observe(self, ask: Ask, observed: Observed, messages: Sequence[Message]) -> Piece:
        """Has the observer note the oldest of the messages, no more of them than a threshold's.

        Raises:
            ModelCallError: It gives no notes.
        """
        options = self.options.observation
        taken = batch(messages, options.message_tokens)
        answer = await self._asked(ask, options.model, observer_prompt(observed, taken), 0.3)
        return Piece(self.thread, taken[-1]["createdAt"], answer.text.strip(), _spent(answer))

    async def condense(self, ask: Ask, observed: Observed) -> Condensed:
        """Has the reflector condense the notes that count.

        Raises:
            ModelCallError: It gives none.
        """
        prompt = reflector_prompt(observed)
        answer = await self._asked(ask, self.options.reflection.model, prompt, 0.0)
        return Condensed(len(observed.notes), answer.text.strip(), _spent(answer))

    async def _asked(
        self, ask: Ask, model: str | None, prompt: list[dict[str, object]], temperature: float
    ) -> ModelAnswer:
        request = ModelRequest(
            model=model or self.options.model or OBSERVING_MODEL,
            prompt=prompt,
            model_settings={"temperature": temperature},
            timeout=SECONDS,
        )
        answer = await ask(request)
        if not answer.text.strip():
            raise ModelCallError("the model returned empty notes")
        return answer


def _spent(answer: ModelAnswer) -> Spent:
    return Spent(1, answer.usage.get("totalTokens") or 0, answer.cost or 0.0)
