"""Replays the recorded scenarios of the processor contract on a whole, running Procession."""
