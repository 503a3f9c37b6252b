"""The process of one service, or of several: they start, it says that they are ready, and on SIGTERM they drain."""

import asyncio
import faulthandler
import json
import logging
import os
import signal
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from procession.authors import is_ctrl_c, raised
from procession.awaiting import left
from procession_services.bus import Nearby
from procession_services.processor_host.handover import Handover
from procession_services.processor_host.service import Host, NotReachableError, Start, hosted
from procession_services.runtime import garbage, logs, standstill, telemetry
from procession_services.runtime.health import keep_ready
from procession_services.runtime.settings import Settings
from procession_services.runtime.tasks import ended, spawned

__all__ = ["run"]

log = logging.getLogger(__name__)
_END_SECONDS = 15.0
"""How much longer than it drains a process may take to end; then something in it blocks its event loop, or a thread."""


def run(services: Mapping[str, Start], settings: Settings) -> None:
    """The entry point of a process that runs one service, or several."""
    logs.configure(_name(services), settings.log_level)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        _run(runner.get_loop(), _serve(services, settings))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - where the platform has it
    except ImportError:
        return None
    return uvloop.new_event_loop


def _run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Runs the loop until the work is done, through what would end it: `sys.exit()` in a task of a hook, for example.

    Whoever awaits such a task is told by the task itself.
    """
    task = loop.create_task(work)
    while not task.done():
        try:
            loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done() or is_ctrl_c(error):
                raise
            told = "a task or callback of a processor or tool raised %s"
            log.error(told, raised(error))  # noqa: TRY400 - its text may quote the conversation


async def _serve(services: Mapping[str, Start], settings: Settings) -> None:
    """Runs services until SIGTERM or SIGINT; prints one JSON line when the subscriptions of all are live.

    SIGHUP has them read their configuration files again.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    process = _Process(services, settings)
    reading: set[asyncio.Task[Any]] = set()

    def stop() -> None:
        process.stopping.set()
        if not process.live.is_set() and task:
            task.cancel()

    def hang_up() -> None:
        for host in process.hosts:
            spawned(reading, "reloading the configuration", host.admin.reload())

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    try:
        with telemetry.configured(_name(services), settings):
            await process.run()
    except asyncio.CancelledError:
        if not process.stopping.is_set():
            raise
        log.info("stopped before it was ready")
    if await left(*asyncio.all_tasks() - {task}):
        logging.shutdown()
        os._exit(0)  # asyncio would wait for them


def _name(services: Collection[str]) -> str:
    """What a process is called in logs and traces: the service, or `procession` where it runs several."""
    return next(iter(services)) if len(services) == 1 else "procession"


class _Process:
    """Services that run in this process, from the start of the first to the end of the last.

    Attributes:
        live: The subscriptions of all are.
        stopping: They are to finish what is in flight, and end.
    """

    def __init__(self, services: Mapping[str, Start], settings: Settings) -> None:
        self.live, self.stopping = asyncio.Event(), asyncio.Event()
        self.hosts: list[Host] = []
        self._services, self._settings = services, settings
        several = len(services) > 1
        self._nearby = Nearby() if several else None
        self._handover = Handover()

    async def run(self) -> None:
        """Runs them until they are to stop; raises what keeps one of them from starting.

        Raises:
            NotReachableError: NATS, or Redis, was not there at the start; or NATS has closed a connection for good, so
                that whoever looks after the process starts it again.
        """
        tasks = [asyncio.create_task(self._host(name, start)) for name, start in self._services.items()]
        tasks.append(asyncio.create_task(self._tell()))
        try:
            await asyncio.gather(*tasks)
        finally:
            await ended(*tasks)

    async def _host(self, service: str, start: Start) -> None:
        async with hosted(service, self._own(service), start, self._nearby, self._handover) as host:
            self.hosts.append(host)
            if len(self.hosts) == len(self._services):
                self.live.set()
            stopping, closed = (asyncio.create_task(each.wait()) for each in (self.stopping, host.bus.closed))
            try:
                await asyncio.wait([stopping, closed], return_when=asyncio.FIRST_COMPLETED)
            finally:
                await ended(stopping, closed)
            if not self.stopping.is_set():
                why = host.bus.client.last_error
                raise NotReachableError(f"NATS closed the connection of {service} for good: {why}")

    def _own(self, service: str) -> Settings:
        """The settings of one of them: the others wait for the streams that the orchestrator beside them creates."""
        if service == "orchestrator" or "orchestrator" not in self._services:
            return self._settings
        return self._settings.model_copy(update={"create_streams": False})

    async def _tell(self) -> None:
        """Says that all are ready, on stdout once and with the health file for as long as they are."""
        await self.live.wait()
        patience = standstill.patience(self._settings.work_ack_wait)
        async with keep_ready(self._settings.health_file, self._works), standstill.noticed(patience):
            garbage.seldom()
            told = {"ready": " ".join(self._services), "replica": self._settings.replica}
            print(json.dumps(told), flush=True)  # noqa: T201 - the protocol
            await self.stopping.wait()
            log.info("stopping: finishing what is in flight, taking nothing new")
        faulthandler.dump_traceback_later(self._settings.drain_timeout + _END_SECONDS, exit=True)

    async def _works(self) -> bool:
        return all(await asyncio.gather(*(host.works() for host in self.hosts)))
