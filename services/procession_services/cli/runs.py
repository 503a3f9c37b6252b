"""`procession run | attach | cancel | approve | decline | resume`: starts runs, shows them, steers them."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from procession.errors import ProcessionError
from procession_services.cli.common import (
    CODES,
    FAILED,
    OK,
    Commands,
    UsageError,
    connected,
    pair,
    print_json,
    read_json,
    say,
    whole_number,
)

if TYPE_CHECKING:
    from procession.client import RunHandle

__all__ = ["add_run_commands"]

_ACCEPTED_SECONDS: Final = 5.0
_SILENCE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 2.0
_END_SECONDS: Final = 0.3
"""Within this time a stored end is read; the end of a run that was at work until now may come later."""


def add_run_commands(commands: Commands) -> None:
    """Adds these commands to the command line."""
    common, tenant, shown = commands.common, commands.tenant, commands.shown
    told = "send a request and show the answer as it comes; Ctrl-C cancels the run"
    run = commands.add("run", _run, told, common, tenant, shown)
    run.add_argument("text", help="what to ask; - for stdin")
    run.add_argument("--agent", required=True, help="name of the agent")
    run.add_argument("--thread", help="memory thread; needs --resource")
    run.add_argument("--resource", help="owner of the thread; needs --thread")
    run.add_argument("--run-id", metavar="ID", help="the same id with the same request is the same run")
    run.add_argument(
        "--no-stream", dest="stream", action="store_false", help="print only the result, at the end"
    )
    run.add_argument(
        "--request-context",
        type=pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="data for processors and tools, never for the model; may be repeated",
    )

    told = "show a run that was started elsewhere; Ctrl-C does not cancel it"
    attach = commands.add("attach", _attach, told, common, tenant, shown)
    attach.add_argument("run", metavar="RUN")
    attach.add_argument(
        "--after", type=whole_number(0), default=0, metavar="N", help="skip the first N chunks"
    )

    cancel = commands.add("cancel", _cancel, "cancel a run, whoever started it", common, tenant)
    cancel.add_argument("run", metavar="RUN")

    decisions = (
        ("approve", _approve, "approve a tool call that waits for a person"),
        ("decline", _decline, "decline a tool call that waits for a person"),
        ("resume", _resume, "give a tool call the data that it waits for"),
    )
    for name, decide, told in decisions:
        parser = commands.add(name, decide, told, common, tenant)
        parser.add_argument("run", metavar="RUN")
        parser.add_argument("call", metavar="CALL", help="id of the call, as `run` and `attach` show it")
        if name == "decline":
            parser.add_argument("--reason", metavar="TEXT", help="what the model reads instead of a result")
        if name == "resume":
            parser.add_argument("data", type=_json, metavar="JSON", help="what the tool asked for")


async def _run(options: argparse.Namespace) -> int:
    fields: dict[str, Any] = {"stream": options.stream}
    if options.request_context:
        fields["request_context"] = dict(options.request_context)
    if bool(options.thread) != bool(options.resource):
        raise UsageError("--thread and --resource go together: a thread belongs to a resource")
    if options.thread:
        fields["memory"] = {"thread": options.thread, "resource": options.resource}
    if options.run_id:
        fields["run_id"] = options.run_id
    text = _asked(options.text)
    async with connected(options) as procession:
        handle = await procession.start(text, agent=options.agent, **fields)
        return await _follow(handle, options)


def _asked(text: str) -> str:
    """The text of a request, which may be on stdin; raises UsageError."""
    try:
        asked = sys.stdin.read() if text == "-" else text
        asked.encode()
    except UnicodeError as error:
        raise UsageError(f"the text of the request is not UTF-8: {error}") from error
    return asked


async def _attach(options: argparse.Namespace) -> int:
    async with connected(options) as procession:
        handle = await procession.attach(options.run, after=options.after)
        return await _follow(handle, options, cancels=False)


async def _cancel(options: argparse.Namespace) -> int:
    from procession.client import UnknownRunError  # noqa: PLC0415 - only what the command needs

    told, code = "", OK
    async with connected(options) as procession:
        await procession.cancel(options.run)
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                handle = await procession.attach(options.run)
                result = await handle.result(timeout=_END_SECONDS)
            if result.status not in ("suspended", "cancelled"):
                told = f", but it has ended already: {result.status}"
        except UnknownRunError as error:
            kept = "the request is kept for a day (PROCESSION_CONTEXT_TTL), and cancels a run that starts under this id"
            told, code = f", but {error}; {kept}", FAILED
        except (TimeoutError, ProcessionError):
            pass  # a look, no more: the wish is stored
    say(f"asked to cancel {options.run}{told}")
    return code


async def _approve(options: argparse.Namespace) -> int:
    return await _decide(options, lambda handle: handle.approve(options.call))


async def _decline(options: argparse.Namespace) -> int:
    return await _decide(options, lambda handle: handle.decline(options.call, options.reason))


async def _resume(options: argparse.Namespace) -> int:
    return await _decide(options, lambda handle: handle.resume(options.call, options.data))


async def _decide(
    options: argparse.Namespace, decide: Callable[["RunHandle"], Coroutine[None, None, None]]
) -> int:
    async with connected(options) as procession:
        await decide(await procession.attach(options.run))
    say(f"decision on {options.call} of {options.run} sent")
    return OK


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error


async def _follow(handle: "RunHandle", options: argparse.Namespace, *, cancels: bool = True) -> int:
    """Shows a run to its end. The first Ctrl-C cancels it where it is ours, the next one leaves it alone."""
    from procession_services.demo.rendering import chunk_text, summary  # noqa: PLC0415

    loop, following = asyncio.get_running_loop(), asyncio.current_task()
    assert following is not None

    def interrupt() -> None:
        if not cancels:
            say(f"\nthe run continues; `procession cancel {handle.run_id}` ends it")
            following.cancel()
            return
        say("\ncancelling the run; press Ctrl-C again to stop watching")
        loop.remove_signal_handler(signal.SIGINT)
        cancelling.append(asyncio.create_task(_cancel_it(handle)))

    cancelling: list[asyncio.Task[None]] = []
    loop.add_signal_handler(signal.SIGINT, interrupt)
    watching = asyncio.create_task(_mention_silence(handle))
    try:
        async for chunk in handle:
            if options.json:
                print_json(chunk)
            else:
                sys.stdout.write(chunk_text(chunk))
            sys.stdout.flush()
        result = await handle.result()
    finally:
        watching.cancel()
        loop.remove_signal_handler(signal.SIGINT)
        for task in cancelling:  # there is nothing to cancel any more
            task.cancel()
    if options.json:
        told = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        print_json({"type": "result", "result": told})
    else:
        sys.stdout.write("\n" if handle.streams else f"{result.text}\n")
        sys.stdout.flush()
        say(f"\n{summary(result)}".rstrip())
    return CODES[result.status]


async def _cancel_it(handle: "RunHandle") -> None:
    try:
        await handle.cancel()
    except ProcessionError as error:
        say(f"cannot cancel the run: {error}")


async def _mention_silence(handle: "RunHandle") -> None:
    """Says once that nobody takes the run on, and once that nothing comes of it, which may have many reasons."""
    await asyncio.sleep(_ACCEPTED_SECONDS)
    if not handle.accepted:
        say(
            f"run {handle.run_id} is stored, but no service has accepted it yet: are the services running? "
            "`procession check --deploy` tells"
        )
    position = -1
    while not handle.accepted or handle.position > position:
        position = handle.position
        await asyncio.sleep(_SILENCE_SECONDS)
    say(
        f"nothing has come of run {handle.run_id} for {_SILENCE_SECONDS:g} seconds: the model or a tool may take long, "
        "or a service is down; `procession check --deploy` tells which services answer"
    )
