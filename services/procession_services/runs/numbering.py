"""The numbers of a run's commands, from which their ids, claims and the fences of their chunks follow.

They rise by one, until Redis begins another life. It may have forgotten commands then (docs/adr/0024), and some of a
life that began a moment before: so a thousand are left out for each second of the day at which the new one began.
"""

from typing import Final

from procession_services.runs.state import RunState

__all__ = ["SKIPPED", "number", "renumber"]

SKIPPED: Final = 1000
"""More commands than a run has in a second."""
_DAY: Final = 86_400


def number(state: RunState) -> None:
    """Numbers the next command."""
    if state.leap:
        state.seq += SKIPPED * (1 + state.life % _DAY)
        state.leap, state.renewed = False, state.seq
    else:
        state.seq += 1


def renumber(state: RunState, seq: int) -> None:
    """Makes the command that is out, if that is `seq`, another one that says the same."""
    if seq == state.seq and state.sent:
        state.leap = True
        number(state)
