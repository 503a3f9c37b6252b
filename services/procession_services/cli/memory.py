"""`procession memory`: its actions are the requests about threads and messages."""

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from procession.authors import said
from procession_services.cli.common import UsageError, print_json, say, whole_number
from procession_services.runtime.agents import read_agents
from procession_services.runtime.problems import ConfigurationError, Problem
from procession_services.runtime.settings import Settings
from procession_services.runtime.words import number_of

if TYPE_CHECKING:
    from procession.client import MemoryClient, Procession

__all__ = ["add_memory_command", "memory_problems"]

_POLL_SECONDS: Final = 0.5
_EMBEDDER: Final = "embedder of agents that name their own, if none of them has run yet"
Connect = Callable[[argparse.Namespace], AbstractAsyncContextManager["Procession"]]
_Action = Callable[["MemoryClient", argparse.Namespace], Awaitable[None]]


def memory_problems(settings: Settings) -> list[Problem]:
    """What is wrong with semantic recall in the agents file: no vector store, no weights, only the lexical fallback.

    Nor can agents share an index when their embedders make different vectors.
    """
    from procession_services.memory.embedders import (  # noqa: PLC0415 - only what the command needs
        AUTO,
        fallback_warning,
        local_default,
    )
    from procession_services.memory.stores.onnx import missing_weights  # noqa: PLC0415

    if settings.agents is None:
        return []
    try:
        file = read_agents(settings.agents)
    except ConfigurationError:
        return []  # told by the check of the file itself
    problems = []
    makers: dict[str | None, tuple[str, str, dict[str, Any]]] = {}
    for name, agent in file.agents.items():
        recall = agent.memory.semantic_recall if agent.memory else None
        if not recall:
            continue
        path = f"agents.{name}.memory.semanticRecall"
        embedder = recall.embedder or settings.embedder
        maker = local_default(settings.onnx_path) if embedder == AUTO else embedder
        first, *made_by = makers.setdefault(recall.index_name, (name, maker, recall.embedder_options))
        if made_by != [maker, recall.embedder_options]:
            told = f"shares its index with agent {first!r}, which has another embedder: give it its own `indexName`"
            problems += file.placed([Problem("", path, told, warning=True)])
        if not (settings.chroma_url or settings.chroma_path):
            told = "needs PROCESSION_CHROMA_URL or PROCESSION_CHROMA_PATH, except under `procession up`"
            problems += file.placed([Problem("", path, told, warning=True)])
        if settings.onnx_path and (missing := missing_weights(settings.onnx_path)):
            told = f"{missing[0]} is missing, unless the memory service sees another directory there"
            problems.append(Problem("PROCESSION_ONNX_PATH", path, told, warning=True))
        if warning := fallback_warning(embedder, settings.onnx_path):
            problems.append(Problem("PROCESSION_EMBEDDER", path, warning, warning=True))
    return problems


def add_memory_command(commands: Any, connect: Connect, *parents: argparse.ArgumentParser) -> None:
    """Adds `memory` with its actions to the commands; `connect` opens a client from the options."""
    told = "show and change what agents remember"
    memory = commands.add_parser("memory", help=told, description=told)
    actions = memory.add_subparsers(title="actions", required=True, metavar="ACTION")

    def action(name: str, run: _Action, help_: str) -> argparse.ArgumentParser:
        async def command(options: argparse.Namespace) -> int:
            return await _with_client(connect, run, options)

        added: argparse.ArgumentParser = actions.add_parser(
            name, help=help_, description=help_, parents=list(parents)
        )
        added.set_defaults(command=command)
        return added

    threads = action("threads", _threads, "list the threads of a resource, latest first")
    threads.add_argument("resource")
    _paged(threads)
    for name, run, help_ in (
        ("thread", _thread, "show a thread: title, times, metadata"),
        ("create", _create, "create an empty thread"),
        ("messages", _messages, "show the messages of a thread, oldest first, one JSON object per line"),
        ("delete", _delete, "delete a thread with its messages, its working memory and its embeddings"),
        ("export", _export, "write a thread to stdout, as JSON lines that `import` reads"),
        ("rename", _rename, "set the title of a thread; an empty one removes it"),
    ):
        added = action(name, run, help_)
        added.add_argument("thread")
        added.add_argument("resource")
        if name == "messages":
            added.add_argument("--last", type=whole_number(1, 1000), metavar="N", help="only the newest N")
            _paged(added)
        if name == "rename":
            added.add_argument("title")
        if name == "create":
            added.add_argument("--title")
    taken = action(
        "import",
        _import,
        "read threads that `export` wrote; existing messages are replaced, existing working memory stays",
    )
    taken.add_argument("file", type=Path, help="- for stdin")
    taken.add_argument("--embedder", help=_EMBEDDER)
    note = action("note", _note, "show the working memory of a resource or a thread, or set it")
    note.add_argument("resource")
    note.add_argument("--thread", help="the working memory of this thread, not of the resource")
    note.add_argument("--set", metavar="TEXT", help="the new text")
    action("index", _index, "show how many jobs are waiting for the index of semantic recall")
    reindex = action(
        "reindex",
        _reindex,
        "rebuild the index of semantic recall, for example after a change of the embedder",
    )
    reindex.add_argument("--embedder", help=_EMBEDDER)
    reindex.add_argument("--no-wait", action="store_true", help="return as soon as it is queued")


