"""Tells everything that is wrong with a deployment: `procession check --deploy`.

NATS is looked at from here, and every replica of every service is asked what it sees from its place: Redis, Chroma,
keys of providers, its files. So it also works where only NATS can be reached, as from the host of containers.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from procession.addresses import address
from procession_schemas import subjects
from procession_schemas.admin import ModelsRequest, ServiceStatus
from procession_services.bus.inspect import nats_problems
from procession_services.bus.operator import NoAccessError, Operator, RejectedError
from procession_services.deploy.files import Deployment
from procession_services.deploy.permissions import (
    OPERATOR,
    SERVICE_PERMISSIONS,
    Permissions,
    tenant_user,
)
from procession_services.runtime.access import Access
from procession_services.runtime.problems import Problem
from procession_services.runtime.redis_check import knows, redis_problems_at
from procession_services.runtime.settings import Settings, SettingsError
from procession_services.runtime.words import number_of
from procession_services.supervisor import SERVICES

__all__ = ["Findings", "as_operator", "ask_services", "check_deployment", "models_that_fail", "told_by"]

_STATUS_SECONDS: Final = 12.0
_CALL_SECONDS: Final = 60.0
_MEND_USERS: Final = "run `procession init`, then `docker compose kill -s HUP nats`"


@dataclass(slots=True)
class Findings:
    """What is wrong, and in `fine` a line for each thing that is not."""

    problems: list[Problem] = field(default_factory=list)
    fine: list[str] = field(default_factory=list)

    def add(self, what: str, problems: Iterable[Problem]) -> None:
        """Takes the problems of something; without one it is fine."""
        found = list(problems)
        self.problems += [each for each in found if each not in self.problems]
        if not any(not each.warning for each in found):
            self.fine.append(what)


def as_operator(settings: Settings, secrets: Path | None) -> Settings:
    """The settings with the operator's users, whose passwords are in a directory of `procession init`."""
    if secrets is None:
        return settings
    users: dict[str, Any] = {}
    for server in ("nats", "redis"):
        users |= {f"{server}_user": OPERATOR, f"{server}_password_file": secrets / server / OPERATOR}
    return settings.model_copy(update=users)


async def check_deployment(
    settings: Settings, *, secrets: Path | None = None, call_models: bool = False
) -> Findings:
    """Connects to everything.

    Args:
        settings: Where the servers are.
        secrets: The directory of `procession init`, where there is one: its files are checked, and the operator's
            users taken from it.
        call_models: Also has the gateway call every configured model.
    """
    found = Findings()
    if secrets is not None:
        found.add(f"secrets in {secrets}", _secrets(Deployment(secrets)))
    settings = as_operator(settings, secrets)
    try:
        access = Access.of(settings)
    except SettingsError as error:
        found.problems.append(Problem("", "", str(error)))
        return found
    statuses = await _nats(settings, access, secrets, found, call_models=call_models)
    if "redis_url" in settings.model_fields_set or not statuses:
        await _redis(settings, access, secrets, found)
    return found


async def ask_services(operator: Operator, operation: str) -> list[ServiceStatus]:
    """The status of every replica that answers, after the operation `status` or `reload`."""
    answers = await operator.ask(
        subjects.admin(operation),
        b"",
        enough=lambda told: {status.service for status in _statuses(told)} >= set(SERVICES),
        seconds=_STATUS_SECONDS,
    )
    return sorted(_statuses(answers), key=lambda status: (SERVICES.index(status.service), status.replica))


async def models_that_fail(nats_url: str, access: Access) -> list[Problem]:
    """What a gateway cannot call of the configured agents' models.

    Raises:
        NoAccessError: We may not connect, or the server has gone.
    """
    operator = await Operator.connect(nats_url, access)
    found = Findings()
    try:
        statuses = await ask_services(operator, "status")
        if any(status.service == "llm_gateway" for status in statuses):
            await _models(operator, statuses, found, call=False)
    finally:
        await operator.close()
    return found.problems


