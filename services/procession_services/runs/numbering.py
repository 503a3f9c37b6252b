"""The numbers of a run's commands, from which their ids, claims and the fences of their chunks follow.

They rise by one, until Redis begins another life. Then it may have forgotten commands (docs/adr/0024), also those of a
life that began a moment before. So the first command of a life has a number that no forgotten one has: a thousand times
the second of the week at which that life began, or more.
"""

from typing import Final

from procession_services.runs.state import RunState

__all__ = ["SKIPPED", "TIMES", "fence_of", "number", "renumber", "second_of_week"]

SKIPPED: Final = 1000
"""More commands than a run has in a second."""
TIMES: Final = 1000
"""How often a command, or one stream of it, may be done anew."""
_WEEK: Final = 604_800
"""Seconds. What is numbered by them stays below 2^53, up to which every language reads numbers of JSON as they are."""


def fence_of(seq: int, attempt: int = 0, stream: int = 0) -> int:
    """Rises with the commands of a run, with the deliveries of one, and with what a stream makes anew."""
    return (seq * TIMES + min(attempt, TIMES - 1)) * TIMES + min(stream, TIMES - 1)


def second_of_week(life: int) -> int:
    """When in the week a life of Redis began: later for a later one, except over the end of a week."""
    return life % _WEEK


def number(state: RunState) -> None:
    """Numbers the next command."""
    if state.leap:
        state.seq = SKIPPED + max(state.seq, SKIPPED * second_of_week(state.life))
        state.leap, state.renewed = False, state.seq
    else:
        state.seq += 1


def renumber(state: RunState, seq: int) -> None:
    """Makes the command that is out, if that is `seq`, another one that says the same."""
    if seq == state.seq and state.sent:
        state.leap = True
        number(state)
