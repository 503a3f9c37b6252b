import asyncio
import threading
from contextvars import ContextVar

import pytest

from procession_services.tools.threads import Threads, TooManyThreadsError
from tests.support.waiting import until

_variable: ContextVar[str] = ContextVar("_variable")


async def test_a_thread_that_is_done_is_taken_again() -> None:
    threads = Threads()
    first = await threads.run(threading.current_thread)
    await until(lambda: threads._idle)
    assert await threads.run(threading.current_thread) is first
    assert first is not threading.main_thread()
    assert first.daemon  # so that the process can end while it works


async def test_one_that_does_not_return_is_not_waited_for() -> None:
    threads = Threads()
    release = threading.Event()
    stuck = [asyncio.ensure_future(threads.run(release.wait, 30)) for _ in range(100)]
    assert await threads.run(str, 1) == "1"
    release.set()
    assert await asyncio.gather(*stuck) == [True] * 100


async def test_few_idle_threads_are_kept() -> None:
    threads = Threads(most_idle=2)
    all_here = threading.Barrier(5, timeout=10)
    used: list[threading.Thread] = []

    def meet() -> None:
        used.append(threading.current_thread())
        all_here.wait()

    await asyncio.gather(*(threads.run(meet) for _ in range(5)))
    await until(lambda: sum(not thread.is_alive() for thread in used) == 3)
    assert len(threads._idle) == 2


async def test_where_there_are_too_many_threads_only_those_that_are_idle_work() -> None:
    threads = Threads(most=threading.active_count() + 1)
    begun, release = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        release.wait(30)

    stuck = asyncio.ensure_future(threads.run(wait))
    await until(begun.is_set)
    with pytest.raises(TooManyThreadsError, match="threads are in use by tools that do not return"):
        await threads.run(str, 1)
    release.set()
    await stuck
    await until(lambda: threads._idle)
    assert await threads.run(str, 1) == "1"


async def test_context_variables_are_the_callers() -> None:
    threads = Threads(most_idle=1)
    _variable.set("the first caller's")
    assert await threads.run(_variable.get) == "the first caller's"
    _variable.set("the second caller's")
    assert await threads.run(_variable.get) == "the second caller's"


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
async def test_what_a_function_raises_is_raised_and_its_thread_lives(error: BaseException) -> None:
    threads = Threads()

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        await threads.run(fail)
    await until(lambda: threads._idle)


@pytest.mark.parametrize("error", [StopIteration, GeneratorExit])
async def test_what_would_not_get_through_is_raised_as_another_error(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(RuntimeError, match=f"the tool raised {error.__name__}"):
        await Threads().run(fail)