def told_by(statuses: list[ServiceStatus]) -> list[Problem]:
    """What replicas have found, each thing once, with the services that tell it; and where they do not agree."""
    tellers: dict[Problem, set[str]] = {}
    for status in statuses:
        for each in status.findings:
            problem = Problem(each.where, each.path, each.message, warning=each.warning)
            tellers.setdefault(problem, set()).add(status.service)
    everybody = {status.service for status in statuses}
    found = []
    for problem, services in tellers.items():
        who = "every service" if services == everybody and len(services) > 1 else ", ".join(sorted(services))
        told = f"{problem.message} (reported by {who})"
        found.append(Problem(problem.where, problem.path, told, warning=problem.warning))
    for name in sorted({name for status in statuses for name in status.configuration}):
        digests = {status.configuration[name] for status in statuses if name in status.configuration}
        if len(digests) > 1:
            told = "differs between replicas: install the same file everywhere, then run `procession reload`"
            found.append(Problem(name, "", told))
    return [*found, *_parted(statuses)]


def _parted(statuses: list[ServiceStatus]) -> list[Problem]:
    """Whether somebody has another Redis than the others: whatever one begins there, the others know nothing of."""
    by_redis: dict[str, list[str]] = {}
    for status in statuses:
        if status.redis:
            by_redis.setdefault(status.redis, []).append(f"{status.service} {status.replica}")
    if len(by_redis) <= 1:
        return []
    each = "; ".join(f"{redis}: {', '.join(replicas)}" for redis, replicas in sorted(by_redis.items()))
    told = (
        f"differs between replicas, so runs get lost between them ({each}): set the same address everywhere"
    )
    return [Problem("PROCESSION_REDIS_URL", "", told)]


def _statuses(answers: list[bytes]) -> list[ServiceStatus]:
    found = []
    for answer in answers:
        try:
            found.append(ServiceStatus.model_validate_json(answer))
        except ValidationError:
            continue  # of a version that we do not know
    return [status for status in found if status.service in SERVICES]


async def _nats(
    settings: Settings, access: Access, secrets: Path | None, found: Findings, *, call_models: bool
) -> list[ServiceStatus]:
    """Looks at NATS and asks the services; gives what they say."""
    try:
        operator = await Operator.connect(settings.nats_url, access)
    except NoAccessError as error:
        found.problems.append(Problem("PROCESSION_NATS_URL", "", str(error)))
        return []
    try:
        user = await operator.user()
        if access.nats_user and (user is None or user.get("permissions")):
            told = f"{access.nats_user} may not run these checks: name the operator's user, or give --secrets secrets"
            found.problems.append(Problem("PROCESSION_NATS_USER", "", told))
            return []
        where = f"NATS {operator.server.get('version')} at {address(settings.nats_url)}"
        found.add(f"{where}, JetStream and streams", await nats_problems(operator, settings))
        if access.nats_user:
            found.problems += await _nobody(settings, access)
        if secrets is not None:
            found.add("users of NATS", await _users(settings, access, Deployment(secrets)))
        statuses = await ask_services(operator, "status")
        found.add(_summary(statuses), [*_missing(statuses), *told_by(statuses)])
        if any(status.service == "llm_gateway" for status in statuses):
            await _models(operator, statuses, found, call=call_models)
    finally:
        await operator.close()
    return statuses


def _missing(statuses: list[ServiceStatus]) -> list[Problem]:
    there, versions = {status.service for status in statuses}, {status.version for status in statuses}
    found = [
        Problem("services", service, "no replica answers: start the service, or see its log")
        for service in SERVICES
        if service not in there
    ]
    if len(versions) > 1:
        told = f"run different versions: {', '.join(sorted(versions))}"
        found.append(Problem("services", "", told, warning=True))
    return found


def _summary(statuses: list[ServiceStatus]) -> str:
    versions = ", ".join(sorted({status.version for status in statuses}))
    services = number_of(len({status.service for status in statuses}), "service")
    return f"{services}, {number_of(len(statuses), 'replica')}, version {versions}"


