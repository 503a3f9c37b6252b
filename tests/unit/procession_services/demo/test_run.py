"""The demo model's process."""

import asyncio
import os
import signal

from procession_services.demo.run import demo_environment, model_server


async def pids_of_models():
    mine = ("-P", str(os.getpid()), "-f", "procession_services model")
    search = await asyncio.create_subprocess_exec("pgrep", *mine, stdout=asyncio.subprocess.PIPE)
    found, _ = await search.communicate()
    return [int(pid) for pid in found.split()]


async def test_a_demo_model_that_was_killed_is_started_again_where_it_was():
    told: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    async with model_server(lambda *line: told.put_nowait(line)) as url, asyncio.timeout(20):
        [first] = await pids_of_models()
        os.kill(first, signal.SIGKILL)
        assert await told.get() == ("model", "ended with code -9; restarting")
        assert await told.get() == ("model", "is ready again")
        [second] = await pids_of_models()
        assert second != first
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: model\r\nConnection: close\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()
    assert await pids_of_models() == []


async def test_plugins_come_besides_those_of_the_demonstration():
    async with demo_environment("openai/other", plugins=("mine", "other")) as environment:
        assert environment["PROCESSION_PLUGINS"] == "procession_services.demo.processors,mine,other"
