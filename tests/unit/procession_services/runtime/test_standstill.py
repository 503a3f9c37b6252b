"""Whether somebody is told when the event loop stood still."""

import asyncio
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from procession_services.runtime import standstill

LOOKED = 3


@pytest.mark.parametrize(
    ("late", "worked", "why"), [(5.0, 0.1, "waited without `await`"), (5.0, 4.5, "computed"), (0.9, 0.9, "")]
)
async def test_that_the_loop_stood_still_is_told_once_with_what_it_did(
    monkeypatch, caplog, late, worked, why
):
    looks, over = iter(range(LOOKED)), asyncio.Event()

    async def looking(seconds):
        await asyncio.sleep(0)
        if next(looks, None) is None:
            over.set()
            await asyncio.Event().wait()

    now = chain([0.0], repeat(late + standstill._LOOK_SECONDS))
    used = chain([0.0], repeat(worked))
    clocks = SimpleNamespace(monotonic=now.__next__, thread_time=used.__next__)
    monkeypatch.setattr(standstill, "time", clocks)
    monkeypatch.setattr(
        standstill, "asyncio", SimpleNamespace(create_task=asyncio.create_task, sleep=looking)
    )
    async with asyncio.timeout(10), standstill.noticed():
        await over.wait()
    expected = f"nothing else ran here for at least {late:.1f} s: "
    assert [message.startswith(expected) and why in message for message in caplog.messages] == [True] * bool(
        why
    )
