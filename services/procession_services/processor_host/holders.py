"""Who has a command that somebody else comes to: that replica may live.

NATS gives a command out once more, where only NATS was silent for long; and one that needs no other service is come to
by whoever hears of the run meanwhile.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final, NamedTuple

from procession_schemas import subjects
from procession_schemas.holders import HolderAnswer, HolderQuestion
from procession_schemas.work import WorkCommand
from procession_services.bus import Bus, Delivery, Hold, LostError, NoResponderError, RequestTimeoutError
from procession_services.bus.alive import is_listening, request_when_up
from procession_services.runtime.clock import new_token, seconds
from procession_services.runtime.lasting import Lasting
from procession_services.runtime.redis_client import UNANSWERED
from procession_services.runtime.replicas import is_listed
from procession_services.runtime.run_records import StoredContext
from procession_services.runtime.store import RunStore

log = logging.getLogger(__name__)
_ASK_SECONDS: Final = 1.0
"""Who does not answer for so long is taken for dead: a processor may block its event loop for about as long, and after
a restart of NATS whoever lives may not be back yet."""
_SILENT_SECONDS: Final = 1.0
"""After so long, a replica that did not answer is asked again: it may be gone by then."""
_LIFE_SECONDS: Final = 1
"""A life of Redis is called by the second in which it began."""


class Claimed(NamedTuple):
    """A command that was claimed with the state that wants it: its owner does it, without a message for it.

    Attributes:
        stored: What Redis holds of the run then.
        at: When that was, by the clock of whoever has claimed it.
    """

    command: WorkCommand
    owner: str
    stored: StoredContext
    at: float


def new_owner(service: str, replica: str) -> str:
    """A name for a claim of that replica of the service."""
    return f"{replica}.{new_token(12)}.{service}"


def replica_of(owner: str) -> tuple[str, str]:
    """The service and the replica that an owner of a command is."""
    replica, _, service = owner.split(".")
    return service, replica


async def is_there(bus: Bus, service: str, replica: str) -> bool:
    """Whether a replica listens, though it may stand still."""
    return await is_listening(bus, subjects.holder(service, replica), HolderQuestion(owner=replica).to_json())


class Holders:
    """The commands that a replica of a service works on, and those of the other replicas, as they tell."""

    def __init__(self, bus: Bus, store: RunStore, service: str, replica: str) -> None:
        self._bus, self._store, self._service, self._replica = bus, store, service, replica
        self._owners: dict[str, Hold] = {}
        self._held: dict[Hold, tuple[WorkCommand, str]] = {}

    async def answer(self, _subject: str, body: bytes) -> bytes:
        """Answers another replica's question on `subjects.holder`."""
        question = HolderQuestion.model_validate_json(body)
        works, *others = await asyncio.gather(*map(self._works, (question.owner, *question.others)))
        if works:  # noted here, since who asked may not have waited for so long
            self._store.heard(question.owner)
        at_work = [owner for owner, works in zip(question.others, others, strict=True) if works]
        return HolderAnswer(works=works, others=at_work).to_json()

    def claiming(self, hold: Hold) -> Lasting[str]:
        """Notes for the length of a block that a command is going to be worked on; gives the owner's name."""
        owner = self._new_owner()
        self._owners[owner] = hold
        return Lasting(owner, partial(self._owners.pop, owner))

    def working(self, command: WorkCommand, hold: Hold, owner: str = "") -> Lasting[str]:
        """Notes for the length of a block that the command is worked on; gives the owner's name."""
        owner = owner or self._new_owner()
        self._owners[owner], self._held[hold] = hold, (command, owner)
        return Lasting(owner, partial(self._leave, owner, hold))

    def _leave(self, owner: str, hold: Hold) -> None:
        del self._owners[owner], self._held[hold]

    def _new_owner(self) -> str:
        return new_owner(self._service, self._replica)

    async def _works(self, owner: str) -> bool:
        """Whether that owner works here, and goes on: a process that stood still has lost what it held."""
        try:
            if hold := self._owners.get(owner):
                await hold.keep()
        except LostError:
            return False
        return owner in self._owners

    async def still_ours(self, delivery: Delivery) -> bool:
        """Whether nobody has taken over the command that we work on for that delivery, as far as Redis remembers.

        Where it was started anew since somebody may have, it may have forgotten that; so the command is not ours.
        """
        if (ours := self._held.get(delivery.hold)) is None:
            return False
        command, owner = ours
        since = seconds() - delivery.hold.over_for()
        claimed_by = await self._store.claimed_by(command.tenant, command.run, command.seq)
        return claimed_by == owner and self._store.life + _LIFE_SECONDS < since

    async def elsewhere(self, delivery: Delivery) -> bool:
        """Whether the replica that has claimed a command, which was delivered once more, works on it.

        If it does not, the delivery may take the command from that one, and from nobody else: of several deliveries
        that ask at the same time one does. From one that only does not answer, what was sent `again` is taken when
        that has lasted for a lease: else NATS has waited.

        Raises:
            LostError: It did not answer, and NATS does not either: the next delivery will tell. Or it was sent `again`,
                and Redis, which knows who has it, is away.
            UnfitError: It is no command.
        """
        command = WorkCommand.from_json(delivery.body)
        try:
            delivery.hold.instead_of, lives = await self.owner_of(
                command, patience=delivery.lease if delivery.again else 0.0
            )
        except UNANSWERED as error:
            if delivery.again:
                raise LostError(_SILENT_SECONDS) from error
            raise
        return lives

    async def begun(self, delivery: Delivery) -> int:
        """How often a command was begun.

        Raises:
            UnfitError: It is no command.
        """
        command = WorkCommand.from_json(delivery.body)
        return await self._store.times_begun(command.tenant, command.run, command.seq)

    async def owner_of(self, command: WorkCommand, *, patience: float = 0.0) -> tuple[str, bool]:
        """Who has claimed a command, empty where nobody has, and whether that one works on it.

        Raises:
            LostError: It did not answer, and NATS does not either, or that has not lasted for `patience` seconds.
        """
        owner = await self._store.claimed_by(command.tenant, command.run, command.seq) or ""
        if not owner:
            return owner, False
        service, replica = replica_of(owner)
        here = (service, replica) == (self._service, self._replica)
        lives = await (self._works(owner) if here else self._says_so(service, replica, owner, patience))
        if lives:
            log.info("%s: replica %s works on %s", service, replica, command.id)
        return owner, lives

    async def at_work(self, owners: Sequence[str]) -> Collection[str]:
        """Those of a replica's owners that work, as far as it says so."""
        service, replica = replica_of(owners[0])
        question = HolderQuestion(owner=owners[0], others=list(owners[1:])).to_json()
        try:
            answer = await self._bus.request(subjects.holder(service, replica), question, _ASK_SECONDS)
        except (NoResponderError, RequestTimeoutError):
            return ()
        told = HolderAnswer.model_validate_json(answer)
        return {*told.others, *(owners[:1] if told.works else ())}

    async def is_gone(self, owner: str) -> bool:
        """Whether the replica of an owner is gone for certain, as `Peers` finds it."""
        service, replica = replica_of(owner)
        listed = await is_listed(self._store.redis, service, replica)
        return not (listed or await is_there(self._bus, service, replica))

    async def _says_so(self, service: str, replica: str, owner: str, patience: float) -> bool:
        if await self.is_gone(owner):
            return False
        subject, question = subjects.holder(service, replica), HolderQuestion(owner=owner).to_json()
        try:
            answer = await request_when_up(self._bus, subject, question, _ASK_SECONDS)
        except RequestTimeoutError:
            if not await self._bus.answers(_ASK_SECONDS):
                raise LostError from None
            if patience and await self._store.silent_for(owner) < patience:
                raise LostError(_SILENT_SECONDS) from None
            return False
        return HolderAnswer.model_validate_json(answer).works
