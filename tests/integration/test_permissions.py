"""Who may say what to whom on the bus of a deployment: what the catalog of messages says, and nothing else.

Every user tries the subjects of all messages, of all requests to JetStream, and everybody's inboxes.
"""

import itertools
import re
from collections.abc import Iterator

import pytest
import pytest_asyncio

from procession_schemas import subjects
from procession_schemas.catalog import CATALOG, Row
from procession_schemas.subjects import ROOT, STREAMS
from procession_services.deploy.permissions import OPERATOR, tenant_user
from procession_services.supervisor import SERVICES
from tests.support.guarded import guarded_servers

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

TENANTS = ("acme", "beta")
CONSUMERS: dict[str, tuple[tuple[str, str, str], ...]] = {
    service: (("WORK", service, f"work.{service}.>"),) for service in SERVICES
}
CONSUMERS["orchestrator"] += (
    ("WORK", "orchestrator-control", "control.>"),
    ("RUNS", "orchestrator-runs", "run.>"),
)
"""Stream, durable consumer and filter of each service: what it pulls from."""
DEAD = {service: {f"WORK.{service}"} for service in SERVICES}
DEAD["orchestrator"] |= {"WORK.control", "RUNS.run"}
"""Whose messages a service may bury."""
WRITERS = (
    "DELETE",
    "PURGE",
    "CREATE",
    "UPDATE",
    "MSG.DELETE",
    "SNAPSHOT",
    "RESTORE",
    "LEADER.STEPDOWN",
    "PEER.REMOVE",
)
READERS = ("INFO", "MSG.GET", "NAMES", "LIST")


def filled(row: Row) -> Iterator[tuple[str, dict[str, str]]]:
    """The subjects of a message with every tenant, service and stream in them, and what was filled in."""
    choices = {
        "tenant": TENANTS,
        "service": ("control", "run", *SERVICES) if row.name == "dead.letter" else SERVICES,
        "stream": tuple(STREAMS),
        "operation": ("update-note", "threads"),
    }
    names = re.findall(r"{(\w+)}", row.subject)
    for values in itertools.product(*(choices.get(name, ("x",)) for name in names)):
        given = dict(zip(names, values, strict=True))
        of_owner = ".x.x" if row.name == "work.undone" else ""  # whose name has three tokens
        for more in [".x"] * (row.name in ONE_REPLICA) + [of_owner]:
            yield row.subject.format(**given) + more, given
    if row.name == "lease.frame":
        yield f"{ROOT}.inbox.x.session.attempt", {}  # tells a replica that its lease is over


ONE_REPLICA = ("lease.request", "guard.request")
"""Requests that may go to one replica, whose id is behind their subject."""


def sends(service: str, row: Row, given: dict[str, str]) -> bool:
    """Whether the catalog has a service send that message."""
    if service not in row.producers:
        return False
    match row.name:
        case "work.command" | "work.handed":
            return given["service"] in row.consumers
        case "dead.letter":
            return f"{given['stream']}.{given['service']}" in DEAD[service]
        case "memory.request":
            return given["operation"] == "update-note"
        case "lease.answer":
            return given["service"] in row.consumers
        case _:
            return True


def from_catalog(user: str) -> tuple[set[str], set[str]]:
    """The subjects of all messages, and those that a service may publish."""
    rows = [(row, subject, given) for row in CATALOG if not row.reply for subject, given in filled(row)]
    mine = {subject for row, subject, given in rows if sends(user, row, given)}
    return {subject for _, subject, _ in rows}, mine


def inboxes(service: str) -> tuple[set[str], set[str]]:
    """Everybody's, and those of whom the service answers; clients are behind NATS' own inboxes."""
    replies = [row for row in CATALOG if row.reply and service in row.producers]
    asking = {consumer for row in replies for consumer in row.consumers}
    mine = {f"_INBOX.{name}.x" for name in (asking & {*SERVICES}) | {service}}
    if asking & {"client", "operator"}:
        mine |= {"_INBOX.operator.x"}
    if "client" in asking:
        mine |= {"_R_.x"}
    users = (*SERVICES, OPERATOR, *(tenant_user(tenant) for tenant in TENANTS), "other")
    return {f"_INBOX.{user}.x" for user in users} | {"_R_.x", "_INBOX.x"}, mine


