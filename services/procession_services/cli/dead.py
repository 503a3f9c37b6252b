"""`procession dead`: what no service could handle, and what becomes of it."""

import argparse
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from procession.addresses import address
from procession_services.cli.common import FAILED, OK, Commands, UsageError, say, settings_of, whole_number
from procession_services.runtime.access import Access

if TYPE_CHECKING:
    from procession_services.bus.dead import DeadLetter

__all__ = ["add_dead_commands"]


def add_dead_commands(commands: Commands) -> None:
    """Adds these commands to the command line."""
    told = "list, show, replay or drop messages that no service could handle"
    dead = commands.parsers.add_parser("dead", help=told, description=told)
    actions = dead.add_subparsers(title="actions", required=True, metavar="ACTION")
    for name, run, help_, numbered in (
        ("list", _list, "list all messages, with number, time, subject and reason", False),
        ("show", _on(_show), "show messages as they were received", True),
        ("replay", _on(_replay), "put messages back where they came from", True),
        ("drop", _on(_drop), "delete messages", True),
    ):
        action = actions.add_parser(name, help=help_, description=help_, parents=[commands.common])
        action.add_argument(
            "--secrets",
            type=Path,
            metavar="DIR",
            help="secrets directory of `procession init`, to connect as the operator",
        )
        if numbered:
            action.add_argument(
                "numbers",
                type=whole_number(1, 2**64 - 1),
                nargs="+",
                metavar="NUMBER",
                help="number that `list` shows",
            )
        action.set_defaults(command=run)


@asynccontextmanager
async def _connected(options: argparse.Namespace) -> AsyncIterator[Any]:
    from procession_services.bus.operator import Operator  # noqa: PLC0415 - only what the command needs
    from procession_services.deploy.check import as_operator  # noqa: PLC0415

    settings = as_operator(settings_of(options), options.secrets)
    operator = await Operator.connect(settings.nats_url, Access.of(settings))
    try:
        if not await operator.has_jetstream():
            raise UsageError(f"{address(settings.nats_url)} has no JetStream, or this user may not use it")
        yield operator.js
    finally:
        await operator.close()


async def _list(options: argparse.Namespace) -> int:
    from procession_services.bus.dead import dead_letters  # noqa: PLC0415
    from procession_services.demo.rendering import table  # noqa: PLC0415

    async with _connected(options) as js:
        rows = [[str(each.sequence), each.at, each.subject, each.reason] async for each in dead_letters(js)]
    sys.stdout.write(table(["number", "since", "subject", "why"], rows) if rows else "no dead letters\n")
    return OK


def _on(
    act: Callable[[Any, "DeadLetter"], Awaitable[None]],
) -> Callable[[argparse.Namespace], Coroutine[Any, Any, int]]:
    """A command that does something with each of the letters; what fails with one is told, and the others go on."""

    async def command(options: argparse.Namespace) -> int:
        from procession_services.bus.dead import NotReplayableError, dead_letter  # noqa: PLC0415

        code = OK
        async with _connected(options) as js:
            for number in options.numbers:
                try:
                    if letter := await dead_letter(js, number):
                        await act(js, letter)
                        continue
                    told = f"there is no dead letter {number}; `procession dead list` lists all"
                except NotReplayableError as error:
                    told = f"{error}; `procession dead drop {number}` deletes it"
                code = FAILED
                say(f"procession: {told}")
        return code

    return command


async def _show(_js: Any, letter: "DeadLetter") -> None:
    about = {
        "number": str(letter.sequence),
        "since": letter.at,
        "subject": letter.subject,
        "why": letter.reason,
    }
    if letter.run:
        about |= dict(zip(("tenant", "run"), letter.run, strict=True))
    told = "".join(f"{name}: {value}\n" for name, value in about.items())
    sys.stdout.write(f"{told}\n{letter.body.decode(errors='replace')}\n")


async def _replay(js: Any, letter: "DeadLetter") -> None:
    from procession_services.bus.dead import replay  # noqa: PLC0415

    say(f"{letter.subject} will be delivered again, as run {await replay(js, letter)}")


async def _drop(js: Any, letter: "DeadLetter") -> None:
    from procession_services.bus.dead import drop  # noqa: PLC0415

    await drop(js, letter)
    say(f"{letter.subject} was dropped")
