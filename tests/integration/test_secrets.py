"""No secret and nothing that was said is in logs, traces, or on the subjects of another tenant."""

import os
from contextlib import AsyncExitStack
from typing import Any

import nats
import orjson
import pytest
import pytest_asyncio

from procession.client import Procession
from procession_schemas import subjects
from procession_schemas.agent import Agent
from procession_services.demo_model import serve
from procession_services.deploy.permissions import tenant_permissions
from tests.support.guarded import guarded_servers
from tests.support.subjects import matches
from tests.support.system import ROOT as SOURCES
from tests.support.system import SERVICES, ServiceProcess, finished

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

KEY = "sk-crimson-key-of-the-provider"
PROMPT, ANSWER, ARGUMENT = "purple-prompt", "green-answer", "amber-argument"
MAIL, REMEMBERED, OPTION = "violet.person@example.org", "indigo-memory", "ochre-option"
SAID = (PROMPT, ANSWER, ARGUMENT, MAIL, REMEMBERED, OPTION)
THREAD = {"thread": "t", "resource": "r"}
CALL = {"tool_calls": [{"id": "c", "name": "post", "arguments": {"text": ARGUMENT}}]}
WRONG_CALL = {"tool_calls": [{"id": "c", "name": "quote", "arguments": {"text": ARGUMENT}}]}
DONE = {"chunks": [ANSWER, f" {MAIL}"]}
ECHO = f"the key {KEY} may not ask {PROMPT}"


def refused(status: int) -> dict[str, Any]:
    return {"error": {"status": status, "message": ECHO}}


def quoting(*hooks: str, kind: str = "quoting", **more: Any) -> dict[str, Any]:
    return {"id": kind, **more.pop("ref", {}), "options": {"hooks": list(hooks), **more}}


class World:
    """All services as processes under their own users, a model, and who listens to everything."""

    def __init__(self, guarded: Any, models: Any, processes: list[ServiceProcess]) -> None:
        self.guarded, self.models, self.processes = guarded, models, processes
        self.heard: list[tuple[str, str]] = []
        self.numbers = iter(range(1000))

    def passwords(self) -> list[str]:
        files = [
            file
            for kind in ("nats", "redis")
            for file in (self.guarded.deployment.directory / kind).iterdir()
        ]
        return [file.read_text().strip() for file in files if file.suffix == ""]

    async def listen(self) -> Any:
        """Hears every message of every tenant."""
        operator = self.guarded.deployment.password("nats", "operator")
        client = await nats.connect(self.guarded.nats_url, user="operator", password=operator)

        async def note(message: Any) -> None:
            headers = dict((message.headers or {}).items())
            self.heard.append((message.subject, f"{headers} {message.data.decode(errors='replace')}"))

        await client.subscribe(">", cb=note)
        await client.flush()
        return client

    def script(self, *calls: dict[str, Any]) -> str:
        name = f"s{next(self.numbers)}"
        self.models.scripts.add(name, list(calls))
        return f"openai/script:{name}"

    async def run(self, client: Procession, *calls: dict[str, Any], **agent: Any) -> Any:
        memory = {"memory": agent.pop("memory", {}), **agent}
        made = Agent.model_validate({"name": "test", "model": self.script(*calls), **memory})
        handle = await client.start(f"{PROMPT} {MAIL}", agent=made, memory=THREAD)
        return (await finished(handle))[0]

    def logs(self) -> str:
        return "\n".join(process.logged() for process in self.processes)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    async with AsyncExitStack() as stack:
        guarded = await stack.enter_async_context(guarded_servers(tmp_path_factory.mktemp("guarded")))
        models = await stack.enter_async_context(await serve())
        chroma = tmp_path_factory.mktemp("chroma")
        processes = []
        for service in SERVICES:
            given = guarded.settings(service)
            own = {
                "PROCESSION_NATS_URL": guarded.nats_url,
                "PROCESSION_REDIS_URL": guarded.redis_url,
                "PROCESSION_NATS_USER": service,
                "PROCESSION_NATS_PASSWORD_FILE": given.nats_password_file,
                "PROCESSION_REDIS_USER": service,
                "PROCESSION_REDIS_PASSWORD_FILE": given.redis_password_file,
                "PROCESSION_CREATE_STREAMS": str(service == "orchestrator").lower(),
                "PROCESSION_PLUGINS": "tests.support.quoting",
                "PROCESSION_API_BASE": f"http://127.0.0.1:{models.port}/v1",
                "PROCESSION_TELEMETRY": "console",
                "PROCESSION_CHROMA_PATH": chroma,
                "PROCESSION_EMBEDDER": "lexical",
                "PYTHONPATH": os.pathsep.join(str(SOURCES / each) for each in ("", "schemas", "services")),
                "OPENAI_API_KEY": KEY,
            }
            environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
            process = ServiceProcess((service,), environment, logs / f"{service}.log")
            stack.push_async_callback(process.stop)
            processes.append(await process.start())
            await process.ready()  # one after another: each has the machine for itself
        yield World(guarded, models, processes)


