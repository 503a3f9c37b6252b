"""The command line: `procession demo | up | run | attach | cancel | check | init | ...`; `--help` lists all.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 blocked by a processor, 130 interrupted.
"""

import argparse
import asyncio
import ctypes
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from procession.errors import ProcessionError
from procession_schemas.subjects import InvalidSubjectError
from procession_services.cli_memory import add_memory_command, memory_problems
from procession_services.deploy.command import add_deploy_commands
from procession_services.runtime.access import Access
from procession_services.runtime.embedded import EmbeddedServerError
from procession_services.runtime.settings import Settings, SettingsError
from procession_services.supervisor import SERVICES, StartError, System, system

if TYPE_CHECKING:
    from procession.client import Procession, RunHandle

__all__ = ["main"]

_OK: Final = 0
_FAILED: Final = 1
_USAGE: Final = 2
_CODES: Final = {"finished": _OK, "suspended": _OK, "failed": _FAILED, "blocked": 3, "cancelled": 130}
_INTERRUPTED: Final = 130
_CONNECT_SECONDS: Final = 2.0
_SILENCE_SECONDS: Final = 5.0
_Command = Callable[[argparse.Namespace], int | Coroutine[Any, Any, int]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    sys.path.insert(0, str(Path.cwd()))  # plugins are modules of the project one stands in
    options = _parser().parse_args(arguments)
    try:
        outcome = options.command(options)
        code: int = asyncio.run(outcome) if asyncio.iscoroutine(outcome) else outcome
    except (SettingsError, ProcessionError, _UsageError) as error:
        _say(f"procession: {error}")
        return _USAGE if isinstance(error, SettingsError | _UsageError) else _FAILED
    except ValidationError as error:
        for wrong in error.errors():
            _say(f"procession: {'.'.join(map(str, wrong['loc']))}: {wrong['msg']}")
        return _USAGE
    except InvalidSubjectError as error:
        _say(f"procession: {error}")
        return _USAGE
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _INTERRUPTED
    return code


class _UsageError(Exception):
    """The command cannot be done as it was asked for; the message says why."""


def _serve(options: argparse.Namespace) -> int:
    """Runs one service until SIGTERM; nothing of the other services is loaded."""
    from procession_services.processor_host.service import run  # noqa: PLC0415 - only what the command needs

    settings = _settings(options)
    if options.parent:
        _end_with(options.parent)
    app = importlib.import_module(f"procession_services.{options.service}.app")
    run(options.service, settings, app.start)
    return _OK


async def _up(options: argparse.Namespace) -> int:
    """Runs every service on this machine until Ctrl-C."""
    settings = _settings(options)
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        async with AsyncExitStack() as stack:
            running = await _started(stack, options, settings)
            _say(f"ready; NATS {running.nats_url}, Redis {running.redis_url}; Ctrl-C stops")
            _say("in another terminal:")
            if running.nats_url != Settings.model_fields["nats_url"].default:
                _say(f"  export PROCESSION_NATS_URL={running.nats_url}")
            _say('  procession run "What is the weather in Paris?" --agent demo')
            try:
                await asyncio.Event().wait()
            finally:
                _say("stopping ...")
    except (StartError, EmbeddedServerError) as error:
        _say(f"procession: {error}")
        return _FAILED
    except asyncio.CancelledError:
        return _OK  # that is how it is told to stop
    return _OK


async def _started(stack: AsyncExitStack, options: argparse.Namespace, settings: Settings) -> System:
    """Starts servers that are missing and all services; the agent `demo` when there is no agents file."""
    from procession_services.demo.run import DEMO_MODEL, demo_environment  # noqa: PLC0415

    if settings.agents is not None:
        environment = {"PROCESSION_AGENTS": str(settings.agents.resolve())}
    else:
        _say("no agents file (--agents FILE): serving the agent `demo`")
        environment = await stack.enter_async_context(demo_environment(settings.model or DEMO_MODEL))
    embedded = options.embedded
    if embedded is None:
        embedded = "nats_url" not in settings.model_fields_set
    _say("starting ...")
    return await stack.enter_async_context(
        system(
            directory=options.data,
            nats_url="" if embedded else settings.nats_url,
            redis_url="" if embedded else settings.redis_url,
            environment=environment,
            replicas=dict(options.replicas),
            on_line=lambda name, line: _say(f"[{name}] {line}"),
        )
    )


async def _run(options: argparse.Namespace) -> int:
    fields: dict[str, Any] = {"stream": options.stream}
    if options.request_context:
        fields["request_context"] = dict(options.request_context)
    if bool(options.thread) != bool(options.resource):
        raise _UsageError("--thread and --resource go together: a thread belongs to a resource")
    if options.thread:
        fields["memory"] = {"thread": options.thread, "resource": options.resource}
    if options.run_id:
        fields["run_id"] = options.run_id
    text = sys.stdin.read() if options.text == "-" else options.text
    async with _client(options) as procession:
        handle = await procession.start(text, agent=options.agent, **fields)
        return await _follow(handle, options)


async def _attach(options: argparse.Namespace) -> int:
    async with _client(options) as procession:
        return await _follow(await procession.attach(options.run, after=options.after), options)


async def _follow(handle: "RunHandle", options: argparse.Namespace) -> int:
    """Shows a run to its end; the first Ctrl-C cancels the run, the second one leaves it alone."""
    from procession_services.demo.rendering import chunk_text, summary  # noqa: PLC0415

    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        _say("\ncancelling the run; Ctrl-C again leaves it alone")
        loop.remove_signal_handler(signal.SIGINT)
        cancelling.append(asyncio.ensure_future(handle.cancel()))

    cancelling: list[asyncio.Future[None]] = []
    loop.add_signal_handler(signal.SIGINT, interrupt)
    silence = loop.call_later(_SILENCE_SECONDS, _mention_silence, handle)
    try:
        async for chunk in handle:
            sys.stdout.write(
                f"{json.dumps(chunk, ensure_ascii=False)}\n" if options.json else chunk_text(chunk)
            )
            sys.stdout.flush()
        result = await handle.result()
    finally:
        silence.cancel()
        loop.remove_signal_handler(signal.SIGINT)
    if options.json:
        told = {"type": "result", "result": result.model_dump(mode="json", by_alias=True, exclude_none=True)}
        sys.stdout.write(f"{json.dumps(told, ensure_ascii=False)}\n")
    else:
        sys.stdout.write("\n" if options.stream else f"{result.text}\n")
        sys.stdout.flush()
        _say(f"\n{summary(result)}".rstrip())
    return _CODES[result.status]


def _mention_silence(handle: "RunHandle") -> None:
    if not handle.accepted:
        _say(f"run {handle.run_id} is stored, but no service has taken it yet: are the services running?")


async def _dead(options: argparse.Namespace) -> int:
    """Lists the dead letters, or puts one back."""
    from procession_services.bus import Bus  # noqa: PLC0415 - only what the command needs
    from procession_services.bus.dead import dead_letters, replay  # noqa: PLC0415
    from procession_services.demo.rendering import table  # noqa: PLC0415

    settings = _settings(options)
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
            return _OK
        letter = await replay(bus, options.replay)
    finally:
        await bus.close()
    if letter is None:
        raise _UsageError(f"there is no dead letter {options.replay}; `procession dead` lists them")
    _say(f"{letter.subject} is delivered again")
    return _OK


async def _cancel(options: argparse.Namespace) -> int:
    async with _client(options) as procession:
        await procession.cancel(options.run)
    _say(f"asked to cancel {options.run}")
    return _OK


def _check(options: argparse.Namespace) -> int:
    from procession_services.runtime.check import check, check_servers  # noqa: PLC0415

    settings = _settings(options)
    problems = check(settings, _model_problem if options.models else None) + memory_problems(settings)
    if options.deploy:
        problems += asyncio.run(check_servers(settings))
    for problem in problems:
        print(problem)  # noqa: T201
    wrong = [problem for problem in problems if not problem.warning]
    _say(f"{len(wrong)} wrong" if wrong else "all good")
    return _USAGE if wrong else _OK


def _model_problem(model: str) -> str | None:
    """What is wrong with the name of a model; it takes LiteLLM, and seconds to load it."""
    from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider  # noqa: PLC0415

    if LiteLLMProvider().knows(model):
        return None
    return (
        f"unknown model {model!r}; write provider/name, with a provider of LiteLLM, as in openai/gpt-4o-mini"
    )


def _processors(options: argparse.Namespace) -> int:
    from procession.registry import Registry  # noqa: PLC0415
    from procession_services.demo.rendering import table  # noqa: PLC0415

    registry = Registry.load(_settings(options).plugins)
    rows = []
    for name, kind in sorted(registry.processors.items()):
        hooks = sorted(kind.hooks_for({}))
        told = (kind.description or kind.__doc__ or "").strip().splitlines()
        rows.append([name, ", ".join(hooks), told[0] if told else ""])
    sys.stdout.write(table(["processor", "hooks", "what it does"], rows))
    return _OK


async def _demo(options: argparse.Namespace) -> int:
    from procession_services.demo.run import QUESTION, demo  # noqa: PLC0415

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return _CODES[(await demo(options.question or QUESTION)).status]
    except (StartError, EmbeddedServerError) as error:
        _say(f"\nprocession: {error}")
        return _FAILED


async def _model(options: argparse.Namespace) -> int:
    """Runs the demo model server until SIGTERM; it says its port in one JSON line."""
    from procession_services.demo_model.__main__ import run  # noqa: PLC0415
    from procession_services.demo_model.server import DEFAULT_PACE_MS  # noqa: PLC0415

    if options.parent:
        _end_with(options.parent)
    await run(options.host, options.port, DEFAULT_PACE_MS)
    return _OK


def _client(options: argparse.Namespace) -> "Procession":
    from procession.client import Procession  # noqa: PLC0415

    settings = _settings(options)
    access = Access.of(settings).nats(settings.nats_url)
    return Procession(settings.nats_url, tenant=settings.tenant, connect_timeout=_CONNECT_SECONDS, **access)


def _settings(options: argparse.Namespace) -> Settings:
    given = vars(options)
    overrides = {name: given.get(name) for name in ("nats_url", "redis_url", "agents", "tenant")}
    return Settings.load(given.get("config"), **overrides)


def _end_with(parent: int) -> None:
    """Has the kernel end this process when the one that started it dies, however that happens (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            sys.exit(_FAILED)


def _pair(text: str) -> tuple[str, Any]:
    """`key=value`; a value that is JSON is taken as that, any other as text."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _replicas(text: str) -> tuple[str, int]:
    service, number = _pair(text)
    if service not in SERVICES:
        raise argparse.ArgumentTypeError(f"unknown service {service!r}; known: {', '.join(SERVICES)}")
    if not isinstance(number, int) or number < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: how many must be a number from 0")
    return service, number


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="procession", description="Runs AI-agent requests through a procession of processors, on NATS."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--config", type=Path, metavar="FILE", help="settings file (default: PROCESSION_CONFIG)"
    )
    common.add_argument("--nats-url", metavar="URL", help="NATS server (default: PROCESSION_NATS_URL)")
    common.add_argument("--redis-url", metavar="URL", help="Redis (default: PROCESSION_REDIS_URL)")
    agents = argparse.ArgumentParser(add_help=False)
    agents.add_argument(
        "--agents", type=Path, metavar="FILE", help="agents file (default: PROCESSION_AGENTS)"
    )
    tenant = argparse.ArgumentParser(add_help=False)
    tenant.add_argument("--tenant", metavar="NAME", help="tenant of the run (default: PROCESSION_TENANT)")
    shown = argparse.ArgumentParser(add_help=False)
    shown.add_argument("--json", action="store_true", help="chunks and result as JSON, one a line")

    def command(name: str, run: _Command, help_: str, *parents: Any) -> Any:
        added = commands.add_parser(name, help=help_, description=help_, parents=list(parents))
        added.set_defaults(command=run)
        return added

    demo = command(
        "demo", _demo, "start everything on this machine, run one request, show what happened, stop"
    )
    demo.add_argument("question", nargs="?", help="what to ask")

    up = command("up", _up, "start every service on this machine, until Ctrl-C", common, agents)
    up.add_argument(
        "--embedded",
        action=argparse.BooleanOptionalAction,
        help="start NATS and Redis too (default: unless a NATS URL is given)",
    )
    up.add_argument("--data", type=Path, metavar="DIR", help="where they keep their data (default: nowhere)")
    up.add_argument(
        "--replicas",
        type=_replicas,
        action="append",
        default=[],
        metavar="SERVICE=N",
        help="processes of a service; may be repeated",
    )

    run = command("run", _run, "send a request and show the answer as it comes", common, tenant, shown)
    run.add_argument("text", help="what to ask; - reads it from stdin")
    run.add_argument("--agent", required=True, help="name of the agent")
    run.add_argument("--thread", help="thread that is remembered; needs --resource")
    run.add_argument("--resource", help="whose thread it is; needs --thread")
    run.add_argument("--run-id", metavar="ID", help="the same id with the same request is the same run")
    run.add_argument("--no-stream", dest="stream", action="store_false", help="only the result, at the end")
    run.add_argument(
        "--request-context",
        type=_pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="data for processors and tools, never for the model; may be repeated",
    )

    attach = command("attach", _attach, "show a run that somebody started", common, tenant, shown)
    attach.add_argument("run", metavar="RUN")
    attach.add_argument("--after", type=int, default=0, metavar="N", help="leave out the first N chunks")
    attach.set_defaults(stream=True)

    cancel = command("cancel", _cancel, "cancel a run, whoever started it", common, tenant)
    cancel.add_argument("run", metavar="RUN")

    dead = command("dead", _dead, "list what no service could handle, or give one another chance", common)
    dead.add_argument("--replay", type=int, metavar="N", help="put number N back where it came from")

    add_memory_command(commands, _client, common, tenant)
    add_deploy_commands(commands)

    check = command("check", _check, "tell everything that is wrong with the configuration", common, agents)
    check.add_argument(
        "--models", action=argparse.BooleanOptionalAction, default=True, help="also the names of models"
    )
    check.add_argument("--deploy", action="store_true", help="also whether NATS and Redis answer")

    command("processors", _processors, "list the installed processors and their hooks", common)

    model = command("model", _model, "serve the deterministic demo model, with OpenAI's chat protocol")
    model.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback)")
    model.add_argument("--port", type=int, default=8399, help="0 picks a free one (default: %(default)s)")
    model.add_argument("--parent", type=int, help=argparse.SUPPRESS)

    serve = command("serve", _serve, "run one service, until SIGTERM", common, agents)
    serve.add_argument("service", choices=SERVICES)
    serve.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    return parser
