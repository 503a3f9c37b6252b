"""What the reducer takes in and gives out."""

import msgspec

from procession_schemas.run import RunResult
from procession_schemas.work import Control, WorkCommand, WorkResult


class Started(msgspec.Struct, frozen=True):
    """The run was accepted and its state is fresh, or it has waited and it is its turn."""


class DeadlinePassed(msgspec.Struct, frozen=True):
    """The run's time was up at `at_ms` (since the epoch), unless it has got more meanwhile, or somebody ends it."""

    at_ms: int


class Forgotten(msgspec.Struct, frozen=True):
    """Redis has lost what followed command `seq`, which nobody has any more."""

    seq: int


class Ended(msgspec.Struct, frozen=True):
    """The run's end was told, and Redis has lost that."""

    result: RunResult


RunEvent = Started | WorkResult | Control | DeadlinePassed | Forgotten | Ended


class Send(msgspec.Struct, frozen=True):
    """Give a service work; sending it twice is harmless."""

    command: WorkCommand


class SignalCancel(msgspec.Struct, frozen=True):
    """Tell whoever works on the run to stop."""


class TellSuspended(msgspec.Struct, frozen=True):
    """Say that the run waits for a person."""

    result: RunResult


class TellResumed(msgspec.Struct, frozen=True):
    """Say that the run, which waited for a person, goes on."""


class TellFinished(msgspec.Struct, frozen=True):
    """Publish the terminal event."""

    result: RunResult


class Interrupt(msgspec.Struct, frozen=True):
    """Cancel the runs that are ahead on the thread."""


class PassTurn(msgspec.Struct, frozen=True):
    """See to it that the first one in the line of the thread is at work."""


Effect = Send | SignalCancel | Interrupt | TellSuspended | TellResumed | TellFinished | PassTurn
