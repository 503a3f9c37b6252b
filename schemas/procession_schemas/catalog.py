"""The table of all messages: what is sent, on which subject, between whom, and what for.

JSON Schemas, the AsyncAPI document and docs/reference/messages.md are generated from it, and tests/contract keeps it
and the code in step. A message that is not in the table is never sent.
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
"""A program that asks for runs."""
OPERATOR: Final = "operator"
"""A person or program that watches the system."""
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
        "Asks for a run. Once the request is stored, it will end in exactly one `run.finished`.",
    ),
    Row(
        "work.command", WorkCommand, _pattern(subjects.work, "{service}", "{tenant}", "{run}"), "WORK",
        SERVICES, WORKERS,
        "Operations for one service to run on the context of a run; sent by the service that has done the ones before, "
        "unless it hands them over (`work.handed`). The header `Procession-Again` says that somebody may have "
        "begun them already.",
    ),
    Row(
        "work.result", WorkResult, _pattern(subjects.work, ORCHESTRATOR, "{tenant}", "{run}"), "WORK",
        WORKERS, (ORCHESTRATOR,),
        "The outcome of a command, from a service that does not continue the run itself, or has given up.",
    ),
    Row(
        "control", Control, _pattern(subjects.control, "{tenant}", "{run}"), "WORK",
        (CLIENT,), (ORCHESTRATOR,),
        "Cancels a run, or decides on a tool call for which it waits.",
    ),
    Row(
        "run.accepted", events.RunAccepted, _event("run.accepted"), "EVENTS",
        (ORCHESTRATOR,), (CLIENT,),
        "The request is valid, and its run has started or waits for its turn.",
    ),
    Row(
        "run.suspended", events.RunSuspended, _event("run.suspended"), "EVENTS",
        SERVICES, (CLIENT,),
        "The run waits for a person; its result so far says what for.",
    ),
    Row(
        "run.resumed", events.RunResumed, _event("run.resumed"), "EVENTS",
        (ORCHESTRATOR,), (CLIENT,),
        "A run that waited for a person continues.",
    ),
    Row(
        "run.finished", events.RunFinished, _event("run.finished"), "EVENTS",
        SERVICES, (CLIENT,),
        "The one terminal event of a run, with its result.",
    ),
    Row(
        "request.rejected", events.RequestRejected, _event("request.rejected"), "EVENTS",
        (ORCHESTRATOR,), (CLIENT,),
        "A request was refused: a limit is reached, Redis does not answer, or its id belongs to a run with another "
        "request.",
    ),
    Row(
        "chunk.batch", ChunkBatch, _pattern(subjects.chunk, "{tenant}", "{run}"), "CHUNKS",
        SERVICES, (CLIENT,),
        "Numbered chunks of a run's stream, as many as were ready.",
    ),
    Row(
        "violation", events.ProcessorViolation, _pattern(subjects.violation, "{tenant}", "{processor}"), "VIOLATIONS",
        ("input_processors", "output_processors", "error_recovery", "memory"), (OPERATOR,),
        "A processor aborted; these messages are the audit trail of all guardrails.",
    ),
    Row(
        "dead.letter", None, _pattern(subjects.dead, "{stream}", "{service}", "{tenant}", "{run}"), "DEAD",
        SERVICES, (OPERATOR,),
        "A message of RUNS or WORK that was delivered too often, or that no further delivery can help, with its body "
        "unchanged. The headers `Procession-Subject` and `Procession-Reason` have its subject and the reason, in ASCII "
        "with escapes such as `\\x..`. For a run request, the last tokens of the subject are `run`, tenant and agent. "
        "Characters other than letters, digits, `_` and `-` become `_` in the tokens. If the body was cut, "
        "`Procession-Cut` has its original length.",
    ),
    Row(
        "cancel.signal", None, _pattern(subjects.cancelled, "{tenant}", "{run}"), None,
        SERVICES, WORKERS,
        "Tells every replica that works on this run to stop; the body is empty.",
    ),
    Row(
        "work.handed", handed.HandedCommand, _pattern(subjects.desk, "{service}", "{replica}"), None,
        SERVICES, WORKERS,
        "A command that is handed over to one replica without a message in WORK: the process that has a message for "
        "the run keeps it meanwhile. On the reply subject, a replica without room answers with an empty body, and one "
        "that gives the command up with `-NAK`.",
    ),
    Row(
        "work.undone", None, _pattern(subjects.undone, "{service}", "{replica}", "{tenant}", "{run}", "{owner}"), None,
        WORKERS, SERVICES,
        "The replica will not do the command that was handed to it; `owner` is the name of its claim, in three tokens.",
    ),
    Row(
        "holder.question", holders.HolderQuestion, _pattern(subjects.holder, "{service}", "{replica}"), None,
        SERVICES, SERVICES,
        "Asks the replica that has claimed a command whether it still works on it. Asked by a replica to which NATS "
        "has redelivered the command, or by one that could do it itself, or that keeps a message for its run.",
    ),
    Row(
        "holder.answer", holders.HolderAnswer, "_INBOX.{request}", None,
        SERVICES, SERVICES,
        "Whether the replica still works on the command.",
        reply=True,
    ),
    Row(
        "lease.request", leases.LeaseRequest, _pattern(subjects.lease, "output_processors"), None,
        _STREAMING, ("output_processors",),
        "Asks an output replica to take a stream of chunks; with a replica's id at the end of the subject, asks that "
        "one.",
    ),
    Row(
        "lease.offer", None, _pattern(subjects.offer, "output_processors"), None,
        _STREAMING, ("output_processors",),
        "Asks all output replicas which of them can take a stream after a replica was lost; the first answer counts.",
    ),
    Row(
        "lease.reply", leases.LeaseReply, "_INBOX.{request}", None,
        ("output_processors",), _STREAMING,
        "Which replica took the stream, and where to send its frames.",
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
        "How far the replica has got with a stream, and at the end its outcome.",
    ),
    Row(
        "guard.request", guard.GuardRequest, _pattern(subjects.api, "input_processors", "{tenant}", "guard"), None,
        ("llm_gateway",), ("input_processors",),
        "Asks an input guardrail that runs beside the model call; with a replica's id at the end of the subject, asks "
        "that replica.",
    ),
    Row(
        "guard.offer", None, _pattern(subjects.offer, "input_processors"), None,
        ("llm_gateway",), ("input_processors",),
        "Asks all input replicas which of them can run a guard after a replica has fallen silent; the first answer "
        "counts.",
    ),
    Row(
        "guard.offered", offers.ReplicaOffer, "_INBOX.{request}", None,
        ("input_processors",), ("llm_gateway",),
        "A replica that is alive.",
        reply=True,
    ),
    Row(
        "guard.reply", guard.GuardReply, "_INBOX.{request}", None,
        ("input_processors",), ("llm_gateway",),
        "The guard's verdict; until it is there, no part of the model's answer is passed on.",
        reply=True,
    ),
    Row(
        "generate.request", generate.GenerateRequest,
        _pattern(subjects.api, "llm_gateway", "{tenant}", "generate"), None,
        _ASKING, ("llm_gateway",),
        "A question that a processor or a tool asks a model; with a replica's id at the end of the subject, for that "
        "replica.",
    ),
    Row(
        "generate.offer", None, _pattern(subjects.offer, "llm_gateway"), None,
        _ASKING, ("llm_gateway",),
        "Asks all gateways which of them can call a model, or an embedding model, after a gateway has fallen silent; "
        "the first answer counts.",
    ),
    Row(
        "generate.offered", offers.ReplicaOffer, "_INBOX.{request}", None,
        ("llm_gateway",), _ASKING,
        "A replica that is alive.",
        reply=True,
    ),
    Row(
        "generate.reply", generate.GenerateReply, "_INBOX.{request}", None,
        ("llm_gateway",), _ASKING,
        "The whole answer of the model, or why there is none.",
        reply=True,
    ),
    Row(
        "embed.request", embed.EmbedRequest, _pattern(subjects.api, "llm_gateway", "{tenant}", "embed"), None,
        ("memory",), ("llm_gateway",),
        "Texts that semantic recall needs as vectors; with a replica's id at the end of the subject, for that replica.",
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
        "Reads or changes threads and messages; for operations and fields see "
        "[memory](../memory.md#in-other-languages). The tool of working memory uses `update-note`.",
    ),
    Row(
        "memory.reply", JsonObject, "_INBOX.{request}", None,
        ("memory",), (CLIENT, "tools"),
        "The answer, or an `error`, which is a `Failure`.",
        reply=True,
    ),
    Row(
        "backlog.request", backlog.BacklogRequest, _pattern(subjects.api, "orchestrator", "{tenant}", "backlog"), None,
        (CLIENT,), ("orchestrator",),
        "Asks for the stored chunks of a run, or whether the run is known.",
    ),
    Row(
        "backlog.reply", backlog.BacklogReply, "_INBOX.{request}", None,
        ("orchestrator",), (CLIENT,),
        "Some of the stored chunks, or whether the run is known.",
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
        "Tells every replica to read its files again, and to report what is wrong with them; the body is empty.",
    ),
    Row(
        "models.request", admin.ModelsRequest, subjects.admin("models"), None,
        (OPERATOR,), ("llm_gateway",),
        "Asks the gateways whether they can call certain models.",
    ),
    Row(
        "status.reply", admin.ServiceStatus, "_INBOX.{request}", None,
        SERVICES, (OPERATOR,),
        "What a replica has found, and which configuration it uses.",
        reply=True,
    ),
    Row(
        "tool.request", remote_tools.RemoteToolRequest, "tool.{name}", None,
        ("tools",), (TOOL,),
        "One call of a tool that runs outside Procession.",
    ),
    Row(
        "tool.reply", remote_tools.RemoteToolReply, "_INBOX.{request}", None,
        (TOOL,), ("tools",),
        "The result of the tool, or its error.",
        reply=True,
    ),
)  # fmt: skip
"""Every message, stored ones first."""


def row(name: str) -> Row:
    """The row of a message; raises KeyError when there is none."""
    return {each.name: each for each in CATALOG}[name]
