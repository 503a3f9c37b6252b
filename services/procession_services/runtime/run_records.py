"""What the store of runs takes and gives (`store.py`)."""

from typing import Any

import msgspec
import orjson

from procession_services.runtime.admission import Called, Over


class StoredContext(msgspec.Struct, frozen=True):
    """What Redis holds of a run's context; `result` answers command `seq`.

    Attributes:
        out: The number of the command that the run waits for; 0 where it waits for none.
        claims: How often the command that the context was taken for has been claimed, this time included; or
            delivered, if that is more.
        numbered_in: The life of Redis in which command `out` got its number; 0 where nobody knows.
    """

    version: int
    seq: int
    context: bytes | None
    result: bytes | None
    cancelled: bool
    state_version: int = 0
    state: bytes | None = None
    plan: bytes | None = None
    out: int = 0
    claims: int = 0
    numbered_in: int = 0

    @property
    def data(self) -> dict[str, Any] | None:
        """The context as a new object each time; None when there is none."""
        return orjson.loads(self.context) if self.context else None


class Stand(msgspec.Struct, frozen=True):
    """Where a run stands, for who has a message that speaks for it.

    Attributes:
        told: Its end was told; or Redis knows nothing of it.
        owner: Who has claimed the command that it waits for; empty where nobody has, or it waits for none.
    """

    told: bool
    owner: str


class Beginning(msgspec.Struct, frozen=True):
    """A new run as it is saved where it begins at once.

    Attributes:
        out: The number of its first command.
        numbered_in: The life of Redis in which that got its number.
        claimed_by: The owner that does the command at once; empty where it is sent by NATS.
    """

    state: bytes
    plan: bytes
    out: int
    numbered_in: int
    claimed_by: str = ""

    def stored(self) -> StoredContext:
        """What Redis holds of it then, where the command is claimed."""
        return StoredContext(
            version=0,
            seq=-1,
            context=None,
            result=None,
            cancelled=False,
            state_version=1,
            state=self.state,
            plan=self.plan,
            out=self.out,
            claims=1,
            numbered_in=self.numbered_in,
        )


class StoredState(msgspec.Struct, frozen=True):
    """What Redis holds of a run's order: its state with a version, and the plan, which stays the same."""

    version: int
    state: bytes
    plan: bytes | None


class StateChange(msgspec.Struct, frozen=True):
    """The state of a run as it is to be saved, over the version that it was made from.

    A run that `waits` for a person gives back its place, and one that is `resumed` takes one.

    Attributes:
        deadline_ms: In milliseconds since the epoch.
        line: The key of a line that the run leaves, or with `resumed` goes to the head of.
        plan: Where it has changed; else empty.
        out: The number of the command that the run waits for; 0 where it waits for none.
        numbered_in: The life of Redis in which that got its number.
        claimed_by: The owner that does the command at once; empty where it is sent by NATS.
    """

    version: int
    state: bytes
    deadline_ms: int
    finished: bool
    line: str = ""
    resumed: bool = False
    plan: bytes = b""
    out: int = 0
    waits: bool = False
    numbered_in: int = 0
    claimed_by: str = ""


def after_commit(
    before: StoredContext, context: bytes, change: StateChange, *, cancelled: bool
) -> StoredContext:
    """What Redis holds of a run after a commit that has claimed the next command with it."""
    return StoredContext(
        version=before.version + 1,
        seq=before.out,
        context=context,
        result=None,
        cancelled=cancelled,
        state_version=change.version + 1,
        state=change.state,
        plan=change.plan or before.plan,
        out=change.out,
        claims=1,
        numbered_in=change.numbered_in,
    )


class Committed(msgspec.Struct, frozen=True):
    """What became of a commit: the result that counts, whether the state was saved with it, and who may begin now.

    Where it was, `cancelled` says whether the run had been cancelled.
    """

    result: bytes
    state_saved: bool
    called: tuple[Called, ...] = ()
    cancelled: bool = False


class Saved(msgspec.Struct, frozen=True):
    """Whether a state was saved, and who may begin because a place has become free."""

    saved: bool
    called: tuple[Called, ...] = ()


class Admission(msgspec.Struct, frozen=True):
    """What was known of a run id when a request came: its state, or the digest of a request that was refused.

    Of a run whose end was told a while ago only the digest of its request is left, in `told`. Or nothing was saved:
    because of a limit (`over`), because of a run that is `ahead` on its thread, or because it `waits` and nobody said
    how it is saved then. Otherwise the new state was saved, `queued` where it waits for its turn; `cancelled` says that
    somebody cancelled the run before it was accepted, `called` are runs that may begin now.
    """

    state: StoredState | None = None
    refused: str | None = None
    over: Over | None = None
    ahead: str | None = None
    told: str | None = None
    waits: bool = False
    queued: bool = False
    cancelled: bool = False
    called: tuple[Called, ...] = ()