async def everything(world: World, client: Procession) -> dict[str, Any]:
    """Runs of every kind; gives their results."""
    pii = {"id": "pii-detector", "options": {"strategy": "warn", "includeDetections": True}}
    judge = {"id": "moderation", "options": {"model": world.script(refused(400))}}
    observer = {"observationalMemory": {"model": world.script(refused(400)), "observation": {
        "messageTokens": 4, "bufferTokens": 3, "blockAfter": 10_000}}}  # fmt: skip
    runs: dict[str, tuple[Any, dict[str, Any]]] = {
        "success": ((CALL, DONE), {"tools": ["post"], "inputProcessors": [pii], "outputProcessors": [pii]}),
        "recall": ((DONE,), {"memory": {"semanticRecall": True, "workingMemory": True}}),
        "observer": ((DONE,), {"memory": observer}),
        "refused": ((refused(400),), {}),
        "unauthorised": ((refused(401),), {"maxRetries": 0}),
        "overloaded": ((refused(500), DONE), {"maxRetries": 0, "errorProcessors": [quoting("processAPIError")]}),
        "broken off": (({"chunks": [ANSWER], "mid_error": {"message": ECHO}},), {}),
        "garbage": (({"chunks": [ANSWER], "mid_error": {"kind": "garbage"}},), {}),
        "tool fails": ((WRONG_CALL, DONE), {"tools": ["quote"]}),
        "judge fails": ((DONE,), {"inputProcessors": [judge]}),
        "factory fails": ((DONE,), {"inputProcessors": {
            "factory": "quoting-factory", "options": {"of": OPTION}}}),
        "memory fails": ((DONE,), {"inputProcessors": [quoting("processInput", kind="memory-quoting")]}),
        "skipped": ((DONE,), {"inputProcessors": [quoting("processInput", ref={"onError": "skip"})]}),
    }  # fmt: skip
    for hook, array in (
        ("processInput", "inputProcessors"), ("processInputStep", "inputProcessors"),
        ("processLLMRequest", "inputProcessors"), ("processOutputStream", "outputProcessors"),
        ("processOutputStep", "outputProcessors"), ("processOutputResult", "outputProcessors"),
    ):  # fmt: skip
        for abort in (False, True):
            runs[f"{hook} {abort}"] = ((DONE,), {array: [quoting(hook, abort=abort)]})
    results = {}
    for name, (calls, agent) in runs.items():
        results[name] = await world.run(client, *calls, **agent)
    return results


async def wrong_messages(world: World) -> None:
    """Messages that no service can read, from whoever may send anything."""
    operator = world.guarded.deployment.password("nats", "operator")
    client = await nats.connect(world.guarded.nats_url, user="operator", password=operator)
    body = orjson.dumps({"run": {"said": PROMPT}, "ops": PROMPT, "prompt": {"of": PROMPT}, "type": ARGUMENT})
    jetstream = client.jetstream()
    for number, subject in enumerate(
        (
            subjects.run("acme", "test"),
            subjects.control("acme", "run-x"),
            *(subjects.work(service, "acme", "run-x") for service in SERVICES),
        )
    ):
        for text in (body, f"{{{PROMPT}".encode()):
            await jetstream.publish(subject, text, headers={"Nats-Msg-Id": f"wrong-{number}-{len(text)}"})
    for service in ("llm_gateway", "memory"):
        for operation in ("generate", "embed", "messages", PROMPT):
            try:
                await client.request(subjects.api(service, "acme", operation), body, timeout=2)
            except (nats.errors.NoRespondersError, TimeoutError):
                continue
    await client.close()


async def test_what_was_said_and_what_is_secret_stays_where_it_belongs(world):
    listening = await world.listen()
    async with world.guarded.client("acme") as client, world.guarded.client("beta") as other:
        await client.memory.save("t", "r", [f"{REMEMBERED} {MAIL}"])
        results = await everything(world, client)
        await wrong_messages(world)
        stranger = await other.start("hello", agent=Agent.model_validate({"name": "test", "model": world.script(
            {"chunks": ["hi"]})}))  # fmt: skip
        assert (await finished(stranger))[0].status == "finished"

    assert results["success"].status == "finished", results["success"].error
    assert ANSWER in results["success"].text
    for name in ("recall", "observer", "skipped", "tool fails"):
        assert results[name].status == "finished", results[name].error
    assert {results[name].status for name in ("refused", "unauthorised", "broken off")} == {"failed"}
    assert "[redacted]" in results["refused"].error.message
    assert PROMPT in results["refused"].error.message, "what the provider says of it helps its author"
    assert {results[f"processInput {abort}"].status for abort in (False, True)} == {"failed", "blocked"}

    for process in world.processes:
        assert await process.terminate() == 0
    logs = world.logs()
    for line in (
        "invoke_agent test",
        "of procession.v1.work.tools.acme.run-x failed",
        "tool quote of run",
        "the observer failed or returned nothing",
    ):
        assert line in logs, "spans, messages that nobody can read, and tools that fail are told of"
    for word in (*SAID, KEY, *world.passwords()):
        lines = [line for line in logs.splitlines() if word in line]
        assert not lines, (word, lines[0][:500])
    told = "".join(f"{subject} {text}" for subject, text in world.heard)
    for word in (KEY, *world.passwords()):
        assert word not in told, word
    theirs = tenant_permissions("beta").subscribe
    heard = [text for subject, text in world.heard if any(matches(each, subject) for each in theirs)]
    assert any('"hi"' in text for text in heard), "beta hears its own run"
    assert not [text for text in heard if any(word in text for word in (*SAID, "acme"))]
    await listening.close()
