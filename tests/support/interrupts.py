"""Ctrl-C, for processes that a test starts: they hear it as in a terminal, wherever the tests run."""

import signal


def hear_interrupts() -> None:
    """For `preexec_fn`: a shell has its background jobs, and whatever they start, ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and so has `nohup`
