"""The client of docs/how-to/use-another-language.md, which has nothing but a NATS library, at the real system."""

import asyncio
import json
import os
import shutil
from asyncio.subprocess import PIPE
from pathlib import Path

import nats
import pytest
import pytest_asyncio

from examples.bare_client import ask
from procession_schemas import subjects
from tests.chaos.proxy import Proxy
from tests.support.system import ROOT, all_but, running_system

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="session"),
]

WORDS = [f"word{number} " for number in range(40)]
TEXT = "".join(WORDS).upper()
SLOW = {"chunks": WORDS, "chunk_delay_ms": 15}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory, monkeypatch_module):
    """Every service but the gateway."""
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with (
        running_system(servers, tmp_path_factory.mktemp("logs")) as system,
        system.inside(*all_but("llm_gateway"), work_ack_wait=2.0),
    ):
        yield system


def request_of(system, name, *calls):
    """A request for a run of that name, and where it goes."""
    agent = {"name": "test", "model": system.script(*calls), "outputProcessors": ["upper"]}
    return {"runId": f"{system.client.tenant}-{name}", "input": "Hello", "agent": agent}


class Screen:
    """What somebody sees."""

    def __init__(self):
        self.texts, self.first = [""], asyncio.Event()

    def show(self, answer):
        self.texts.append(answer.text)
        if len(answer.text) > 50:
            self.first.set()


async def test_an_answer_is_read_as_it_grows_and_again_when_it_is_there(system):
    request, screen, later = request_of(system, "plain", SLOW), Screen(), Screen()
    where = system.servers.nats_url, "test", request
    async with system.inside("llm_gateway"):
        result = await ask(*where, tenant=system.client.tenant, show=screen.show)
    again = await ask(*where, tenant=system.client.tenant, show=later.show)
    assert result == again
    assert (result["text"], screen.texts[-1], later.texts[-1]) == (TEXT, TEXT, TEXT)
    assert len(set(screen.texts)) > 5
    assert all(TEXT.startswith(text) for text in screen.texts)


RETRIED = {**SLOW, "chunks": WORDS[:9], "mid_error": {}}, {"chunks": WORDS}
"""An answer that breaks off, and the one that an error processor asks for then."""


def retried_request_of(system, name):
    """A request for a run of that name whose first attempt is taken back."""
    request = request_of(system, name, *RETRIED)
    more = {"errorProcessors": ["retry"], "maxProcessorRetries": 1}
    return {**request, "agent": {**request["agent"], **more}}


async def test_what_an_attempt_has_said_that_is_made_again_is_taken_back(system):
    request, screen, later = retried_request_of(system, "retry"), Screen(), Screen()
    where = system.servers.nats_url, "test", request
    async with system.inside("llm_gateway"):
        result = await ask(*where, tenant=system.client.tenant, show=screen.show)
    await ask(*where, tenant=system.client.tenant, show=later.show)
    assert (result["retries"], result["text"]) == (1, TEXT)
    assert (screen.texts[-1], later.texts[-1]) == (TEXT, TEXT)
    assert "" in screen.texts[screen.texts.index("WORD0 ") :]  # it was shown, and taken back


async def test_what_a_dead_gateway_has_said_is_taken_back(system):
    request, screen = request_of(system, "reset", {**SLOW, "chunks": ["lost "] * 9000}, SLOW), Screen()
    process = await system.process("llm_gateway").start()
    try:
        await process.ready()
        asking = asyncio.create_task(
            ask(system.servers.nats_url, "test", request, tenant=system.client.tenant, show=screen.show)
        )
        await screen.first.wait()
        process.kill()
        async with system.inside("llm_gateway"):
            result = await asking
    finally:
        await process.stop()
    assert (result["text"], screen.texts[-1]) == (TEXT, TEXT)
    assert any(text.startswith("LOST") for text in screen.texts)


async def test_what_is_said_while_the_connection_is_away_is_read_from_what_is_stored(system):
    request, screen = request_of(system, "away", SLOW), Screen()
    port = int(system.servers.nats_url.rsplit(":", 1)[1])
    async with Proxy(port) as proxy, system.inside("llm_gateway"):
        asking = asyncio.create_task(
            ask(
                f"nats://127.0.0.1:{proxy.port}",
                "test",
                request,
                tenant=system.client.tenant,
                show=screen.show,
            )
        )
        await screen.first.wait()
        proxy.cut()
        result = await asking
    assert (result["text"], screen.texts[-1]) == (TEXT, TEXT)


async def test_a_run_of_the_same_name_with_another_request_is_refused(system):
    request = request_of(system, "twice", {"chunks": ["a"]})
    async with system.inside("llm_gateway"):
        where = system.servers.nats_url, "test"
        await ask(*where, request, tenant=system.client.tenant, show=Screen().show)
        with pytest.raises(RuntimeError, match="different request"):
            await ask(*where, {**request, "input": "Else"}, tenant=system.client.tenant, show=Screen().show)


async def forget(system, request):
    """Has the chunks of a run forgotten, as they are after an hour."""
    connection = await nats.connect(system.servers.nats_url)
    subject = subjects.chunk(system.client.tenant, request["runId"])
    await connection.jetstream().purge_stream("CHUNKS", subject=subject)
    await connection.close()


