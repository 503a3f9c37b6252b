"""`procession check | dead | processors`: looks after a deployment."""

import argparse
import asyncio
import sys

from procession_services.cli.common import OK, USAGE, Commands, UsageError, say, settings_of
from procession_services.cli.memory import memory_problems
from procession_services.runtime.access import Access

__all__ = ["add_operator_commands"]


def add_operator_commands(commands: Commands) -> None:
    """Adds them to the command line's."""
    told = "tell everything that is wrong with the configuration"
    check = commands.add("check", _check, told, commands.common, commands.agents)
    check.add_argument(
        "--models", action=argparse.BooleanOptionalAction, default=True, help="also the names of models"
    )
    check.add_argument("--deploy", action="store_true", help="also whether NATS and Redis answer")

    told = "list what no service could handle, or give one another chance"
    dead = commands.add("dead", _dead, told, commands.common)
    dead.add_argument("--replay", type=int, metavar="N", help="put number N back where it came from")

    commands.add("processors", _processors, "list the installed processors and their hooks", commands.common)


def _check(options: argparse.Namespace) -> int:
    from procession_services.runtime.check import check, check_servers  # noqa: PLC0415

    settings = settings_of(options)
    problems = check(settings, _model_problem if options.models else None) + memory_problems(settings)
    if options.deploy:
        problems += asyncio.run(check_servers(settings))
    for problem in problems:
        print(problem)  # noqa: T201
    wrong = [problem for problem in problems if not problem.warning]
    say(f"{len(wrong)} wrong" if wrong else "all good")
    return USAGE if wrong else OK


def _model_problem(model: str) -> str | None:
    """What is wrong with the name of a model; it takes LiteLLM, and seconds to load it."""
    from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider  # noqa: PLC0415

    if LiteLLMProvider().knows(model):
        return None
    return (
        f"unknown model {model!r}; write provider/name, with a provider of LiteLLM, as in openai/gpt-4o-mini"
    )


async def _dead(options: argparse.Namespace) -> int:
    """Lists the dead letters, or puts one back."""
    from procession_services.bus import Bus  # noqa: PLC0415 - only what the command needs
    from procession_services.bus.dead import dead_letters, replay  # noqa: PLC0415
    from procession_services.demo.rendering import table  # noqa: PLC0415

    settings = settings_of(options)
    bus = await Bus.connect(
        settings.nats_url,
        "procession-cli",
        access=Access.of(settings),
        create_streams=settings.create_streams,
        replicas=settings.stream_replicas,
    )
    try:
        if options.replay is None:
            rows = [[str(each.sequence), each.subject, each.reason] for each in await dead_letters(bus)]
            sys.stdout.write(table(["number", "subject", "why"], rows) if rows else "nothing is dead\n")
            return OK
        letter = await replay(bus, options.replay)
    finally:
        await bus.close()
    if letter is None:
        raise UsageError(f"there is no dead letter {options.replay}; `procession dead` lists them")
    say(f"{letter.subject} is delivered again")
    return OK


def _processors(options: argparse.Namespace) -> int:
    from procession.registry import Registry  # noqa: PLC0415
    from procession_services.demo.rendering import table  # noqa: PLC0415

    registry = Registry.load(settings_of(options).plugins)
    rows = []
    for name, kind in sorted(registry.processors.items()):
        hooks = sorted(kind.hooks_for({}))
        told = (kind.description or kind.__doc__ or "").strip().splitlines()
        rows.append([name, ", ".join(hooks), told[0] if told else ""])
    sys.stdout.write(table(["processor", "hooks", "what it does"], rows))
    return OK
