"""`procession demo | up | serve | model`: processes on this machine."""

import argparse
import asyncio
import importlib
import math
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from procession.addresses import address
from procession_schemas.agent import Agent
from procession_services.cli.common import (
    CODES,
    FAILED,
    OK,
    Commands,
    UsageError,
    end_on,
    end_with,
    pair,
    say,
    settings_of,
)
from procession_services.runtime import garbage
from procession_services.runtime.access import Access
from procession_services.runtime.embedded import EmbeddedServerError
from procession_services.runtime.settings import Settings
from procession_services.supervisor import DRAIN_SECONDS, SERVICES, StartError, System, system

__all__ = ["add_machine_commands"]

_PORTS: Final = range(65_536)
_NATS_URL: Final[str] = Settings.model_fields["nats_url"].default
"""Where clients look for NATS."""
_LOGIN: Final = "  # with user and password, as used here"


def add_machine_commands(commands: Commands) -> None:
    """Adds these commands to the command line."""
    told = "start everything on this machine, run one request, show what happened, and stop"
    demo = commands.add("demo", _demo, told)
    demo.add_argument("question", nargs="?", help="what to ask")

    told = "start every service on this machine, until Ctrl-C"
    up = commands.add("up", _up, told, commands.common, commands.agents)
    up.add_argument(
        "--embedded",
        action=argparse.BooleanOptionalAction,
        help="also start NATS, and Redis if its URL is not given (default: yes, unless a NATS URL is given)",
    )
    up.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="keep the data of NATS and Redis here (default: do not keep it)",
    )
    up.add_argument(
        "--replicas",
        type=_replicas,
        action="append",
        default=[],
        metavar="SERVICE=N",
        help="number of processes of a service; may be repeated",
    )
    up.add_argument(
        "--together",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run all services except those of --replicas in one process, which is faster and smaller while one CPU is "
        "enough (the default), or each in its own",
    )

    model = commands.add("model", _model, "serve the deterministic demo model over OpenAI's chat protocol")
    model.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback)")
    model.add_argument("--port", type=_port, default=8399, help="0 picks a free one (default: %(default)s)")
    told = "milliseconds between two chunks of an answer (default: 15)"
    model.add_argument("--pace-ms", type=_pace, metavar="MS", help=told)
    model.add_argument("--parent", type=int, help=argparse.SUPPRESS)

    told = "run a service, or several in one process, until SIGTERM; SIGHUP reloads the agents"
    serve = commands.add("serve", _serve, told, commands.common, commands.agents)
    serve.add_argument("services", nargs="+", choices=SERVICES, metavar="SERVICE", help=", ".join(SERVICES))
    serve.add_argument("--parent", type=int, help=argparse.SUPPRESS)


async def _demo(options: argparse.Namespace) -> int:
    from procession_services.demo.run import QUESTION, demo  # noqa: PLC0415

    end_on(signal.SIGTERM, signal.SIGHUP)
    try:
        return CODES[(await demo(options.question or QUESTION)).status]
    except (StartError, EmbeddedServerError) as error:
        say(f"\nprocession: {error}")
        return FAILED


