"""A changed agents file counts for new runs, without a restart; what runs keeps what it began with."""

import asyncio
import hashlib
import json
import logging
import signal

import pytest
import pytest_asyncio
import yaml

from procession_services.bus.operator import Operator
from procession_services.cli import main
from procession_services.deploy.check import ask_services
from procession_services.processor_host import admin
from procession_services.runtime.access import Access
from tests.support.system import SERVICES, finished, running_system

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

CALL = {"tool_calls": [{"id": "c1", "name": "send-mail", "arguments": {"to": "ann"}}]}
DONE = {"chunks": ["ticket 1"]}


class Agents:
    """An agents file, and the orchestrators that read it."""

    def __init__(self, system, file):
        self.system, self.file = system, file

    def write(self, word, *, model="", more="", processors=()):
        """Replaces the file, as editors do; the agent `told` says `word` for ticket."""
        rules = [{"name": "t", "pattern": "ticket", "replacement": word}]
        redact = {"id": "regex-filter", "options": {"rules": rules, "strategy": "redact", "phase": "output"}}
        agent = {"model": model or self.system.script(*[DONE] * 9), "tools": ["send-mail"],
                 "inputProcessors": list(processors), "outputProcessors": [redact]}  # fmt: skip
        self.put(yaml.safe_dump({"agents": {"told": agent}}) + more)

    def put(self, text):
        new = self.file.with_name("new.yaml")
        new.write_text(text)
        new.replace(self.file)

    async def statuses(self, operation="status"):
        operator = await Operator.connect(self.system.servers.nats_url, Access())
        try:
            told = await ask_services(operator, operation)
        finally:
            await operator.close()
        return [status for status in told if "agents" in status.configuration]

    async def until(self, condition):
        """Waits until both orchestrators are so."""
        async with asyncio.timeout(60):
            found = await self.statuses()
            while not all(map(condition, found)):
                found = await self.statuses()
        assert len(found) == 2
        return found

    @property
    def digest(self):
        return hashlib.sha256(self.file.read_bytes()).hexdigest()[:12]

    async def taken(self):
        """Waits until what is in the file now counts everywhere; gives its digest."""
        await self.until(lambda status: status.configuration["agents"] == self.digest)
        return self.digest

    async def says(self):
        result, _ = await finished(await self.system.client.start("Hello", agent="told"))
        return result.text


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def agents(servers, tmp_path_factory, monkeypatch_module):
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    monkeypatch_module.setattr(admin, "_LOOK_SECONDS", 0.05)
    directory = tmp_path_factory.mktemp("agents")
    async with running_system(servers, directory) as system:
        agents = Agents(system, directory / "agents.yaml")
        agents.write("first")
        async with (
            system.inside(*SERVICES, agents=agents.file),
            system.inside("orchestrator", agents=agents.file),
        ):
            yield agents


async def test_every_replica_notices_a_changed_file_by_itself(agents):
    agents.write("before")
    before = await agents.taken()
    assert await agents.says() == "before 1"
    agents.write("after")
    assert await agents.taken() != before
    assert [await agents.says() for _ in range(4)] == ["after 1"] * 4


async def test_an_orchestrator_says_which_settings_of_its_agents_are_not_sent(agents, caplog):
    agents.write("said", more="  odd: {model: openai/x, modelSettings: {temperatur: 1}}\n")
    await agents.taken()
    told = "agents.odd.modelSettings.temperatur: warning: unknown setting, which is not sent"
    assert sum(told in record.getMessage() for record in caplog.records) == 2, "each of both"


async def test_a_run_in_flight_keeps_what_it_started_with(agents):
    gate, model = agents.system.gate(), agents.system.script(DONE)
    agents.write("began", model=model, processors=[gate.processor("processInput")])
    await agents.taken()
    handle = await agents.system.client.start("Hello", agent="told")
    await gate.reached()
    agents.write("later")
    await agents.taken()
    assert await agents.says() == "later 1"
    await gate.open()
    result, _ = await finished(handle)
    assert (result.text, len(agents.system.requests(model))) == ("began 1", 1)


