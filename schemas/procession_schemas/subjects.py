"""The grammar of subjects; no other module spells one out. The tenant is a token of every subject (design.md 3)."""

import functools
import re
from typing import Final

ROOT: Final = "procession.v1"
_LONGEST: Final = 200
_TOKEN: Final = re.compile("[A-Za-z0-9_-]+")
TOKEN_PATTERN: Final = f"^{_TOKEN.pattern}$"
"""Of fields that become tokens."""


class InvalidSubjectError(ValueError):
    """A tenant, agent or run id that cannot be a subject token."""


@functools.lru_cache(maxsize=256)
def token(value: str, what: str, longest: int = _LONGEST) -> str:
    """Returns the value when it can be a token of a subject.

    Raises:
        InvalidSubjectError: It is empty, too long, or has other characters than letters, digits, `_` and `-`.
    """
    if len(value) > longest or not _TOKEN.fullmatch(value):
        raise InvalidSubjectError(f"{what} {value[:60]!r} must be 1 to {longest} letters, digits, '_' or '-'")
    return value


def _made_token(value: str) -> str:
    """A token like the value, which need not be one."""
    return re.sub("[^A-Za-z0-9_-]", "_", value)[:_LONGEST] or "_"


def run(tenant: str, agent: str) -> str:
    """Run requests for one agent; stream RUNS."""
    return f"{ROOT}.run.{token(tenant, 'tenant')}.{token(agent, 'agent')}"


def runs(tenant: str) -> str:
    """Run requests of one tenant, for all agents."""
    return f"{ROOT}.run.{token(tenant, 'tenant')}.*"


def work(service: str, tenant: str, run_id: str) -> str:
    """Work for a service (`orchestrator` gets the results); stream WORK."""
    return f"{ROOT}.work.{service}.{token(tenant, 'tenant')}.{token(run_id, 'run id')}"


def control(tenant: str, run_id: str) -> str:
    """Cancel and resume; stream WORK."""
    return f"{ROOT}.control.{token(tenant, 'tenant')}.{token(run_id, 'run id')}"


def event(tenant: str, run_id: str, type_: str) -> str:
    """Events of a run; stream EVENTS. Types: see `events`."""
    return f"{ROOT}.event.{token(tenant, 'tenant')}.{token(run_id, 'run id')}.{type_}"


def events(type_: str) -> str:
    """Events of one type, of all runs of all tenants."""
    return f"{ROOT}.event.*.*.{type_}"


def chunk(tenant: str, run_id: str) -> str:
    """Chunk batches of a run; stream CHUNKS."""
    return f"{ROOT}.chunk.{token(tenant, 'tenant')}.{token(run_id, 'run id')}"


def violation(tenant: str, processor: str) -> str:
    """Every abort, by processor; stream VIOLATIONS."""
    return f"{ROOT}.violation.{token(tenant, 'tenant')}.{_made_token(processor)}"


def dead(stream: str, service: str, tenant: str, run_id: str) -> str:
    """Messages that could not be handled, perhaps because of what their own subject says; stream DEAD."""
    return ".".join([ROOT, "dead", stream, service, _made_token(tenant), _made_token(run_id)])


def cancelled(tenant: str, run_id: str) -> str:
    """Signal to whoever works on a run that it was cancelled; not stored."""
    return f"{ROOT}.signal.cancel.{tenant}.{run_id}"


def lease(service: str, replica: str | None = None) -> str:
    """Request for a stream lease: of any replica (queue group) or of one."""
    return f"{ROOT}.stream.{service}" + (f".{replica}" if replica else "")


def offer(service: str) -> str:
    """Request to all replicas: which one can take over from a lost replica? The first answer counts."""
    return f"{ROOT}.offer.{service}"


def holder(service: str, replica: str) -> str:
    """Question to one replica: does it still work on a command that another replica was given as well?"""
    return f"{ROOT}.holder.{service}.{replica}"


def desk(service: str, replica: str) -> str:
    """Commands that are handed over to one replica without a message in WORK."""
    return f"{ROOT}.desk.{service}.{replica}"


def undone(service: str, replica: str, tenant: str, run_id: str, owner: str) -> str:
    """Tells a replica that the command which it handed over to that owner will not be done, as a bounce does."""
    return f"{ROOT}.undone.{service}.{replica}.{tenant}.{run_id}.{owner}"


def inbox(replica: str) -> str:
    """Raw chunk batches for one output replica."""
    return f"{ROOT}.inbox.{replica}"


def answers(service: str, sender: str) -> str:
    """Acknowledgements for one sender of raw chunks, a replica of that service; the id of a stream follows."""
    return f"{ROOT}.answers.{service}.{sender}"


def api(service: str, tenant: str, operation: str, replica: str | None = None) -> str:
    """Request and reply, such as the memory service's threads: of any replica (queue group) or of one."""
    return f"{ROOT}.api.{service}.{tenant}.{operation}" + (f".{replica}" if replica else "")


def admin(operation: str) -> str:
    """Request to every replica of every service: `status`, `reload`; to the gateways: `models`."""
    return f"{ROOT}.admin.{operation}"


STREAMS: Final[dict[str, tuple[str, ...]]] = {
    "RUNS": (f"{ROOT}.run.*.*",),
    "WORK": (f"{ROOT}.work.>", f"{ROOT}.control.*.*"),
    "EVENTS": (f"{ROOT}.event.>",),
    "CHUNKS": (f"{ROOT}.chunk.>",),
    "VIOLATIONS": (f"{ROOT}.violation.>",),
    "DEAD": (f"{ROOT}.dead.>",),
}
"""Which stream holds which subjects. Subjects to which clients publish need the exact number of tokens: JetStream's
acknowledgement is a promise, which nobody could keep for another subject."""


def parse(subject: str) -> list[str]:
    """The tokens after the root: `procession.v1.run.acme.demo` gives `["run", "acme", "demo"]`."""
    return subject.split(".")[2:]
