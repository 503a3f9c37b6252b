"""`procession check | reload | processors`: looks after a deployment."""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from procession_services.cli.common import FAILED, OK, USAGE, Commands, UsageError, say, settings_of
from procession_services.cli.memory import memory_problems
from procession_services.runtime.access import Access
from procession_services.runtime.problems import Problem
from procession_services.runtime.settings import Settings

if TYPE_CHECKING:
    from procession_services.deploy.check import Findings
    from procession_services.runtime.check import ModelCheck

__all__ = ["add_operator_commands"]


def add_operator_commands(commands: Commands) -> None:
    """Adds these commands to the command line."""
    told = "list everything that is wrong with the configuration"
    check = commands.add("check", _check, told, commands.common, commands.agents)
    check.add_argument(
        "--models", action=argparse.BooleanOptionalAction, default=True, help="also check the names of models"
    )
    check.add_argument(
        "--deploy",
        action="store_true",
        help="also check the running system: servers and all services",
    )
    check.add_argument(
        "--secrets",
        type=Path,
        metavar="DIR",
        help="with --deploy: secrets directory of `procession init`, to connect as the operator",
    )
    check.add_argument(
        "--call-models", action="store_true", help="with --deploy: also call every model (costs a few tokens)"
    )

    told = "reload the agents on every replica, and show what each uses afterwards"
    reload = commands.add("reload", _reload, told, commands.common)
    reload.add_argument(
        "--secrets",
        type=Path,
        metavar="DIR",
        help="secrets directory of `procession init`, to connect as the operator",
    )

    commands.add("processors", _processors, "list the installed processors and their hooks", commands.common)


def _check(options: argparse.Namespace) -> int:
    from procession_services.runtime.check import check  # noqa: PLC0415 - only what the command needs

    settings = settings_of(options)
    problems, wrong = list[Problem](), USAGE
    if not options.deploy or settings.agents is not None:  # of a deployment the orchestrator has the agents
        knows = _model_check(problems) if options.models and settings.agents else None
        problems += check(settings, knows) + memory_problems(settings)
    if options.deploy:
        found = asyncio.run(_deployment(settings, options))
        problems, wrong = problems + found.problems, FAILED
        for line in found.fine:
            print(f"ok: {line}")  # noqa: T201
    return _told(problems, wrong)


async def _deployment(settings: Settings, options: argparse.Namespace) -> "Findings":
    from procession_services.deploy.check import check_deployment  # noqa: PLC0415

    return await check_deployment(settings, secrets=options.secrets, call_models=options.call_models)


def _told(problems: list[Problem], wrong: int) -> int:
    """Prints problems; gives the exit code, `wrong` where one is more than a warning."""
    for problem in problems:
        print(problem)  # noqa: T201
    number = sum(not problem.warning for problem in problems)
    say(f"problems: {number}" if number else "all good")
    return wrong if number else OK


async def _reload(options: argparse.Namespace) -> int:
    from procession_services.bus.operator import Operator  # noqa: PLC0415
    from procession_services.demo.rendering import table  # noqa: PLC0415
    from procession_services.deploy.check import as_operator, ask_services, told_by  # noqa: PLC0415

    settings = as_operator(settings_of(options), options.secrets)
    operator = await Operator.connect(settings.nats_url, Access.of(settings))
    try:
        statuses = await ask_services(operator, "reload")
    finally:
        await operator.close()
    if not statuses:
        raise UsageError(
            "no service answers: are they running, and is this the operator's user (--secrets secrets)?"
        )
    rows = [
        [status.service, status.replica, f"{name} {digest}"]
        for status in statuses
        for name, digest in status.configuration.items()
    ]
    sys.stdout.write(
        table(["service", "replica", "in effect"], rows) if rows else "no service has files to reload\n"
    )
    return _told(told_by(statuses), FAILED)


def _model_check(problems: list[Problem]) -> "ModelCheck | None":
    """What checks the names of models; where it is not installed, problems say so. It takes seconds to load LiteLLM."""
    try:
        from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider  # noqa: PLC0415
    except ModuleNotFoundError as error:
        told = f"names of models are not checked without {error.name}: pip install 'procession[llm-gateway]'"
        problems.append(Problem("", "", told, warning=True))
        return None
    provider = LiteLLMProvider()

    def problem(model: str) -> str | None:
        if provider.knows(model):
            return None
        form = "write provider/name with a provider of LiteLLM, such as openai/gpt-4o-mini"
        return f"unknown model {model!r}; {form}; an address belongs in apiBase"

    return problem


def _processors(options: argparse.Namespace) -> int:
    from procession.registry import Registry  # noqa: PLC0415
    from procession_services.demo.rendering import table  # noqa: PLC0415

    registry = Registry.load(settings_of(options).plugins)
    rows = []
    for name, kind in sorted(registry.processors.items()):
        hooks = sorted(kind.traits({}).hooks)
        told = (kind.description or kind.__doc__ or "").strip().splitlines()
        rows.append([name, ", ".join(hooks), told[0] if told else ""])
    sys.stdout.write(table(["processor", "hooks", "what it does"], rows))
    return OK
