"""What a command does with Ctrl-C, whenever it comes, and while nothing comes of its run."""

import argparse
import asyncio
import gc
import signal

import pytest

from procession.client import NotAcceptedError
from procession_schemas.run import RunResult
from procession_services.cli import runs
from procession_services.cli.runs import _follow
from tests.support.waiting import until


class Run:
    """A run that ends soon after somebody has pressed Ctrl-C."""

    accepted, streams, run_id = True, True, "r"

    def __init__(self, cancel):
        self.cancel = cancel

    async def __aiter__(self):
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0.05)
        yield {"type": "text-delta", "payload": {"text": "Hello"}}

    async def result(self):
        return RunResult(run_id="r", agent="a", status="finished", finish_reason="stop")


@pytest.fixture
async def unheard():
    """Failures that nobody has heard of."""
    found = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: found.append(context))
    yield found
    loop.set_exception_handler(None)


async def followed(run):
    code = await _follow(run, argparse.Namespace(json=False))
    await asyncio.sleep(0)
    gc.collect()
    return code


async def test_nobody_cancels_a_run_that_has_ended_meanwhile(capsys, unheard):
    begun, given_up = asyncio.Event(), asyncio.Event()

    async def cancel():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    assert await followed(Run(cancel)) == 0
    assert begun.is_set()
    assert given_up.is_set()
    assert unheard == []
    assert "cannot cancel" not in capsys.readouterr().err


async def test_a_cancel_that_nobody_takes_is_told(capsys, unheard):
    async def cancel():
        raise NotAcceptedError("nobody took it")

    assert await followed(Run(cancel)) == 0
    assert "cannot cancel the run: nobody took it\n" in capsys.readouterr().err
    assert unheard == []


async def test_it_says_once_that_nothing_comes_of_a_run(monkeypatch):
    told = list[str]()
    monkeypatch.setattr(runs, "say", told.append)
    monkeypatch.setattr(runs, "_ACCEPTED_SECONDS", 0.0)
    monkeypatch.setattr(runs, "_SILENCE_SECONDS", 0.01)

    class Silent:
        accepted, streams, run_id, position = True, True, "r", 0
        result = Run.result

        async def __aiter__(self):
            self.position += 1
            yield {"type": "text-delta", "payload": {"text": "Hello"}}
            await until(lambda: told)

    assert await followed(Silent()) == 0
    silence, summary = told
    assert silence == (
        "nothing has come of run r for 0.01 seconds: the model or a tool may take long, or a service is down; "
        "`procession check --deploy` tells which services answer"
    )
    assert "finished" in summary
