"""The numbers of a run's commands, from which their ids, claims and the fences of their chunks follow.

They rise by one, until Redis begins another life. It may have forgotten commands then (docs/adr/0024), and some of a
life that began a moment before: so the first one has a thousand for each second of the week at which the new one began.
"""

from typing import Final

from procession_services.runs.state import RunState

__all__ = ["SKIPPED", "number", "renumber", "second_of_week"]

SKIPPED: Final = 1000
"""More commands than a run has in a second."""
_WEEK: Final = 604_800
"""Seconds. What is numbered by them stays below 2^53, up to which every language reads numbers of JSON as they are."""


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
