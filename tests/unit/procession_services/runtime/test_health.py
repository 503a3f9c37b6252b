"""Readiness as a file."""

import asyncio
import os
import time

import pytest

from procession_services.runtime import health
from procession_services.runtime.health import FRESH_SECONDS, is_ready, keep_ready, main


async def well():
    return True


async def test_the_file_is_there_while_the_service_works_and_gone_after(tmp_path):
    file = tmp_path / "ready"
    async with keep_ready(file, well):
        assert is_ready(file)
    assert not file.exists()


async def test_a_service_that_cannot_work_lets_the_file_grow_old(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "_TOUCH_SECONDS", 0.001)
    file, looked = tmp_path / "ready", asyncio.Event()

    async def broken():
        looked.set()
        raise ConnectionError

    async with keep_ready(file, broken):
        old = time.time() - FRESH_SECONDS - 1
        os.utime(file, (old, old))
        looked.clear()
        await looked.wait()
        assert not is_ready(file)


async def test_it_is_ready_again_when_it_works_again(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "_TOUCH_SECONDS", 0.001)
    file, looks = tmp_path / "ready", iter([False, False])
    async with keep_ready(file, lambda: asyncio.sleep(0, next(looks, True))):
        old = time.time() - FRESH_SECONDS - 1
        os.utime(file, (old, old))
        async with asyncio.timeout(20):
            while not is_ready(file):  # noqa: ASYNC110 - nobody tells of a file
                await asyncio.sleep(0.005)


async def test_a_file_that_cannot_be_written_is_told_with_its_setting(tmp_path):
    with pytest.raises(OSError, match=r"PROCESSION_HEALTH_FILE: cannot write .*/gone/ready: No such file"):
        async with keep_ready(tmp_path / "gone" / "ready", well):
            pass


async def test_without_a_file_nothing_is_asked():
    async with keep_ready(None, pytest.fail):
        pass


@pytest.mark.parametrize(("age", "code"), [(0, 0), (FRESH_SECONDS + 1, 1), (None, 1)])
def test_the_command_tells_by_its_exit_code(tmp_path, monkeypatch, capsys, age, code):
    file = tmp_path / "ready"
    if age is not None:
        file.touch()
        os.utime(file, (time.time() - age,) * 2)
    monkeypatch.setenv("PROCESSION_HEALTH_FILE", str(file))
    assert main() == code
    assert capsys.readouterr().out == ("not ready\n" if code else "ready\n")
