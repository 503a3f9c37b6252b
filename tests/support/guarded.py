"""The servers of a deployment that let nobody in without a password, and what their users are refused."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nats

from procession.client import Procession
from procession_services.deploy.files import Deployment
from procession_services.deploy.permissions import tenant_user
from procession_services.runtime.settings import Settings
from tests.support.deployed import nats_server, redis_server

__all__ = ["Guarded", "Tried", "guarded_servers"]

_VIOLATION: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"')
"""As nats-py tells it: in lower case, the subject too."""
_LAST: Final = "nobody.may.publish.this"


@dataclass
class Guarded:
    """Servers that let nobody in without a password."""

    deployment: Deployment
    nats_url: str
    redis_url: str
    redis: Any

    def settings(self, service: str, **more: Any) -> Settings:
        secrets = self.deployment.directory
        return Settings(
            nats_url=self.nats_url, redis_url=self.redis_url, replica=f"{service}-1",
            nats_user=service, nats_password_file=secrets / "nats" / service,
            redis_user=service, redis_password_file=secrets / "redis" / service,
            create_streams=service == "orchestrator", **more,
        )  # fmt: skip

    def client(self, tenant: str, **more: Any) -> Procession:
        password = self.deployment.password("clients", more.pop("whose", tenant))
        return Procession(self.nats_url, tenant=tenant, user=tenant_user(tenant), password=password, **more)

    async def nats(self, kind: str, name: str) -> "Tried":
        user = tenant_user(name) if kind == "clients" else name
        tried = Tried(self.deployment.password(kind, name), user)
        await tried.connect(self.nats_url)
        return tried


class Tried:
    """A connection that notes what it was refused."""

    def __init__(self, password: str, user: str) -> None:
        self.user, self._password = user, password
        self.refused: set[tuple[str, str]] = set()
        self._seen = asyncio.Event()

    async def connect(self, url: str) -> None:
        self.client = await nats.connect(
            url, user=self.user, password=self._password, error_cb=self._refused, allow_reconnect=False,
            inbox_prefix=f"_INBOX.{self.user}",
        )  # fmt: skip

    async def _refused(self, error: Exception) -> None:
        if found := _VIOLATION.search(str(error)):
            self.refused.add((found[1], found[2]))
            if found[2] == _LAST:
                self._seen.set()

    async def _settled(self) -> None:
        """Returns when the server has said what it thinks of all before: it says it in order."""
        self._seen.clear()
        await self.client.publish(_LAST, b"")
        await asyncio.wait_for(self._seen.wait(), 20)
        self.refused.discard(("publish", _LAST))

    async def publishes(self, wanted: list[str]) -> set[str]:
        """Publishes to all these subjects; gives those that were let through."""
        for subject in wanted:
            await self.client.publish(subject, b"")
        await self._settled()
        return {subject for subject in wanted if ("publish", subject.lower()) not in self.refused}

    async def subscribes(self, wanted: list[str]) -> set[str]:
        """The same for subscriptions."""
        for subject in wanted:
            await self.client.subscribe(subject)
        await self._settled()
        return {subject for subject in wanted if ("subscription", subject.lower()) not in self.refused}


@asynccontextmanager
async def guarded_servers(directory: Path) -> AsyncIterator[Guarded]:
    """Both servers, with the tenants acme and beta."""
    deployment = Deployment(directory / "secrets")
    deployment.write(["acme", "beta"])
    nats, redis = nats_server(deployment, directory), redis_server(deployment, directory)
    async with AsyncExitStack() as stack:
        for server in (nats, redis):
            stack.push_async_callback(server.stop)
            await server.start()
        yield Guarded(
            deployment, f"nats://127.0.0.1:{nats.ports[0]}", f"redis://127.0.0.1:{redis.ports[0]}/0", redis
        )
