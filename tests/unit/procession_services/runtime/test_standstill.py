"""Whether somebody is told when the event loop stood still."""

import asyncio
import subprocess
import sys
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
    async with asyncio.timeout(10), standstill.noticed(600):
        await over.wait()
    expected = f"the event loop was blocked for at least {late:.1f} s: "
    assert [message.startswith(expected) and why in message for message in caplog.messages] == [True] * bool(
        why
    )


@pytest.mark.parametrize(("lease", "seconds"), [(4, 60), (30, 60), (45, 90)])
def test_a_process_may_stand_still_for_two_leases_and_a_minute(lease, seconds):
    assert standstill.patience(lease) == seconds


STANDING = """
import asyncio, re, time
from procession_services.runtime import standstill

async def main():
    standstill._LOOK_SECONDS = 0.1
    async with standstill.noticed(0.5):
        await asyncio.sleep(0)
        {blocks}

asyncio.run(main())
"""


@pytest.mark.parametrize("blocks", ["time.sleep(600)", "re.match('(a*)*b', 'a' * 60)"])
def test_a_process_ends_that_stands_still_for_longer_and_says_where(tmp_path, blocks):
    script = tmp_path / "standing.py"
    script.write_text(STANDING.format(blocks=blocks))
    told = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True, timeout=60)
    assert told.returncode == 1
    assert 'standing.py", line 9 in main' in told.stderr


def test_a_process_goes_on_that_does_not(tmp_path):
    script = tmp_path / "standing.py"
    script.write_text(STANDING.format(blocks="await asyncio.sleep(0.7)") + "time.sleep(0.7)\n")
    told = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stderr) == (0, "")