async def test_a_run_that_waits_for_a_person_keeps_what_it_started_with(agents):
    agents.write("asked", model=agents.system.script(CALL, DONE))
    await agents.taken()
    handle = await agents.system.client.start("Hello", agent="told")
    assert (await handle.result(timeout=20)).status == "suspended"
    agents.write("since")
    await agents.taken()
    await handle.approve("c1")
    assert (await handle.result(timeout=20)).text == "asked 1"
    assert await agents.says() == "since 1"
    await handle.close()


@pytest.mark.parametrize(
    ("text", "where", "told"),
    [
        ("agents: {told: {modl: x}}", "agents.told.modl", "did you mean 'model'?"),
        ("agents: {told: {model: m/x, outputProcessors: [uper]}}", "agents.told.outputProcessors.0.id",
         "did you mean 'upper'?"),
        ("agents: {told: {model: m/x, inputProcessors: [{id: say, options: {wort: x}}]}}",
         "agents.told.inputProcessors.0.options.wort", "did you mean 'word'?"),
        ("agents: [", "", "is not YAML"),
    ],
)  # fmt: skip
async def test_a_wrong_file_is_refused_as_a_whole_and_told(agents, caplog, text, where, told):
    agents.write("good")
    before = await agents.taken()
    caplog.set_level(logging.ERROR)
    agents.put(text)
    found = await agents.until(lambda status: any(told in each.message for each in status.findings))
    assert {status.configuration["agents"] for status in found} == {before}
    assert {each.path for status in found for each in status.findings if told in each.message} == {where}
    assert await agents.says() == "good 1"
    assert any("is rejected, the previous agents stay in effect" in r.getMessage() for r in caplog.records)
    agents.write("mended")
    await agents.until(lambda status: not status.findings)
    assert await agents.says() == "mended 1"


async def test_a_file_that_is_gone_is_told(agents):
    agents.file.unlink()
    await agents.until(lambda status: any("cannot be read" in each.message for each in status.findings))
    agents.write("back")
    await agents.until(lambda status: not status.findings)


async def test_reload_reads_the_files_at_once_and_says_what_counts(agents, monkeypatch, capsys):
    monkeypatch.setenv("PROCESSION_NATS_URL", agents.system.servers.nats_url)
    agents.write("asked for")
    assert await asyncio.to_thread(main, ["reload"]) == 0
    rows = capsys.readouterr().out.splitlines()
    digest = agents.digest
    assert [row.split()[0] for row in rows if digest in row] == ["orchestrator"] * 2
    assert await agents.says() == "asked for 1"
    agents.put("agents: {told: {modl: x}}")
    assert await asyncio.to_thread(main, ["reload"]) == 1
    assert "did you mean 'model'?" in capsys.readouterr().out
    agents.write("mended")
    await agents.statuses("reload")


async def test_a_hang_up_signal_reads_the_files_anew(agents, tmp_path):
    """A Python file that reads another one: its own content stays, so only the signal can be the cause."""
    word, file = tmp_path / "model.txt", tmp_path / "agents.py"
    word.write_text("openai/one")
    file.write_text(
        f"import pathlib\nagents = [{{'name': 'a', 'model': pathlib.Path({str(word)!r}).read_text()}}]"
    )
    process = agents.system.process("orchestrator", agents=file, log_level="INFO")
    await process.start()
    try:
        ready = await process.ready()
        word.write_text("openai/two")
        process.process.send_signal(signal.SIGHUP)
        await process.says("were reloaded")
        found = {status.replica: status for status in await agents.statuses()}[ready["replica"]]
        assert [use.model for use in found.models] == ["openai/two"]
        assert await process.terminate() == 0
    finally:
        await process.stop()


async def test_a_service_does_not_start_with_a_wrong_file(agents, tmp_path):
    file = tmp_path / "agents.yaml"
    file.write_text(json.dumps({"agents": {"a": {"model": "m/x", "inputProcessors": ["sayy"]}}}))
    process = agents.system.process("orchestrator", agents=file)
    await process.start()
    assert await process.ended() == 2
    said = process.logged()
    assert "agents.a.inputProcessors.0.id: unknown processor 'sayy'; did you mean 'say'?" in said
    assert "Traceback" not in said
