"""Threads for tools that are plain functions."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread, active_count
from typing import Any, TypeAlias

__all__ = ["Threads", "TooManyThreadsError"]

_Orders: TypeAlias = SimpleQueue[Callable[[], None]]


class TooManyThreadsError(Exception):
    """Tools that do not return have taken all threads that they may have; the process should be restarted."""


class Threads:
    """Gives each call a thread that no other call waits for.

    `asyncio.to_thread` has a few threads, which functions that never return use up, and whose end the process waits
    for. These are as many as are needed, and daemons. A thread that is done is kept for the next call, since to start
    one takes 0.1 ms.
    """

    def __init__(self, most: int = 1_000, most_idle: int = 32) -> None:
        self._most = most
        self._most_idle = most_idle
        self._idle: list[_Orders] = []

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Runs a function in a thread, with the context variables of the caller, and returns what it returns.

        Raises:
            TooManyThreadsError: The process has so many threads that there would soon be none for anybody.
            Exception: Whatever the function raises.
        """
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()
        context = copy_context()

        def work() -> None:
            try:
                done.set_result(context.run(function, *args))
            except (StopIteration, GeneratorExit) as error:  # neither would get through
                done.set_exception(RuntimeError(f"the tool raised {type(error).__name__}"))
            except BaseException as error:  # noqa: BLE001 - whatever it is, who waits is told
                done.set_exception(error)

        (self._idle.pop() if self._idle else self._new()).put(work)
        return await asyncio.wrap_future(done)

    def _new(self) -> _Orders:
        if active_count() >= self._most:
            raise TooManyThreadsError(f"{self._most} threads are in use by tools that do not return")
        orders: _Orders = SimpleQueue()
        Thread(target=self._serve, args=(orders,), name="procession-tool", daemon=True).start()
        return orders

    def _serve(self, orders: _Orders) -> None:
        while True:
            orders.get()()
            if len(self._idle) >= self._most_idle:
                return
            self._idle.append(orders)
