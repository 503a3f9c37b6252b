"""Redis does what it was asked, and its answer is lost on the way: whoever asked asks again."""

import asyncio
import contextlib
import hashlib
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from procession_services.runtime import scripts
from procession_services.runtime.embedded import EmbeddedServers
from tests.support.handing import LONG
from tests.support.system import all_but, running_system

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]


class Lossy:
    """Stands before Redis, and once hangs up in place of the answer to a script that has run."""

    def __init__(self, redis_url: str, script: str) -> None:
        self._target = urlsplit(redis_url)
        self._digest = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest().encode()
        self.losing, self.lost = False, 0

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{self._target.path}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection(self._target.hostname, self._target.port)
        losing = False

        async def answers() -> None:
            swallowed = b""
            while data := await there.read(65536):
                if not losing:
                    writer.write(data)
                    continue
                swallowed += data
                if b"+PONG" in swallowed:  # all before it was done
                    self.lost += 1
                    writer.transport.abort()
                    return

        answering = asyncio.create_task(answers())
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 20):
                if self.losing and not self.lost and self._digest in data:
                    losing = True
                    data += b"PING\r\n"
                here.write(data)
        answering.cancel()
        for each in (here, writer):
            each.transport.abort()


@pytest_asyncio.fixture(loop_scope="session")
async def servers(tmp_path):
    async with EmbeddedServers(tmp_path / "servers") as servers:
        yield servers.endpoints


@pytest_asyncio.fixture(loop_scope="session")
async def system(servers, tmp_path, monkeypatch_module):
    """Every service but the gateway."""
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with running_system(servers, tmp_path) as system, system.inside(*all_but("llm_gateway")):
        yield system


@pytest.mark.parametrize("script", ["END", "COMMIT", "TAKE"])
async def test_a_run_goes_on_whose_step_redis_has_taken_without_saying_so(system, servers, script):
    lossy = Lossy(servers.redis_url, getattr(scripts, script))
    call = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
    async with lossy as redis_url, system.inside("llm_gateway", redis_url=redis_url):
        for lossy.losing in (False, True):  # Redis has to know the script
            result, _ = await system.run(call, {"chunks": ["done"]}, agent={"tools": ["echo"]}, text=LONG)
            assert (result.status, result.text) == ("finished", "done")
    assert lossy.lost == 1
