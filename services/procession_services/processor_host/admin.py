"""What operators ask of a process: how it is doing, and to read its configuration files again.

It looks for changes of those files by itself, too, so that all replicas come to the same configuration.
"""

import asyncio
import contextlib
import importlib.metadata
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

from procession_schemas import subjects
from procession_schemas.admin import Finding, ModelUse, ServiceStatus
from procession_services.bus import Bus
from procession_services.runtime import telemetry
from procession_services.runtime.problems import Problem
from procession_services.runtime.reload import Watched
from procession_services.runtime.tasks import repeated, spawned

__all__ = ["Admin", "Check"]

log = logging.getLogger(__name__)
T = TypeVar("T")
_LOOK_SECONDS: Final = 1.0
_CHECK_SECONDS: Final = 8.0
Check = Callable[[], Awaitable[Iterable[Problem]]]
"""Finds out what is wrong with something that the service needs."""


class Admin:
    """The files that a process watches, and how it is doing.

    Attributes:
        checks: What the status is made of, besides the watched files.
        models: The models that are configured, where the service knows them.
        redis: Which Redis the service has.
    """

    def __init__(self, bus: Bus, service: str, replica: str) -> None:
        self._bus, self._service, self._replica = bus, service, replica
        self._watched: list[Watched[Any]] = []
        self._reading = asyncio.Lock()
        self._answering: set[asyncio.Task[None]] = set()
        self._asked: dict[str, list[str]] = {}
        self.checks: list[Check] = []
        self.models: Callable[[], list[ModelUse]] = list
        self.redis: Callable[[], Awaitable[str]] = _nobody_knows

    def watch(self, name: str, path: Path | None, load: Callable[[Path], T], default: T) -> Watched[T]:
        """Reads a file now, and again whenever it changes or somebody says so; see `Watched`.

        Raises:
            ConfigurationError: It is wrong from the beginning.
        """
        watched = Watched(name, path, load, default)
        self._watched.append(watched)
        return watched

    async def reload(self) -> ServiceStatus:
        """Reads all files again; returns the outcome."""
        async with self._reading:
            for watched in self._watched:
                await asyncio.to_thread(watched.reload)
                _tell(watched)
        return self.says(self._refusals())

    async def status(self) -> ServiceStatus:
        """How this process is doing now."""
        found = self._refusals()
        for told in await asyncio.gather(*(_checked(check) for check in self.checks)):
            found += told
        return self.says(found, await self.redis())

    def _refusals(self) -> list[Problem]:
        return [problem for watched in self._watched for problem in watched.problems]

    def says(self, problems: Iterable[Problem], redis: str = "") -> ServiceStatus:
        """The status of a process that has found this."""
        return ServiceStatus(
            service=self._service,
            replica=self._replica,
            version=importlib.metadata.version("procession"),
            configuration={w.name: w.digest for w in self._watched if w.path is not None},
            models=self.models(),
            redis=redis,
            findings=[
                Finding(where=each.where, path=each.path, message=each.message, warning=each.warning)
                for each in problems
            ],
        )

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answers operators and looks after the files for the length of the block."""
        subscriptions = [
            await self._bus.subscribe(subjects.admin(operation), self._on_request)
            for operation in ("status", "reload")
        ]
        looking = asyncio.create_task(
            repeated("checking the configuration files for changes", _LOOK_SECONDS, self._look)
        )
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, *self._answering, return_exceptions=True)
            for subscription in subscriptions:
                await self._bus.unsubscribe(subscription)

    async def _look(self) -> None:
        async with self._reading:
            for watched in self._watched:
                if await asyncio.to_thread(watched.look):
                    _tell(watched)

    def _on_request(self, subject: str, _body: bytes, reply: str) -> None:
        *_, operation = subjects.parse(subject)
        if operation in self._asked:
            self._asked[operation].append(reply)
            return
        self._asked[operation] = [reply]
        spawned(self._answering, f"answering {subject}", self._answer(operation))

    async def _answer(self, operation: str) -> None:
        """Answers all who have asked before it began, at once; then those who have asked since."""
        try:
            while replies := self._asked[operation]:
                self._asked[operation] = []
                status = await (self.reload() if operation == "reload" else self.status())
                body = status.to_json()
                for reply in filter(None, replies):
                    await self._bus.publish(reply, body)
        finally:
            del self._asked[operation]


async def _nobody_knows() -> str:
    return ""


async def _checked(check: Check) -> list[Problem]:
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            return list(await check())
    except Exception as error:  # noqa: BLE001 - what is checked may be broken in any way
        told = f"could not be checked: {type(error).__name__}: {error}".rstrip(": ")
        return [Problem(getattr(check, "__name__", "check"), "", told)]


def _tell(watched: Watched[Any]) -> None:
    telemetry.observer().configured_by(watched.name, refused=bool(watched.problems))
