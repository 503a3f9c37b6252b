"""Who may do what: the subjects and the Redis keys of every service, and no others.

Everything that a service does on the bus is listed here by hand; tests/integration/test_permissions.py runs the system
under these permissions and tries what they do not name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from procession_schemas import subjects
from procession_schemas.subjects import ROOT, STREAMS
from procession_services.supervisor import SERVICES

__all__ = [
    "OPERATOR", "SERVICE_PERMISSIONS", "USER_INFO", "Permissions", "redis_rules", "tenant_permissions", "tenant_user",
]  # fmt: skip

_STREAM_HOLDERS: Final = tuple(service for service in SERVICES if service != "output_processors")
"""Services that send chunks of their own through the output processors."""
_JUDGES: Final = ("input_processors", "output_processors", "error_recovery", "memory")
"""Services whose processors may abort."""
_MODEL_USERS: Final = (*_JUDGES, "tools")
"""Services whose processors and tools may ask a model."""
OPERATOR: Final = "operator"
"""The NATS and Redis user of people who run the deployment: may do everything."""
_COMMANDED: Final = tuple(service for service in SERVICES if service != "orchestrator")


@dataclass(frozen=True, slots=True)
class Permissions:
    """The subjects that a NATS user may publish to and subscribe to."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def _publishes(service: str) -> Iterator[str]:
    # Whoever has done a command sends the next one; results are for the orchestrator.
    yield from (
        f"{ROOT}.work.{to}.*.*" for to in SERVICES if (service, to) != ("orchestrator", "orchestrator")
    )
    yield from (f"{ROOT}.event.*.*.run.finished", f"{ROOT}.event.*.*.run.suspended")
    yield from (f"{ROOT}.chunk.*.*", f"{ROOT}.signal.cancel.*.*")
    yield f"{ROOT}.dead.WORK.{service}.*.*"
    yield from _consumer("WORK", service, f"{ROOT}.work.{service}.>")
    yield from (f"$JS.API.STREAM.INFO.{stream}" for stream in STREAMS)
    yield "$JS.API.STREAM.MSG.GET.CHUNKS"
    yield from (f"{ROOT}.holder.{other}.*" for other in SERVICES)
    yield from (f"{ROOT}.desk.{other}.*" for other in _COMMANDED)
    yield from (f"_INBOX.{asker}.>" for asker in SERVICES)  # itself, too: whether its connection is alive
    yield f"_INBOX.{OPERATOR}.>"  # tells how it is doing
    yield USER_INFO
    if service in _COMMANDED:
        yield from (f"{ROOT}.undone.{other}.*.*.*.*.*.*" for other in SERVICES)
    if service in _STREAM_HOLDERS:
        yield from (f"{ROOT}.stream.output_processors", f"{ROOT}.stream.output_processors.*")
        yield from (f"{ROOT}.offer.output_processors", f"{ROOT}.inbox.*", f"{ROOT}.inbox.*.*.*")
    if service in _JUDGES:
        yield f"{ROOT}.violation.*.*"
    if service in _MODEL_USERS:
        yield from (f"{ROOT}.api.llm_gateway.*.generate", f"{ROOT}.api.llm_gateway.*.generate.*")
        yield f"{ROOT}.offer.llm_gateway"
    yield from _EXTRA_PUBLISHES.get(service, ())


USER_INFO: Final = "$SYS.REQ.USER.INFO"
"""Tells a user's own permissions; `procession check --deploy` compares them with these."""


def _consumer(stream: str, name: str, subject: str) -> Iterator[str]:
    """What it takes to pull from a stream: only messages of that subject."""
    yield f"$JS.API.CONSUMER.CREATE.{stream}.{name}.{subject}"
    yield f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"
    yield f"$JS.API.CONSUMER.INFO.{stream}.{name}"  # for its lag, where metrics are served
    yield f"$JS.ACK.{stream}.{name}.>"


_TO_CLIENTS: Final = ("_R_.>", f"_INBOX.{OPERATOR}.>")
"""Where answers to clients go: through NATS' own inboxes into their accounts, and to people in ours."""

