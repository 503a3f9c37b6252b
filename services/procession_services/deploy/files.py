"""The files of a deployment: one password for each user, and what the servers read of them."""

import hashlib
import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from procession_schemas import subjects
from procession_schemas.subjects import ROOT
from procession_services.deploy.permissions import (
    OPERATOR,
    SERVICE_PERMISSIONS,
    Permissions,
    redis_rules,
    tenant_permissions,
    tenant_user,
)
from procession_services.runtime.secrets import DEMO_KEY
from procession_services.supervisor import SERVICES

__all__ = ["OPERATOR", "Deployment", "write_environment"]

_NOTE: Final = "# Written by `procession init` from the passwords beside it; run it again after a change.\n"
_BYTES: Final = 32
_SHORTEST: Final = 16
"""Characters of a password; those of `procession init` have 43."""
_ENV: Final = """\
# For compose.yaml; written by `procession init`, yours to change.
PROCESSION_SECRETS={secrets}
# Where clients on this machine reach NATS.
NATS_PORT=4222
"""
_PROVIDERS: Final = f"""\
# The keys of model providers, one VARIABLE=value a line, as LiteLLM names them; only the gateway gets them.
# The demo model takes any.
OPENAI_API_KEY={DEMO_KEY}
"""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A directory with the credentials of a deployment.

    `nats/<user>`, `redis/<user>` and `clients/<tenant>` hold passwords, `processors/` what processors ask for;
    `nats/accounts.conf`, `nats/routes.conf` and `redis/users.acl` are what the servers read, and the keys of providers
    are the operator's (`providers.env`). Files may be read by everybody and the directory by its owner alone:
    containers get single files mounted, whoever they run as.
    """

    directory: Path

    def tenants(self) -> list[str]:
        """The tenants that have a password."""
        return sorted(file.name for file in (self.directory / "clients").glob("*"))

    def write(self, tenants: Iterable[str] = (), *, force: bool = False) -> list[Path]:
        """Writes what is missing; gives the passwords that are new.

        Args:
            tenants: Tenants who get a password, besides those who have one.
            force: Replace every password; the key of masked data stays.

        Raises:
            InvalidSubjectError: A tenant cannot be a token of a subject.
        """
        names = sorted({*self.tenants(), *(subjects.token(tenant, "tenant") for tenant in tenants)})
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        self._put(self.directory / ".gitignore", "*\n")
        key = self._masking_key  # with another one, what was masked could never be restored
        new = [
            file for file in self._passwords(names) if (force and file != key) or not _says_something(file)
        ]
        for file in new:
            self._put(file, secrets.token_urlsafe(_BYTES))
        if not _says_something(keys := self.directory / "providers.env"):
            self._put(keys, _PROVIDERS)
        for file, text in self._made(names).items():
            self._put(file, text)
        return new

    def wrong(self) -> Iterator[tuple[Path, str]]:
        """What is wrong with the files, each with how to mend it."""
        if not self.directory.is_dir():
            yield self.directory, "is missing: `procession init` writes it"
            return
        if self.directory.stat().st_mode & 0o077:
            yield self.directory, "is accessible to others: run `chmod 700` on it"
        names, seen = self.tenants(), dict[bytes, Path]()
        for file in self._passwords(names):
            held = file.read_bytes().strip() if file.exists() else None  # a key of one's own may be no text
            if held is None:
                yield file, "is missing: `procession init` writes it"
            elif len(held) < _SHORTEST:
                yield (
                    file,
                    f"has fewer than {_SHORTEST} characters: delete it, and `procession init` creates a new one",
                )
            elif held in seen:
                yield file, f"is the same as {seen[held]}: delete it, and `procession init` creates a new one"
            seen.setdefault(held or b"", file)
        if not all(file.exists() for file in self._passwords(names)):
            return
        for file, text in self._made(names).items():
            if not file.exists() or file.read_text(encoding="utf-8") != text:
                yield file, "does not match these passwords and this version: `procession init` rewrites it"

    def _passwords(self, tenants: Iterable[str]) -> list[Path]:
        """The files that hold one secret each."""
        return [
            *(self.directory / "nats" / user for user in (*SERVICES, OPERATOR, "route", "system")),
            *(self.directory / "redis" / user for user in (*SERVICES, OPERATOR)),
            *(self.directory / "clients" / tenant for tenant in tenants),
            self._masking_key,
        ]

    @property
    def _masking_key(self) -> Path:
        return self.directory / "processors" / "masking-key"

    def _made(self, tenants: Iterable[str]) -> dict[Path, str]:
        """What the servers read, made from the passwords."""
        return {
            self.directory / "nats" / "accounts.conf": self._accounts(tenants),
            self.directory / "nats" / "routes.conf": self._routes(),
            self.directory / "redis" / "users.acl": "".join(self._redis_users()),
        }

    def _put(self, file: Path, text: str) -> None:
        """Replaces a file as a whole; one that a container has mounted is written in place."""
        file.parent.mkdir(exist_ok=True)
        if not file.exists():
            _write_new(file, text)
        elif file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
        file.chmod(0o644)

    def password(self, kind: str, user: str) -> str:
        """The password of a user of `nats` or `redis`, or of a tenant (`clients`)."""
        return (self.directory / kind / user).read_text(encoding="utf-8").strip()

    def _accounts(self, tenants: Iterable[str]) -> str:
        services = [
            *(_user(name, self.password("nats", name), SERVICE_PERMISSIONS[name]) for name in SERVICES),
            _user(OPERATOR, self.password("nats", OPERATOR), None),
        ]
        exports = [{kind: subject} for kind, subject in _EXPORTS]
        accounts = [
            _account("PROCESSION", services, [("jetstream", "enabled"), ("exports", json.dumps(exports))]),
            _account("SYSTEM", [_user("system", self.password("nats", "system"), None)], []),
            *(self._tenant(tenant) for tenant in tenants),
        ]
        body = "".join(accounts)
        return f"{_NOTE}accounts {{\n{body}}}\nsystem_account: SYSTEM\n"

    def _tenant(self, tenant: str) -> str:
        """An account of its own: its inboxes are its own, and answers to its requests reach nobody else."""
        permissions = tenant_permissions(tenant)
        imports = [
            *({"service": {"account": "PROCESSION", "subject": each}} for each in permissions.publish),
            *(
                {"stream": {"account": "PROCESSION", "subject": each}}
                for each in permissions.subscribe
                if each.startswith(ROOT)
            ),
        ]
        user = _user(tenant_user(tenant), self.password("clients", tenant), permissions)
        return _account(f"TENANT_{tenant}", [user], [("imports", json.dumps(imports))])

    def _routes(self) -> str:
        """For the servers of a cluster, which let each other in with it."""
        user, password = "route", self.password("nats", "route")
        authorization = f"{{ user: {user}, password: {json.dumps(password)} }}"
        routes = json.dumps([f"nats://{user}:{password}@nats-{number}:6222" for number in (1, 2, 3)])
        return f"{_NOTE}name: procession\nlisten: 0.0.0.0:6222\nauthorization: {authorization}\nroutes: {routes}\n"

    def _redis_users(self) -> Iterator[str]:
        # Off: nobody gets in as it. But Redis reads its own file as this user, and would drop what it may not do.
        yield "user default off resetpass ~* &* +@all\n"
        for name in SERVICES:
            yield f"user {name} on {self._hashed(name)} {redis_rules(name)}\n"
        yield f"user {OPERATOR} on {self._hashed(OPERATOR)} ~* &* +@all\n"

    def _hashed(self, name: str) -> str:
        return "#" + hashlib.sha256(self.password("redis", name).encode()).hexdigest()


_EXPORTS: Final = (
    ("service", f"{ROOT}.run.>"),
    ("service", f"{ROOT}.control.>"),
    ("service", f"{ROOT}.api.memory.>"),
    ("service", f"{ROOT}.api.orchestrator.>"),
    ("service", f"$JS.API.DIRECT.GET.EVENTS.{ROOT}.event.>"),
    ("stream", f"{ROOT}.event.>"),
    ("stream", f"{ROOT}.chunk.>"),
)


def _says_something(file: Path) -> bool:
    """Whether a file is there, and more than what a full disk has left of it: anybody knows an empty password."""
    return file.exists() and bool(file.read_bytes().strip())


def _write_new(file: Path, text: str) -> None:
    """Writes a file that is there as a whole, or not at all; an error names it."""
    begun = file.with_name(f".{file.name}.new")
    try:
        begun.write_text(text, encoding="utf-8")
        begun.replace(file)
    except OSError as error:
        begun.unlink(missing_ok=True)
        raise OSError(error.errno, f"cannot write {file}: {error.strerror}") from error


def _user(name: str, password: str, permissions: Permissions | None) -> str:
    user: dict[str, object] = {"user": name, "password": password}
    if permissions:
        user["permissions"] = {
            "publish": {"allow": list(permissions.publish)},
            "subscribe": {"allow": list(permissions.subscribe)},
        }
    return json.dumps(user)


def _account(name: str, users: list[str], more: list[tuple[str, str]]) -> str:
    lines = [*(f"    {key}: {value}\n" for key, value in more)]
    listed = "".join(f"      {user}\n" for user in users)
    return f"  {json.dumps(name)}: {{\n{''.join(lines)}    users: [\n{listed}    ]\n  }}\n"


def write_environment(file: Path, secrets_directory: Path) -> bool:
    """Writes compose's `.env`, unless there is one; tells whether it did."""
    if file.exists():
        return False
    _write_new(file, _ENV.format(secrets=secrets_directory))
    return True
