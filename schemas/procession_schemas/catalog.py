"""The table of all messages: what travels, where, between whom, and what for.

JSON Schemas, the AsyncAPI document and docs/reference/messages.md are made from it, and tests/contract hold it and the
code together. A message that is not in the table does not travel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from procession_schemas import (
    admin,
    backlog,
    embed,
    events,
    generate,
    guard,
    handed,
    holders,
    leases,
    offers,
    remote_tools,
    subjects,
)
from procession_schemas.base import JsonObject
from procession_schemas.chunks import ChunkBatch
from procession_schemas.run import RunRequest
from procession_schemas.work import Control, WorkCommand, WorkResult

CLIENT: Final = "client"
"""Whoever asks for runs."""
OPERATOR: Final = "operator"
"""Whoever watches the system."""
TOOL: Final = "remote tool"
"""A tool in a process of its own."""

ORCHESTRATOR: Final = "orchestrator"
WORKERS: Final = (
    "input_processors", "llm_gateway", "output_processors", "error_recovery", "memory", "tools",
)  # fmt: skip
SERVICES: Final = (ORCHESTRATOR, *WORKERS)
_STREAMING: Final = tuple(service for service in SERVICES if service != "output_processors")
"""Services that send chunks through the output processors."""
_ASKING: Final = ("input_processors", "output_processors", "error_recovery", "memory", "tools")
"""Services whose processors and tools ask models."""


@dataclass(frozen=True, slots=True)
class Row:
    """One message.

    Attributes:
        name: Its name, also of its schema and of the folder of its golden messages.
        body: The model or typed dict of its body; None where there is no body, or one of another row.
        subject: Its subject, tokens that vary in braces.
        stream: The stream that stores it; None: core NATS, gone when nobody listens.
        producers: Who sends it.
        consumers: Who acts on it.
        meaning: What it says, in one sentence.
        reply: Whether it answers a request, on a subject that the request names.
    """

    name: str
    body: Any
    subject: str
    stream: str | None
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    meaning: str
    reply: bool = False


def _pattern(make: Callable[..., str], *tokens: str) -> str:
    """The subject that a function makes, with a name in braces for each token that varies.

    A token that `make` insists on checking stands in as `V-name` meanwhile.
    """
    subject = make(*(f"V-{token[1:-1]}" if token.startswith("{") else token for token in tokens))
    for token in tokens:
        if token.startswith("{"):
            subject = subject.replace(f"V-{token[1:-1]}", token)
    return subject


def _event(type_: str) -> str:
    return _pattern(subjects.event, "{tenant}", "{run}", type_)


_TO_SENDER: Final = f"{_pattern(subjects.answers, '{service}', '{sender}')}.{{session}}"

CATALOG: Final[tuple[Row, ...]] = (
    Row(
        "run.request", RunRequest, _pattern(subjects.run, "{tenant}", "{agent}"), "RUNS",
        (CLIENT,), (ORCHESTRATOR,),
        "Asks for a run; stored means that it will end in exactly one `run.finished`.",
    ),
    Row(
        "work.command", WorkCommand, _pattern(subjects.work, "{service}", "{tenant}", "{run}"), "WORK",
        SERVICES, WORKERS,
        "Operations for one service to run on the context of a run; sent by whoever has done the ones before, unless "
        "they are handed over. The header `Procession-Again` says that somebody may have begun them.",
    ),
    Row(
        "work.result", WorkResult, _pattern(subjects.work, ORCHESTRATOR, "{tenant}", "{run}"), "WORK",
        WORKERS, (ORCHESTRATOR,),
        "What came of a command, from a host that does not take it into the run itself, or has given up.",
    ),
    Row(
        "control", Control, _pattern(subjects.control, "{tenant}", "{run}"), "WORK",
        (CLIENT,), (ORCHESTRATOR,),
        "Cancels a run, or decides about a tool call for which it waits.",
    ),
    Row(
        "run.accepted", events.RunAccepted, _event("run.accepted"), "EVENTS",
        (ORCHESTRATOR,), (CLIENT,),
        "The request is valid, and its run has begun or waits for its turn.",
    ),
    Row(
        "run.suspended", events.RunSuspended, _event("run.suspended"), "EVENTS",
        SERVICES, (CLIENT,),
        "The run waits for a person; its result so far says for what.",
    ),
    Row(
        "run.resumed", events.RunResumed, _event("run.resumed"), "EVENTS",
        (ORCHESTRATOR,), (CLIENT,),
        "A run that waited goes on.",
    ),
    Row(
        "run.finished", events.RunFinished, _event("run.finished"), "EVENTS",
        SERVICES, (CLIENT,),
        "The one terminal event of a run, with its result.",
    ),
    Row(
        "request.rejected", events.RequestRejected, _event("request.rejected"), "EVENTS",
        (ORCHESTRATOR,), (CLIENT,),
        "A request was refused: a limit is reached, Redis is away, or its id is that of a run with another request.",
    ),
    Row(
        "chunk.batch", ChunkBatch, _pattern(subjects.chunk, "{tenant}", "{run}"), "CHUNKS",
        SERVICES, (CLIENT,),
        "Numbered chunks of a run's stream, as many as were ready.",
    ),
    Row(
        "violation", events.ProcessorViolation, _pattern(subjects.violation, "{tenant}", "{processor}"), "VIOLATIONS",
        ("input_processors", "output_processors", "error_recovery", "memory"), (OPERATOR,),
        "A processor aborted; the audit trail of every guardrail.",
    ),
    Row(
        "dead.letter", None, _pattern(subjects.dead, "{stream}", "{service}", "{tenant}", "{run}"), "DEAD",
        SERVICES, (OPERATOR,),
        "A message of RUNS or WORK that was delivered too often, or that no delivery can help: its body as it was, its "
        "subject and the reason in the headers `Procession-Subject` and `Procession-Reason`, in ASCII with `\\x..` and "
        "the like; of a run request the last tokens are `run`, tenant and agent. In the tokens other characters than "
        "letters, digits, `_` and `-` are `_`. `Procession-Cut` says how long the body was where it is not whole.",
    ),
    Row(
        "cancel.signal", None, _pattern(subjects.cancelled, "{tenant}", "{run}"), None,
        SERVICES, WORKERS,
        "Whoever works on this run should stop; the body is empty.",
    ),
    Row(
        "work.handed", handed.HandedCommand, _pattern(subjects.desk, "{service}", "{replica}"), None,
        SERVICES, WORKERS,
        "A command for one replica, which it does without a message in WORK: whoever has one for the run keeps it. The "
        "reply subject is where a replica without room answers with an empty body, and one that gives it up with "
        "`-NAK`.",
    ),
    Row(
        "work.undone", None, _pattern(subjects.undone, "{service}", "{replica}", "{tenant}", "{run}", "{owner}"), None,
        WORKERS, SERVICES,
        "The replica does not do the command that was handed to it; `owner` names its claim, in three tokens.",
    ),
    Row(
        "holder.question", holders.HolderQuestion, _pattern(subjects.holder, "{service}", "{replica}"), None,
        SERVICES, SERVICES,
        "Asks the replica that has claimed a command whether it works on it: NATS has given the command to another "
        "replica, or somebody else has come to it who needs no other service for it, or keeps a message for its run.",
    ),
    Row(
        "holder.answer", holders.HolderAnswer, "_INBOX.{request}", None,
        SERVICES, SERVICES,
        "Whether it does.",
        reply=True,
    ),
    Row(
        "lease.request", leases.LeaseRequest, _pattern(subjects.lease, "output_processors"), None,
        _STREAMING, ("output_processors",),
        "Asks an output replica to take a stream of chunks; with a replica's id behind it, asks that one.",
    ),
    Row(
        "lease.offer", None, _pattern(subjects.offer, "output_processors"), None,
        _STREAMING, ("output_processors",),
        "Asks all output replicas who can take a stream after one was lost; the first answer counts.",
    ),
    Row(
        "lease.reply", leases.LeaseReply, "_INBOX.{request}", None,
        ("output_processors",), _STREAMING,
        "Which replica took the stream, and where its frames go.",
        reply=True,
    ),
    Row(
        "lease.frame", leases.Frame, _pattern(subjects.inbox, "{replica}"), None,
        _STREAMING, ("output_processors",),
        "Raw chunks for the output chain.",
    ),
    Row(
        "lease.answer", leases.FrameAnswer, _TO_SENDER, None,
        ("output_processors",), _STREAMING,
        "How far the replica is with a stream, and at the end what came of it.",
    ),
    Row(
        "guard.request", guard.GuardRequest, _pattern(subjects.api, "input_processors", "{tenant}", "guard"), None,
        ("llm_gateway",), ("input_processors",),
        "Asks an input guardrail that runs beside the model call; with a replica's id behind it, asks that one.",
    ),
    Row(
        "guard.offer", None, _pattern(subjects.offer, "input_processors"), None,
        ("llm_gateway",), ("input_processors",),
        "Asks all input replicas who can judge after one has fallen silent; the first answer counts.",
    ),
    Row(
        "guard.offered", offers.ReplicaOffer, "_INBOX.{request}", None,
        ("input_processors",), ("llm_gateway",),
        "A replica that lives.",
        reply=True,
    ),
    Row(
        "guard.reply", guard.GuardReply, "_INBOX.{request}", None,
        ("input_processors",), ("llm_gateway",),
        "Its verdict; until then nothing of the model's answer goes anywhere.",
        reply=True,
    ),
    Row(
        "generate.request", generate.GenerateRequest,
        _pattern(subjects.api, "llm_gateway", "{tenant}", "generate"), None,
        _ASKING, ("llm_gateway",),
        "A question of a processor or a tool to a model; with a replica's id behind it, for that one.",
    ),
    Row(
        "generate.offer", None, _pattern(subjects.offer, "llm_gateway"), None,
        _ASKING, ("llm_gateway",),
        "Asks all gateways who can ask a model, for vectors too, after one has fallen silent; the first answer counts.",
    ),
    Row(
        "generate.offered", offers.ReplicaOffer, "_INBOX.{request}", None,
        ("llm_gateway",), _ASKING,
        "A replica that lives.",
        reply=True,
    ),
    Row(
        "generate.reply", generate.GenerateReply, "_INBOX.{request}", None,
        ("llm_gateway",), _ASKING,
        "The whole answer, or why there is none.",
        reply=True,
    ),
    Row(
        "embed.request", embed.EmbedRequest, _pattern(subjects.api, "llm_gateway", "{tenant}", "embed"), None,
        ("memory",), ("llm_gateway",),
        "Texts that semantic recall wants as vectors; with a replica's id behind it, for that one.",
    ),
    Row(
        "embed.reply", embed.EmbedReply, "_INBOX.{request}", None,
        ("llm_gateway",), ("memory",),
        "A vector for each text, or why there are none.",
        reply=True,
    ),
    Row(
        "memory.request", JsonObject, _pattern(subjects.api, "memory", "{tenant}", "{operation}"), None,
        (CLIENT, "tools"), ("memory",),
        "Reads or changes threads and messages; operations and fields: [memory](../memory.md#in-other-languages). The "
        "tool of working memory asks for `update-note`.",
    ),
    Row(
        "memory.reply", JsonObject, "_INBOX.{request}", None,
        ("memory",), (CLIENT, "tools"),
        "The answer, or `error` with a `Failure`.",
        reply=True,
    ),
    Row(
        "backlog.request", backlog.BacklogRequest, _pattern(subjects.api, "orchestrator", "{tenant}", "backlog"), None,
        (CLIENT,), ("orchestrator",),
        "Asks for the stored chunks of a run, or whether there is anything of it.",
    ),
    Row(
        "backlog.reply", backlog.BacklogReply, "_INBOX.{request}", None,
        ("orchestrator",), (CLIENT,),
        "Some of the stored chunks, or whether there is anything of the run.",
        reply=True,
    ),
    Row(
        "status.request", None, subjects.admin("status"), None,
        (OPERATOR,), SERVICES,
        "Asks every replica how it is doing; the body is empty.",
    ),
    Row(
        "reload.request", None, subjects.admin("reload"), None,
        (OPERATOR,), SERVICES,
        "Has every replica read its files anew, and say what is wrong with them; the body is empty.",
    ),
    Row(
        "models.request", admin.ModelsRequest, subjects.admin("models"), None,
        (OPERATOR,), ("llm_gateway",),
        "Asks the gateways whether they could call some models.",
    ),
    Row(
        "status.reply", admin.ServiceStatus, "_INBOX.{request}", None,
        SERVICES, (OPERATOR,),
        "What a replica has found, and what counts there.",
        reply=True,
    ),
    Row(
        "tool.request", remote_tools.RemoteToolRequest, "tool.{name}", None,
        ("tools",), (TOOL,),
        "One call of a tool that somebody else runs.",
    ),
    Row(
        "tool.reply", remote_tools.RemoteToolReply, "_INBOX.{request}", None,
        (TOOL,), ("tools",),
        "What the tool gave.",
        reply=True,
    ),
)  # fmt: skip
"""Every message, stored ones first."""


def row(name: str) -> Row:
    """The row of a message; KeyError when there is none."""
    return {each.name: each for each in CATALOG}[name]
