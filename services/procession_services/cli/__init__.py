"""The command line: `procession demo | up | run | attach | cancel | check | init | ...`; `--help` lists all.

`procession --help` tells the exit codes, too.
"""

import argparse
import asyncio
import faulthandler
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final, TextIO

from pydantic import ValidationError

from procession.errors import PluginError, ProcessionError
from procession.json_values import NotJsonError
from procession_schemas.nearest import nearest
from procession_schemas.subjects import InvalidSubjectError
from procession_services.cli.common import FAILED, INTERRUPTED, USAGE, Commands, UsageError, client_of, say
from procession_services.cli.dead import add_dead_commands
from procession_services.cli.machine import add_machine_commands
from procession_services.cli.memory import add_memory_command
from procession_services.cli.operate import add_operator_commands
from procession_services.cli.runs import add_run_commands
from procession_services.deploy.command import add_deploy_commands
from procession_services.runtime.problems import ConfigurationError
from procession_services.runtime.settings import SettingsError

__all__ = ["main"]

_STDERR: Final = 2
_VISIBLE: Final = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    sys.path.insert(0, str(Path.cwd()))  # plugins are modules of the project one stands in
    _open_what_was_closed()
    if not faulthandler.is_enabled():  # a library of a plugin may end the process without a word
        faulthandler.enable(_STDERR, all_threads=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what a terminal has no letters for
    options = _parser().parse_args(arguments)
    sys.stdout, sys.stderr = _showing(sys.stdout), _showing(sys.stderr)
    try:
        outcome = options.command(options)
        code: int = asyncio.run(outcome) if asyncio.iscoroutine(outcome) else outcome
        sys.stdout.flush()
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    except BrokenPipeError:  # as in `procession run ... | head`
        return INTERRUPTED
    except Exception as error:
        if (told := _told(error)) is None:
            raise
        code, lines = told
        for line in lines:
            say(f"procession: {line}")
    finally:
        _let_go(sys.stdout)
        _let_go(sys.stderr)
    return code


def _showing(stream: TextIO) -> TextIO:
    if not isinstance(stream, TextIOWrapper) or not stream.isatty():
        return stream
    return _Terminal(stream.buffer, stream.encoding, stream.errors, line_buffering=True)


class _Terminal(TextIOWrapper):
    """A terminal that is shown control characters and does not obey them: models and clients may have sent them."""

    def write(self, text: str, /) -> int:
        """Writes text; of control characters those that end lines and make columns."""
        super().write(text.translate(_VISIBLE))
        return len(text)


def _open_what_was_closed() -> None:
    """Has nobody behind what was closed (`>&-`), else a socket or a file would get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - no path of ours


def _let_go(stream: TextIO) -> None:
    """Drops what nobody can read any more: Python's end would fail for it, with exit code 120."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _told(error: Exception) -> tuple[int, list[str]] | None:
    """The exit code and the lines for what its user can mend; None: a defect of ours."""
    match error:
        case PluginError():
            return USAGE, str(error).splitlines()
        case ProcessionError():
            return FAILED, [str(error)]
        case SettingsError() | ConfigurationError() | UsageError() | InvalidSubjectError() | NotJsonError():
            return USAGE, str(error).splitlines()
        case ValidationError():
            return USAGE, [f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}" for wrong in error.errors()]
        case UnicodeError():
            return USAGE, [f"the input is not UTF-8: {error}"]
        case OSError():
            return FAILED, [_of_the_system(error)]
        case ModuleNotFoundError(name=str(name)) if not name.startswith("procession"):
            return USAGE, [
                f"the Python module {name} is not installed: install the extra of procession that includes it"
            ]
        # To import NATS' library takes too long for every command.
        case _ if type(error).__module__.startswith("nats.js."):
            from procession_services.bus.errors import explained  # noqa: PLC0415 - as above

            return FAILED, [f"JetStream reports an error: {explained(error)}"]
        case _ if type(error).__module__.startswith("nats."):
            right = "check address, user and password, or run `procession check --deploy`"
            return FAILED, [f"NATS reports an error: {error}; {right}"]
        case _:
            return None


def _of_the_system(error: OSError) -> str:
    """What the system says, of a file with its name in front, as other commands do."""
    if isinstance(error.filename, str) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or "no answer in time"


class _Parser(argparse.ArgumentParser):
    """Tells what it does not know with its own usage, that of the command, and with the option that may be meant."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses, as the base class does; nothing is left to the parser around this one, which knows less."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            near = nearest(name, self._option_string_actions) if name.startswith("-") else None
            self.error(
                f"unrecognized arguments: {' '.join(unknown)}{f'; did you mean {near}?' if near else ''}"
            )
        return parsed, unknown


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="procession",
        description="Runs AI-agent requests through a procession of processors, on NATS.",
        epilog="Exit codes: 0 done, or waiting for a person; 1 failed; 2 wrong usage or configuration; 3 blocked by a "
        "processor; 130 cancelled or interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {metadata.version('procession')}")
    commands = Commands(
        parsers=parser.add_subparsers(title="commands", required=True, metavar="COMMAND"),
        common=argparse.ArgumentParser(add_help=False),
        agents=argparse.ArgumentParser(add_help=False),
        tenant=argparse.ArgumentParser(add_help=False),
        shown=argparse.ArgumentParser(add_help=False),
    )
    common = commands.common
    common.add_argument(
        "--config", type=Path, metavar="FILE", help="settings file (default: PROCESSION_CONFIG)"
    )
    common.add_argument("--nats-url", metavar="URL", help="NATS server (default: PROCESSION_NATS_URL)")
    common.add_argument("--redis-url", metavar="URL", help="Redis (default: PROCESSION_REDIS_URL)")
    commands.agents.add_argument(
        "--agents", type=Path, metavar="FILE", help="agents file (default: PROCESSION_AGENTS)"
    )
    told = "tenant (default: PROCESSION_TENANT)"
    commands.tenant.add_argument("--tenant", metavar="NAME", help=told)
    commands.shown.add_argument("--json", action="store_true", help="print chunks and result as JSON lines")
    add_machine_commands(commands)
    add_run_commands(commands)
    add_operator_commands(commands)
    add_dead_commands(commands)
    add_memory_command(commands.parsers, client_of, common, commands.tenant)
    add_deploy_commands(commands.parsers)
    return parser