async def _up(options: argparse.Namespace) -> int:
    """Runs every service on this machine until Ctrl-C, or until its terminal is closed.

    What is wrong with the configuration is told before anything starts.
    """
    settings = settings_of(options)
    agent = next(iter(_checked(settings)), "demo")
    end_on(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    try:
        async with AsyncExitStack() as stack:
            running = await _started(stack, options, settings)
            nats, redis = address(running.nats_url), address(running.redis_url)
            say(f"ready; NATS {nats}, Redis {redis}; press Ctrl-C to stop")
            say("in another terminal:")
            if running.nats_url != _NATS_URL:
                say(f"  export PROCESSION_NATS_URL={nats}{_LOGIN if nats != running.nats_url else ''}")
            say(f'  procession run "What is the weather in Paris?" --agent {agent}')
            looking = asyncio.create_task(_tell_models(running.nats_url, settings))
            try:
                await asyncio.Event().wait()
            finally:
                looking.cancel()
                say("stopping ...")
    except (StartError, EmbeddedServerError) as error:
        say(f"procession: {error}")
        return FAILED
    except asyncio.CancelledError:
        return OK  # that is how it is told to stop
    return OK


async def _tell_models(nats_url: str, settings: Settings) -> None:
    """Tells which models lack their keys; nothing where NATS takes no questions from us, or went away meanwhile."""
    from procession_services.bus.operator import NoAccessError  # noqa: PLC0415 - only what the command needs
    from procession_services.deploy.check import models_that_fail  # noqa: PLC0415

    try:
        problems = await models_that_fail(nats_url, Access.of(settings))
    except NoAccessError:
        return
    for problem in problems:
        say(f"warning: {problem}")


def _checked(settings: Settings) -> dict[str, Agent]:
    """The agents of the agents file; raises what would keep services from starting that the settings name."""
    from procession.registry import Registry  # noqa: PLC0415 - only what the command needs
    from procession_services.runtime.check import checked_agents  # noqa: PLC0415
    from procession_services.runtime.tenants import load_tenants  # noqa: PLC0415

    Access.of(settings)
    registry = Registry.load(settings.plugins)
    if settings.tenants:
        load_tenants(settings.tenants)
    return checked_agents(settings.agents, registry=registry) if settings.agents else {}


async def _started(stack: AsyncExitStack, options: argparse.Namespace, settings: Settings) -> System:
    """Starts servers that are missing and all services; the agent `demo` when there is no agents file."""
    from procession_services.demo.run import DEMO_MODEL, demo_environment  # noqa: PLC0415

    def hear(name: str, line: str) -> None:
        say(f"[{name}] {line}")

    if settings.agents is not None:
        environment = {"PROCESSION_AGENTS": str(settings.agents.absolute())}
    else:
        say("no agents file (--agents FILE): serving the agent `demo`")
        made = demo_environment(settings.model or DEMO_MODEL, hear, settings.plugins)
        environment = await stack.enter_async_context(made)
    if options.config is not None:
        environment = {**environment, "PROCESSION_CONFIG": str(options.config.absolute())}
    if "replica" in settings.model_fields_set:  # also where the settings file gives it
        environment = {**environment, "PROCESSION_REPLICA": settings.replica}
    drain = settings.drain_timeout if "drain_timeout" in settings.model_fields_set else DRAIN_SECONDS
    nats_url, redis_url = _named(options, settings)
    say("starting ...")
    return await stack.enter_async_context(
        system(
            directory=options.data,
            nats_url=nats_url,
            redis_url=redis_url,
            nats_port=urlsplit(_NATS_URL).port,
            environment=environment,
            replicas=dict(options.replicas),
            together=options.together,
            on_line=hear,
            drain_seconds=drain,
        )
    )


def _named(options: argparse.Namespace, settings: Settings) -> tuple[str, str]:
    """The addresses of NATS and Redis that run already; empty where one is started here."""
    given = settings.model_fields_set
    embedded = "nats_url" not in given if options.embedded is None else options.embedded
    if not embedded:
        if "redis_url" not in given:
            where = address(settings.redis_url)
            say(
                f"NATS is named, so Redis is not started either: expecting it at {where} (PROCESSION_REDIS_URL)"
            )
        return settings.nats_url, settings.redis_url
    redis_is_named = "redis_url" in given and options.embedded is None
    return "", settings.redis_url if redis_is_named else ""


def _serve(options: argparse.Namespace) -> int:
    """Runs services until SIGTERM; nothing of the others is loaded."""
    settings = settings_of(options)
    if options.parent:
        end_with(options.parent)
    with garbage.loading():
        from procession_services.processor_host.process import run  # noqa: PLC0415 - only what the command needs

        starts = {name: _app(name).start for name in options.services}
    run(starts, settings)
    return OK


def _app(service: str) -> Any:
    return importlib.import_module(f"procession_services.{service}.app")


async def _model(options: argparse.Namespace) -> int:
    """Runs the demo model server until SIGTERM; it says its port in one JSON line."""
    from procession_services.demo_model.__main__ import run  # noqa: PLC0415
    from procession_services.demo_model.server import DEFAULT_PACE_MS  # noqa: PLC0415

    if options.parent:
        end_with(options.parent)
    pace = DEFAULT_PACE_MS if options.pace_ms is None else options.pace_ms
    try:
        await run(options.host, options.port, pace)
    except OSError as error:
        raise UsageError(
            f"{error.strerror}: choose another --host or --port; port 0 picks a free one"
        ) from error
    return OK


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) not in _PORTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to {_PORTS.stop - 1}")
    return int(text)


def _pace(text: str) -> float:
    try:
        pace = float(text)
    except ValueError:
        pace = math.nan
    if not 0 <= pace < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of milliseconds of at least 0")
    return pace


def _replicas(text: str) -> tuple[str, int]:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not SERVICE=N, such as output_processors=3")
    service, number = pair(text)
    if service not in SERVICES:
        raise argparse.ArgumentTypeError(f"unknown service {service!r}; known: {', '.join(SERVICES)}")
    if type(number) is not int or number < 0:
        raise argparse.ArgumentTypeError(
            f"{text!r}: the number of processes must be a whole number of at least 0"
        )
    return service, number