async def test_a_run_whose_chunks_are_forgotten_has_its_result(system):
    request, screen = request_of(system, "forgotten", {"chunks": ["a"]}), Screen()
    asked = system.servers.nats_url, "test", request
    async with system.inside("llm_gateway"):
        result = await ask(*asked, tenant=system.client.tenant, show=Screen().show)
    await forget(system, request)
    async with asyncio.timeout(20):
        again = await ask(*asked, tenant=system.client.tenant, show=screen.show)
    assert (again, screen.texts[-1]) == (result, "")


@pytest.mark.parametrize("run", [{}, {"runId": "a b"}, {"runId": "a" * 129}])
async def test_a_run_without_a_name_is_not_asked_for(system, run):
    with pytest.raises(ValueError, match="runId"):
        await ask(system.servers.nats_url, "test", {"input": "x", **run}, show=Screen().show)


def node_and_client(directory):
    """Node and the client's file in a directory with its packages; skips where there are none."""
    modules = Path(os.environ.get("NATS_NODE_MODULES", ROOT / "examples" / "node_modules"))
    node = shutil.which("node")
    if node is None or not (modules / "@nats-io" / "jetstream").is_dir():
        pytest.skip(
            "NATS_NODE_MODULES has no @nats-io/transport-node and @nats-io/jetstream, or there is no Node: neither "
            "PyPI nor Debian has these packages, and npm's registry need not be within reach"
        )
    shutil.copy(ROOT / "examples" / "bare_client.mjs", directory)
    (directory / "node_modules").symlink_to(modules)
    return node, str(directory / "bare_client.mjs")


async def test_the_client_for_node_has_the_result_of_a_forgotten_run_and_asks_for_none_without_a_name(
    system, tmp_path
):
    where = system.servers.nats_url, system.client.tenant, "test"
    program = *node_and_client(tmp_path), *where
    request = request_of(system, "node-forgotten", {"chunks": ["a"]})
    async with asyncio.timeout(20):
        async with system.inside("llm_gateway"):
            asking = await asyncio.create_subprocess_exec(*program, json.dumps(request), stdout=PIPE)
            *_, result = (await asking.communicate())[0].splitlines()
        await forget(system, request)
        asking = await asyncio.create_subprocess_exec(*program, json.dumps(request), stdout=PIPE)
        told, _ = await asking.communicate()
        nameless = await asyncio.create_subprocess_exec(*program, '{"input": "x"}', stderr=PIPE)
        _, refused = await nameless.communicate()
    assert told.splitlines() == [result]
    assert nameless.returncode != 0
    assert b"runId must be" in refused


async def test_the_client_for_node_takes_back_what_an_attempt_has_said_that_is_made_again(system, tmp_path):
    request = retried_request_of(system, "node-retry")
    program = *node_and_client(tmp_path), system.servers.nats_url, system.client.tenant, "test"
    async with asyncio.timeout(20), system.inside("llm_gateway"):
        asking = await asyncio.create_subprocess_exec(*program, json.dumps(request), stdout=PIPE)
        *_, shown, last = map(json.loads, (await asking.communicate())[0].splitlines())
    assert (shown["text"], last["result"]["text"]) == (TEXT, TEXT)


async def test_the_client_for_node_tells_that_a_run_waits_for_a_person(system, tmp_path):
    calls = (
        {"tool_calls": [{"id": "c1", "name": "weather", "arguments": {"city": "Rome"}}]},
        {"chunks": ["a"]},
    )
    request = request_of(system, "node-waits", *calls)
    request["agent"] |= {"tools": [{"id": "weather", "requireApproval": True}]}
    program = *node_and_client(tmp_path), system.servers.nats_url, system.client.tenant, "test"
    async with asyncio.timeout(20), system.inside("llm_gateway"):
        asking = await asyncio.create_subprocess_exec(*program, json.dumps(request), stdout=PIPE)
        *_, waits = map(json.loads, (await asking.communicate())[0].splitlines())
        await (await system.client.attach(request["runId"])).approve("c1")
        asking = await asyncio.create_subprocess_exec(*program, json.dumps(request), stdout=PIPE)
        *_, last = map(json.loads, (await asking.communicate())[0].splitlines())
    assert [call["toolCallId"] for call in waits["result"]["suspendPayload"]["calls"]] == ["c1"]
    assert (last["result"]["status"], last["result"]["text"]) == ("finished", "A")


async def test_the_client_for_node_reads_the_same(system, tmp_path):
    request = request_of(system, "node", {**SLOW, "chunks": ["lost "] * 9000}, SLOW)
    program = *node_and_client(tmp_path), system.servers.nats_url, system.client.tenant, "test"
    process = await system.process("llm_gateway").start()
    try:
        await process.ready()
        asking = await asyncio.create_subprocess_exec(
            *program, json.dumps(request), stdout=PIPE, limit=1 << 20
        )
        assert asking.stdout is not None
        said = [json.loads(await asking.stdout.readline()) for _ in range(10)]
        process.kill()
        async with system.inside("llm_gateway"):
            said += [json.loads(line) async for line in asking.stdout]
    finally:
        await process.stop()
    *shown, last = said
    assert (await asking.wait(), last["result"]["text"], shown[-1]["text"]) == (0, TEXT, TEXT)
    assert shown[0]["text"].startswith("LOST")
