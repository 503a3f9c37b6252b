"""The run as a pure function: no I/O, no clock, no randomness."""
