"""The run as a pure function of what happens to it: state, events, programs, reducer. No I/O, no clock.

Every service carries it: whoever has done a command reduces the run and sends the next command itself.
"""
