"""What the reducer takes in and gives out."""

from dataclasses import dataclass

from procession_schemas.run import RunResult
from procession_schemas.work import Control, WorkCommand, WorkResult


@dataclass(frozen=True, slots=True)
class Started:
    """The run was accepted and its state is fresh, or it has waited and it is its turn."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The run's time was up at `at_ms` (since the epoch), unless it has got more meanwhile, or somebody ends it."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Redis has lost what followed command `seq`, which nobody has any more."""

    seq: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The run's end was told, and Redis has lost that."""

    result: RunResult


RunEvent = Started | WorkResult | Control | DeadlinePassed | Forgotten | Ended


@dataclass(frozen=True, slots=True)
class Send:
    """Give a service work; sending it twice is harmless."""

    command: WorkCommand


@dataclass(frozen=True, slots=True)
class SignalCancel:
    """Tell whoever works on the run to stop."""


@dataclass(frozen=True, slots=True)
class TellSuspended:
    """Say that the run waits for a person."""

    result: RunResult


@dataclass(frozen=True, slots=True)
class TellResumed:
    """Say that the run, which waited for a person, goes on."""


@dataclass(frozen=True, slots=True)
class TellFinished:
    """Publish the terminal event."""

    result: RunResult


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Cancel the runs that are ahead on the thread."""


@dataclass(frozen=True, slots=True)
class PassTurn:
    """See to it that the first one in the line of the thread is at work."""


Effect = Send | SignalCancel | Interrupt | TellSuspended | TellResumed | TellFinished | PassTurn