def _paged(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--page",
        type=whole_number(0, 2**31 - 1),
        default=0,
        metavar="N",
        help="number of the page, counted from 0",
    )
    parser.add_argument(
        "--per-page", type=whole_number(1, 1000), default=40, metavar="N", help="1 to 1000 (default: 40)"
    )


async def _with_client(connect: Connect, run: _Action, options: argparse.Namespace) -> int:
    from procession.client import MemoryRequestError  # noqa: PLC0415 - only what the command needs

    async with connect(options) as procession:
        try:
            await run(procession.memory, options)
        except MemoryRequestError as error:
            say(f"procession: {error} ({error.failure.code})")
            return 1
    return 0


async def _threads(memory: "MemoryClient", options: argparse.Namespace) -> None:
    from procession_services.demo.rendering import table  # noqa: PLC0415

    told = await memory.threads(options.resource, page=options.page, per_page=options.per_page)
    rows = [[each["id"], each.get("title", ""), each["updatedAt"]] for each in told["threads"]]
    sys.stdout.write(table(["thread", "title", "updated"], rows) if rows else "no threads\n")
    _more(told)


async def _thread(memory: "MemoryClient", options: argparse.Namespace) -> None:
    print_json(await memory.thread(options.thread, options.resource))


async def _create(memory: "MemoryClient", options: argparse.Namespace) -> None:
    print_json(await memory.create(options.thread, options.resource, title=options.title))


async def _messages(memory: "MemoryClient", options: argparse.Namespace) -> None:
    told = await memory.messages(
        options.thread, options.resource, page=options.page, per_page=options.per_page, limit=options.last
    )
    for message in told["messages"]:
        print_json(message)
    _more(told)


async def _delete(memory: "MemoryClient", options: argparse.Namespace) -> None:
    await memory.delete(options.thread, options.resource)
    say(f"deleted {options.thread}")


async def _rename(memory: "MemoryClient", options: argparse.Namespace) -> None:
    await memory.rename(options.thread, options.resource, options.title)


async def _export(memory: "MemoryClient", options: argparse.Namespace) -> None:
    async for page in memory.export(options.thread, options.resource):
        print_json(page)


async def _import(memory: "MemoryClient", options: argparse.Namespace) -> None:
    text = sys.stdin.read() if str(options.file) == "-" else options.file.read_text(encoding="utf-8")
    number = 0
    for at, line in enumerate(text.split("\n"), 1):  # JSON takes other ends of lines for letters
        if line.strip():
            page = _page(line, f"{options.file}:{at}")
            number += len(await memory.import_page(page, embedder=options.embedder))
    say(f"{number_of(number, 'message')} imported")


def _page(line: str, where: str) -> dict[str, Any]:
    """A line of an export; raises UsageError."""
    try:
        page: dict[str, Any] = json.loads(line)
        _ = page["thread"]["id"], page["thread"]["resource"], page["messages"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        told = f"{where}: this is not a line of `procession memory export`: {said(error)}"
        raise UsageError(f"{told}; the lines before it were imported") from error
    return page


async def _note(memory: "MemoryClient", options: argparse.Namespace) -> None:
    if options.set is not None:
        await memory.set_note(options.set, options.resource, options.thread)
        return
    told = await memory.note(options.resource, options.thread)
    sys.stdout.write(f"{told}\n" if told is not None else "")


async def _index(memory: "MemoryClient", options: argparse.Namespace) -> None:  # noqa: ARG001 - an action's shape
    sys.stdout.write(f"{number_of(await memory.index_waiting(), 'job')} waiting\n")


async def _reindex(memory: "MemoryClient", options: argparse.Namespace) -> None:
    waiting = await memory.reindex(options.embedder)
    while waiting and not options.no_wait:
        say(f"{number_of(waiting, 'job')} waiting")
        await asyncio.sleep(_POLL_SECONDS)
        waiting = await memory.index_waiting()
    say("queued" if options.no_wait else "done")


def _more(told: dict[str, Any]) -> None:
    if told.get("hasMore"):
        say(f"there are more, {told['total']} in total: see --page {told['page'] + 1}")