async def _models(operator: Operator, statuses: list[ServiceStatus], found: Findings, *, call: bool) -> None:
    """Has a gateway say whether it could call the models of the configured agents."""
    uses = {(use.model, use.api_base): use for status in statuses for use in status.models}
    if not uses:
        return
    body = ModelsRequest(models=list(uses.values()), call=call).to_json()
    seconds = _CALL_SECONDS if call else _STATUS_SECONDS
    answers = await operator.ask(subjects.admin("models"), body, enough=bool, seconds=seconds)
    told = told_by(_statuses(answers))
    if not answers:
        told = [Problem("models", "", f"no gateway answered within {seconds:g} seconds: see its log")]
    found.add(number_of(len(uses), "model") + (", called" if call else ", with keys"), told)


async def _users(settings: Settings, access: Access, deployment: Deployment) -> list[Problem]:
    """Whether every user gets in with its password, and may do what this version needs."""
    users = [("nats", service, service) for service in SERVICES]
    users += [("clients", tenant, tenant_user(tenant)) for tenant in deployment.tenants()]
    checks = [
        _user(
            settings,
            Access(name, deployment.password(kind, file), authority=access.authority),
            f"{kind}/{file}",
        )
        for kind, file, name in users
        if (deployment.directory / kind / file).exists()
    ]
    return [problem for told in await asyncio.gather(*checks, _nobody(settings, access)) for problem in told]


async def _user(settings: Settings, access: Access, file: str) -> list[Problem]:
    name = access.nats_user or ""
    try:
        connection = await Operator.connect(settings.nats_url, access)
    except RejectedError:
        told = f"NATS rejects this password for {name}: {_MEND_USERS}"
        return [Problem(file, "", told)]
    except NoAccessError as error:
        return [Problem(file, "", f"this password could not be tried: {error}")]
    try:
        wanted = SERVICE_PERMISSIONS.get(name)
        if wanted is None or _may(await connection.user(), wanted):
            return []  # tenants may not ask about themselves
    finally:
        await connection.close()
    told = f"the permissions of {name} do not match this version: {_MEND_USERS}"
    return [Problem("NATS", "", told)]


def _may(user: dict[str, Any] | None, wanted: Permissions) -> bool:
    """Whether a server lets a user do just that."""
    told = (user or {}).get("permissions") or {}
    publish, subscribe = ({*((told.get(kind) or {}).get("allow") or ())} for kind in ("publish", "subscribe"))
    return (publish, subscribe) == ({*wanted.publish}, {*wanted.subscribe})


async def _nobody(settings: Settings, access: Access) -> list[Problem]:
    try:
        stranger = await Operator.connect(settings.nats_url, Access(authority=access.authority))
    except RejectedError:
        return []
    except NoAccessError as error:
        return [Problem("NATS", "", f"whether it accepts connections without a password is unknown: {error}")]
    await stranger.close()
    return [Problem("NATS", "", "accepts connections without a password: include accounts.conf in nats.conf")]


async def _redis(settings: Settings, access: Access, secrets: Path | None, found: Findings) -> None:
    where = f"Redis at {address(settings.redis_url)}"
    found.add(where, await redis_problems_at(settings.redis_url, access))
    stranger = Access(authority=access.authority)
    if access.redis_user and await knows(settings.redis_url, stranger):
        told = "accepts connections without a password: set `aclfile` in redis.conf"
        found.problems.append(Problem("Redis", "", told))
    if secrets is None:
        return
    deployment = Deployment(secrets)
    for service in SERVICES:
        if not (secrets / "redis" / service).exists():
            continue
        password = deployment.password("redis", service)
        own = Access(redis_user=service, redis_password=password, authority=access.authority)
        if await knows(settings.redis_url, own) is False:
            told = f"Redis rejects this password for {service}: run `procession init`, then restart Redis"
            found.problems.append(Problem(f"redis/{service}", "", told))


def _secrets(deployment: Deployment) -> list[Problem]:
    """Which files of a deployment are missing, empty, open to others, or of another version."""
    return [Problem(str(file), "", told) for file, told in deployment.wrong()]
