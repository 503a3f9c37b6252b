"""What the commands share."""

import asyncio
import signal

import pytest

from procession_services.cli.common import end_on


@pytest.fixture
def hang_up():
    before = signal.getsignal(signal.SIGHUP)
    yield lambda does: signal.signal(signal.SIGHUP, does)
    signal.signal(signal.SIGHUP, before)


async def test_a_closed_terminal_ends_a_command(hang_up):
    hang_up(signal.SIG_DFL)

    async def command():
        end_on(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(command())
    asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


async def test_a_closed_terminal_is_nothing_to_a_command_under_nohup(hang_up):
    hang_up(signal.SIG_IGN)
    end_on(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
