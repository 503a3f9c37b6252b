"""`procession`, and `python -m procession_services`: the command line, and quiet where Ctrl-C comes before it."""

import os
import signal
import sys
from typing import Final, Never

__all__ = ["main"]

_INTERRUPTED: Final = 130


def main() -> int:
    """Runs one command and returns its exit code."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # else somebody has seen to it that Ctrl-C is nothing to us
        signal.signal(signal.SIGINT, _end)
    from procession_services import cli  # noqa: PLC0415 - it takes a while

    signal.signal(signal.SIGINT, usual)
    try:
        return cli.main()
    except KeyboardInterrupt:
        return _INTERRUPTED


def _end(*_: object) -> Never:
    os._exit(_INTERRUPTED)  # an exception would be told, or swallowed by what is just being imported


if __name__ == "__main__":
    sys.exit(main())
