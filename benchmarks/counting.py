"""Counts the bytecodes that a process executes between SIGUSR1 and SIGUSR2 (`bytecodes.py`)."""

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

__all__ = ["DIRECTORY", "listen"]

DIRECTORY: Final = "BENCHMARKS_BYTECODES"
"""The variable that names where a process writes what it has counted: `<pid>.json`, bytecodes by function."""


def listen() -> None:
    """Has this process count when it is told to; nothing where nobody has named a directory."""
    if directory := os.environ.get(DIRECTORY):
        counted = Counter[CodeType]()

        def on_bytecode(frame: FrameType, event: str, _: Any) -> Any:
            counted[frame.f_code] += event == "opcode"
            return on_bytecode

        def on_call(frame: FrameType, _event: str, _: Any) -> Any:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return on_bytecode

        def stop(*_: object) -> None:
            sys.settrace(None)
            told = Counter[str]()
            for code, count in counted.items():
                module = "/".join(Path(code.co_filename).parts[-2:])
                told[f"{module}:{code.co_firstlineno} {code.co_qualname}"] += count
            counted.clear()
            unfinished = Path(directory, f"{os.getpid()}.new")
            unfinished.write_text(json.dumps(told))
            unfinished.rename(unfinished.with_suffix(".json"))

        signal.signal(signal.SIGUSR1, lambda *_: sys.settrace(on_call))
        signal.signal(signal.SIGUSR2, stop)
