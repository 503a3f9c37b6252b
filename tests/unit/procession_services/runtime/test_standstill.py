"""Whether somebody is told when the event loop stood still."""

import asyncio
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from procession_services.runtime import standstill


@pytest.mark.parametrize(("worked", "why"), [(0.1, "waited without `await`"), (4.5, "computed")])
async def test_that_the_loop_stood_still_is_told_once_with_what_it_did(monkeypatch, caplog, worked, why):
    looked = asyncio.Event()

    def thread_time():
        times = chain([0.0, worked], repeat(worked))
        for reading in times:
            if reading:
                looked.set()
            yield reading

    now = chain([0.0, 6.0], repeat(6.0))
    clocks = SimpleNamespace(monotonic=now.__next__, thread_time=thread_time().__next__)
    monkeypatch.setattr(standstill, "time", clocks)
    monkeypatch.setattr(
        standstill, "asyncio", SimpleNamespace(create_task=asyncio.create_task, sleep=at_once)
    )
    async with asyncio.timeout(10), standstill.noticed():
        await looked.wait()
        await asyncio.sleep(0)
    (told,) = caplog.messages
    assert told.startswith("nothing else ran here for at least 5.0 s: ")
    assert why in told


async def test_what_waits_as_it_should_is_no_matter(monkeypatch, caplog):
    monkeypatch.setattr(standstill, "_LOOK_SECONDS", 0.001)
    async with standstill.noticed():
        await asyncio.sleep(0.05)
    assert not caplog.records


async def at_once(_seconds):
    await asyncio.sleep(0)