_EXTRA_PUBLISHES: Final[dict[str, tuple[str, ...]]] = {
    "orchestrator": (
        f"{ROOT}.event.*.*.run.accepted",
        f"{ROOT}.event.*.*.run.resumed",
        f"{ROOT}.event.*.*.request.rejected",
        f"{ROOT}.dead.WORK.control.*.*",
        f"{ROOT}.dead.RUNS.run.*.*",
        *_consumer("WORK", "orchestrator-control", f"{ROOT}.control.>"),
        *_consumer("RUNS", "orchestrator-runs", f"{ROOT}.run.>"),
        *(f"$JS.API.STREAM.{verb}.{stream}" for verb in ("CREATE", "UPDATE") for stream in STREAMS),
        *(f"$JS.API.STREAM.MSG.GET.{stream}" for stream in ("RUNS", "WORK", "EVENTS")),
        *_TO_CLIENTS,
    ),
    "llm_gateway": (
        f"{ROOT}.api.input_processors.*.guard",
        f"{ROOT}.api.input_processors.*.guard.*",
        f"{ROOT}.offer.input_processors",
    ),
    "output_processors": tuple(f"{ROOT}.answers.{holder}.*.*" for holder in _STREAM_HOLDERS),
    "memory": (
        f"{ROOT}.api.llm_gateway.*.embed",
        f"{ROOT}.api.llm_gateway.*.embed.*",
        *_TO_CLIENTS,
    ),
    "tools": (f"{ROOT}.api.memory.*.update-note", "tool.>"),
}


def _subscribes(service: str) -> Iterator[str]:
    yield f"_INBOX.{service}.>"
    yield from (subjects.admin("status"), subjects.admin("reload"))
    yield f"{ROOT}.holder.{service}.*"
    yield f"{ROOT}.undone.{service}.*.*.*.*.*.*"
    if service in _COMMANDED:
        yield f"{ROOT}.signal.cancel.*.*"
        yield f"{ROOT}.desk.{service}.*"
    if service in _STREAM_HOLDERS:
        yield f"{ROOT}.answers.{service}.*.*"
    yield from _EXTRA_SUBSCRIBES.get(service, ())


_EXTRA_SUBSCRIBES: Final[dict[str, tuple[str, ...]]] = {
    "orchestrator": (f"{ROOT}.api.orchestrator.*.backlog",),
    "input_processors": (
        f"{ROOT}.api.input_processors.*.guard",
        f"{ROOT}.api.input_processors.*.guard.*",
        f"{ROOT}.offer.input_processors",
    ),
    "llm_gateway": (
        f"{ROOT}.api.llm_gateway.*.generate",
        f"{ROOT}.api.llm_gateway.*.generate.*",
        f"{ROOT}.offer.llm_gateway",
        f"{ROOT}.api.llm_gateway.*.embed",
        f"{ROOT}.api.llm_gateway.*.embed.*",
        subjects.admin("models"),
    ),
    "output_processors": (
        f"{ROOT}.stream.output_processors",
        f"{ROOT}.stream.output_processors.*",
        f"{ROOT}.offer.output_processors",
        f"{ROOT}.inbox.*",
        f"{ROOT}.inbox.*.*.*",
    ),
    "memory": (f"{ROOT}.api.memory.*.*",),
}

SERVICE_PERMISSIONS: Final = {
    service: Permissions(tuple(_publishes(service)), tuple(_subscribes(service))) for service in SERVICES
}
"""By service, in the account of the services."""


def tenant_user(tenant: str) -> str:
    """The NATS user of a tenant's clients; no service and no other tenant has that name."""
    return f"client-{tenant}"


def tenant_permissions(tenant: str) -> Permissions:
    """What a tenant's clients may do in the tenant's own account."""
    services = (
        f"{ROOT}.run.{tenant}.*",
        f"{ROOT}.control.{tenant}.*",
        f"{ROOT}.api.memory.{tenant}.*",
        f"{ROOT}.api.orchestrator.{tenant}.backlog",
        f"$JS.API.DIRECT.GET.EVENTS.{ROOT}.event.{tenant}.>",
    )
    return Permissions(
        services, (f"{ROOT}.event.{tenant}.>", f"{ROOT}.chunk.{tenant}.*", f"_INBOX.{tenant_user(tenant)}.>")
    )


def redis_rules(service: str) -> str:
    """A service's part of a line of Redis' ACL file: keys and commands, without its password."""
    keys = [
        "procession:*:run:*",
        "procession:*:line:*",
        "procession:deadlines",
        "procession:admission:*",
        "procession:*:kv:*",
        "procession:*:usage:*",
        "procession:*:once:*",
    ]
    if service == "memory":
        keys += ["procession:*:memory:*", "procession:memory:*"]
    commands = "-@all +@read +@write +@transaction +@scripting +@connection -@dangerous -client +info"
    scripts = "-script +script|load +script|exists +time"
    return " ".join([*(f"~{key}" for key in keys), "resetchannels", commands, scripts])