def jetstream(service: str) -> tuple[set[str], set[str]]:
    """Requests to JetStream of every kind, and those that a service needs."""
    api, every = "$JS.API", [consumer for each in CONSUMERS.values() for consumer in each]
    all_ = {f"{api}.STREAM.{verb}.{stream}" for verb in (*WRITERS, *READERS) for stream in (*STREAMS, "X")}
    all_ |= {f"{api}.STREAM.{verb}" for verb in ("NAMES", "LIST", "TEMPLATE.CREATE.X")}
    all_ |= {
        f"{api}.DIRECT.GET.{stream}{more}" for stream in STREAMS for more in ("", f".{ROOT}.event.acme.x.y")
    }
    all_ |= {f"{api}.CONSUMER.{verb}.{stream}" for verb in ("CREATE", "NAMES", "LIST") for stream in STREAMS}
    all_ |= {f"{api}.{more}" for more in ("INFO", "META.LEADER.STEPDOWN", "SERVER.REMOVE", "ACCOUNT.PURGE.X",
                                          "ACCOUNT.STREAM.MOVE.X.WORK")}  # fmt: skip
    filters = sorted({filter_ for _, _, filter_ in every})
    for stream, name, _ in [*every, ("EVENTS", "spy", ""), ("CHUNKS", "spy", "")]:
        verbs = (
            "CREATE",
            "DURABLE.CREATE",
            "DELETE",
            "INFO",
            "MSG.NEXT",
            "PAUSE",
            "RESET",
            "UNPIN",
            "LEADER.STEPDOWN",
        )
        all_ |= {f"{api}.CONSUMER.{verb}.{stream}.{name}" for verb in verbs}
        all_ |= {f"{api}.CONSUMER.CREATE.{stream}.{name}.{ROOT}.{filter_}" for filter_ in filters}
        all_ |= {f"$JS.ACK.{stream}.{name}.1.1.1.1.1", f"$JS.FC.{stream}.{name}.x"}
    mine = {f"{api}.STREAM.INFO.{stream}" for stream in STREAMS} | {f"{api}.STREAM.MSG.GET.CHUNKS"}
    if service == "orchestrator":
        mine |= {f"{api}.STREAM.{verb}.{stream}" for verb in ("CREATE", "UPDATE") for stream in STREAMS}
        mine |= {f"{api}.STREAM.MSG.GET.{stream}" for stream in ("RUNS", "WORK", "EVENTS")}
    for stream, name, filter_ in CONSUMERS[service]:
        mine |= {f"{api}.CONSUMER.{verb}.{stream}.{name}" for verb in ("INFO", "MSG.NEXT")}
        mine |= {
            f"{api}.CONSUMER.CREATE.{stream}.{name}.{ROOT}.{filter_}",
            f"$JS.ACK.{stream}.{name}.1.1.1.1.1",
        }
    return {each.replace(">", "x.y") for each in all_}, {each.replace(">", "x.y") for each in mine}


NOBODYS = {f"{ROOT}.event.acme.x.other", f"{ROOT}.work.other.acme.x", f"{ROOT}.other.x", ROOT, "other", "$SYS.REQ.x",
           "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING.CONNZ", "$KV.x.y", "$O.x.C.y", "$SRV.PING"}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(tmp_path_factory):
    """Servers without services, so that what is tried here meets nobody."""
    async with guarded_servers(tmp_path_factory.mktemp("guarded")) as guarded:
        yield guarded


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_publishes_what_the_catalog_says_and_nothing_else(guarded, service):
    told = [from_catalog(service), inboxes(service), jetstream(service)]
    everything = sorted(NOBODYS.union(*(all_ for all_, _ in told)))
    expected = set().union(*(mine for _, mine in told))
    user = await guarded.nats("nats", service)
    allowed = await user.publishes(everything)
    await user.client.close()
    assert (sorted(allowed - expected), sorted(expected - allowed)) == ([], [])
    assert len(everything) - len(allowed) > 400


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_listens_to_what_the_catalog_says_and_to_nothing_else(guarded, service):
    everything = {f"_INBOX.{user}.>" for user in (*SERVICES, OPERATOR, tenant_user("acme"))}
    everything |= {"_INBOX.>", "_R_.>", f"{ROOT}.>", ">", "*", f"{ROOT}.run.>", f"{ROOT}.event.>", f"{ROOT}.work.>",
                   f"{ROOT}.chunk.*.*", f"{ROOT}.api.>", f"{ROOT}.answers.>", "$JS.>", "$SYS.>"}  # fmt: skip
    expected = {f"_INBOX.{service}.>"}
    for row in CATALOG:
        for subject, given in [] if row.reply else filled(row):
            everything.add(subject)
            owned = given.get("service", service) == service
            if row.stream is None and service in row.consumers and owned:
                expected.add(subject)
    user = await guarded.nats("nats", service)
    allowed = await user.subscribes(sorted(everything))
    await user.client.close()
    assert (sorted(allowed - expected), sorted(expected - allowed)) == ([], [])


@pytest.mark.parametrize("tenant", TENANTS)
async def test_a_tenant_publishes_only_its_own_requests(guarded, tenant):
    everything, _ = from_catalog("")
    everything |= NOBODYS | inboxes("tools")[0] | jetstream("orchestrator")[0]
    direct = "$JS.API.DIRECT.GET.EVENTS"
    everything |= {f"{direct}.{subjects.event(each, 'x', 'run.finished')}" for each in TENANTS}
    rows = [row for row in CATALOG if "client" in row.producers]
    expected = {subject for row in rows for subject, given in filled(row) if given["tenant"] == tenant}
    expected |= {each for each in everything if each.startswith(f"{direct}.{ROOT}.event.{tenant}.")}
    user = await guarded.nats("clients", tenant)
    allowed = await user.publishes(sorted(everything))
    await user.client.close()
    assert (sorted(allowed - expected), sorted(expected - allowed)) == ([], [])


@pytest.mark.parametrize("tenant", TENANTS)
async def test_a_tenant_listens_only_to_its_own_runs(guarded, tenant):
    everything = {f"{ROOT}.>", ">", f"{ROOT}.chunk.*.*", f"{ROOT}.event.>", f"{ROOT}.event.*.run-1.>", "_INBOX.>",
                  "_R_.>", "$JS.>", "$SYS.>"}  # fmt: skip
    everything |= {f"_INBOX.{user}.>" for user in (*SERVICES, OPERATOR, *map(tenant_user, TENANTS))}
    expected = {f"_INBOX.{tenant_user(tenant)}.>"}
    for row in CATALOG:
        for subject, given in [] if row.reply else filled(row):
            everything.add(subject)
            if "client" in row.consumers and row.stream in ("EVENTS", "CHUNKS") and given["tenant"] == tenant:
                expected.add(subject)
    user = await guarded.nats("clients", tenant)
    allowed = await user.subscribes(sorted(everything))
    await user.client.close()
    assert (sorted(allowed - expected), sorted(expected - allowed)) == ([], [])
