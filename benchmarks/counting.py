"""Counts the bytecodes that a process executes between SIGUSR1 and SIGUSR2 (`bytecodes.py`)."""

import json
import os
import signal
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

__all__ = ["DIRECTORY", "listen"]

DIRECTORY: Final = "BENCHMARKS_BYTECODES"
"""The variable that names where a process writes what it has counted: `<pid>.json`.

It has, by function, how many bytecodes were executed, and how many different ones.
"""


def listen() -> None:
    """Has this process count when it is told to; nothing where nobody has named a directory."""
    if directory := os.environ.get(DIRECTORY):
        counted = Counter[tuple[CodeType, int]]()

        def on_bytecode(frame: FrameType, event: str, _: Any) -> Any:
            if event == "opcode":
                counted[frame.f_code, frame.f_lasti] += 1
            return on_bytecode

        def on_call(frame: FrameType, _event: str, _: Any) -> Any:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return on_bytecode

        def stop(*_: object) -> None:
            sys.settrace(None)
            told = defaultdict[str, list[int]](lambda: [0, 0])
            for (code, _offset), count in counted.items():
                module = "/".join(Path(code.co_filename).parts[-2:])
                of = told[f"{module}:{code.co_firstlineno} {code.co_qualname}"]
                of[0] += count
                of[1] += 1
            counted.clear()
            unfinished = Path(directory, f"{os.getpid()}.new")
            unfinished.write_text(json.dumps(told))
            unfinished.rename(unfinished.with_suffix(".json"))

        signal.signal(signal.SIGUSR1, lambda *_: sys.settrace(on_call))
        signal.signal(signal.SIGUSR2, stop)
