"""What the commands share: exit codes, options, settings, and a client."""

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from procession_services.runtime.access import Access
from procession_services.runtime.settings import Settings

if TYPE_CHECKING:
    from procession.client import Procession

__all__ = [
    "CODES", "FAILED", "INTERRUPTED", "OK", "USAGE", "Commands", "UsageError", "client_of", "connected", "end_on",
    "end_with", "pair", "print_json", "say", "settings_of", "whole_number",
]  # fmt: skip

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
CODES: Final = {"finished": OK, "suspended": OK, "failed": FAILED, "blocked": 3, "cancelled": INTERRUPTED}
"""By the status of a run."""
_CONNECT_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.25
_PATIENT_LOOKS: Final = 6
"""So often in a row a client waits before that is said: a server that restarts is back sooner."""
_DIGITS: Final = 20
"""Numbers of more are none that anything here could count."""
Command = Callable[[argparse.Namespace], int | Coroutine[Any, Any, int]]
"""Does a command and gives its exit code."""


class UsageError(Exception):
    """The command cannot be done as it was asked for; the message says why."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands of the parser, and the options that several of them have."""

    parsers: Any
    common: argparse.ArgumentParser
    agents: argparse.ArgumentParser
    tenant: argparse.ArgumentParser
    shown: argparse.ArgumentParser

    def add(self, name: str, run: Command, help_: str, *parents: argparse.ArgumentParser) -> Any:
        """Adds a command; gives its parser."""
        added = self.parsers.add_parser(name, help=help_, description=help_, parents=list(parents))
        added.set_defaults(command=run)
        return added


def say(text: str) -> None:
    """Tells the person at the terminal; stdout is for results."""
    with contextlib.suppress(OSError):  # of a terminal that was closed: what is at work still ends in order
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def print_json(value: Any) -> None:
    """A line of JSON on stdout; letters are escaped where it does not take all of them."""
    everything = sys.stdout.encoding.lower() == "utf-8"
    sys.stdout.write(f"{json.dumps(value, ensure_ascii=not everything)}\n")


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings, which options of the command override; raises SettingsError."""
    given = vars(options)
    overrides = {name: given.get(name) for name in ("nats_url", "redis_url", "agents", "tenant")}
    return Settings.load(given.get("config"), **overrides)


def client_of(options: argparse.Namespace) -> "Procession":
    """A client of the command's tenant, not connected yet."""
    from procession.client import Procession  # noqa: PLC0415 - only what the command needs

    settings = settings_of(options)
    access = Access.of(settings).nats(settings.nats_url)
    return Procession(settings.nats_url, tenant=settings.tenant, connect_timeout=_CONNECT_SECONDS, **access)


@contextlib.asynccontextmanager
async def connected(options: argparse.Namespace) -> AsyncIterator["Procession"]:
    """A client of the command's tenant, connected; where it has to wait for NATS or a stream, that is said once."""
    async with client_of(options) as procession:
        watch = asyncio.create_task(_say_what_it_waits_for(procession))
        try:
            yield procession
        finally:
            watch.cancel()


async def _say_what_it_waits_for(procession: "Procession") -> None:
    looks = 0
    while looks < _PATIENT_LOOKS:
        await asyncio.sleep(_LOOK_SECONDS)
        looks = looks + 1 if procession.waits_for else 0
    say(f"procession: waiting: {procession.waits_for}")


def end_on(*numbers: signal.Signals) -> None:
    """Cancels this task on these signals; on SIGHUP, which a closed terminal sends, unless `nohup` ignores it."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in numbers:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, task.cancel)


def end_with(parent: int) -> None:
    """Has the kernel end this process when the one that started it dies, however that happens (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            sys.exit(FAILED)


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Gives a reader of whole numbers within these bounds, both included, for the command line."""

    def read(text: str) -> int:
        value = int(text) if text.removeprefix("-").isdecimal() and len(text) <= _DIGITS else None
        if value is None or value < least or (most is not None and value > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text[:_DIGITS]!r} is not a number {bounds}")
        return value

    return read


def pair(text: str) -> tuple[str, Any]:
    """Reads `key=value`; a value that is JSON is taken as such, any other as text."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, read_json(value)
    except ValueError:
        return key, value


def read_json(text: str) -> Any:
    """Reads JSON from the command line; raises ValueError for anything else, and for NaN, which Python takes."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise argparse.ArgumentTypeError(f"'{text[:_DIGITS]}...' is nested too deeply") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"JSON has no {constant}")
