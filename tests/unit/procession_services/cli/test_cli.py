"""The command line as a user runs it, in a process of its own; services are played by tests/support/wire.py."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import nats
import pytest
from nats.js.api import AckPolicy

from procession_services.bus.streams import ensure_streams
from procession_services.cli import main
from procession_services.runtime.embedded import EmbeddedServers
from procession_services.supervisor import SERVICES
from tests.support.guarded import guarded_servers
from tests.support.interrupts import hear_interrupts
from tests.support.servers import own_servers
from tests.support.waiting import until
from tests.support.wire import services_at

NO_SERVICE = [each for service in SERVICES for each in ("--replicas", f"{service}=0")]
PROJECT = Path(__file__).parents[4] / "pyproject.toml"


@pytest.fixture
async def services(servers):
    async with services_at(servers.nats_url) as services:
        yield services


class Command:
    """A running command."""

    def __init__(self, process):
        self.process = process

    async def finished(self):
        out, err = await self.process.communicate()
        return self.process.returncode, out.decode(), err.decode()


@pytest.fixture
async def procession(servers, services):
    started = []

    async def start(*arguments, **environment):
        given = {
            **os.environ,
            "PROCESSION_NATS_URL": servers.nats_url,
            "PROCESSION_TENANT": services.tenant,
            **environment,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "procession_services", *arguments),
            env={name: value for name, value in given.items() if value is not None},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        started.append(process)
        return Command(process)

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def answered(services, **result):
    subject, request = await services.request()
    run = request["runId"]
    await services.accept(run)
    if request.get("stream", True):
        await services.chunks(run, 0, "Hel", "lo", end=True)
    await services.finish(run, **{"text": "Hello", **result})
    return subject, request


async def test_run_streams_the_text_to_stdout_and_the_summary_to_stderr(services, procession):
    command = await procession(
        "run", "Hi", "--agent", "demo", "--request-context", "n=1", "--request-context", "s=x"
    )
    subject, request = await answered(services)
    code, out, err = await command.finished()
    assert (code, out) == (0, "Hello\n")
    assert f"finished (stop); 0 steps, retries: 0; run {request['runId']}" in err
    assert subject == f"procession.v1.run.{services.tenant}.demo"
    assert request["requestContext"] == {"n": 1, "s": "x"}


async def test_run_without_stream_prints_the_result_at_the_end(services, procession):
    command = await procession(
        "run",
        "Hi",
        "--agent",
        "demo",
        "--no-stream",
        "--thread",
        "t",
        "--resource",
        "ann",
        "--run-id",
        "mine",
    )
    _, request = await answered(services)
    assert (await command.finished())[:2] == (0, "Hello\n")
    assert (request["stream"], request["runId"]) == (False, "mine")
    assert request["memory"] == {"thread": "t", "resource": "ann"}


async def test_run_says_after_a_while_that_nobody_has_accepted_it(services, procession):
    command = await procession("run", "Hi", "--agent", "demo", "--run-id", "mine")
    _, request = await services.request()
    said = await command.process.stderr.readline()
    assert said.startswith(
        b"run mine is stored, but no service has accepted it yet: are the services running? "
    )
    assert b"`procession check --deploy` tells" in said
    await services.accept(request["runId"])
    await services.finish(request["runId"], text="Hello")
    assert (await command.finished())[0] == 0


async def test_json_gives_one_value_a_line(services, procession):
    command = await procession("run", "Hi", "--agent", "demo", "--json")
    await answered(services)
    code, out, _ = await command.finished()
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [line["type"] for line in lines] == ["text-delta", "text-delta", "result"]
    assert lines[-1]["result"]["text"] == "Hello"


async def test_a_reader_that_has_had_enough_is_no_error(services, procession):
    command = await procession("run", "Hi", "--agent", "demo", "--json")
    _, request = await services.request()
    run = request["runId"]
    await services.accept(run)
    await services.chunks(run, 0, "first")
    await command.process.stdout.readline()
    command.process._transport.get_pipe_transport(1).close()
    await services.chunks(run, 1, *(["x" * 100] * 2000), end=True)
    await services.finish(run, "Hello")
    assert await command.process.stderr.read() == b""
    assert await command.process.wait() == 130


@pytest.mark.parametrize(("status", "code"), [("blocked", 3), ("failed", 1), ("cancelled", 130)])
async def test_the_exit_code_tells_how_the_run_ended(services, procession, status, code):
    command = await procession("run", "Hi", "--agent", "demo")
    await answered(services, status=status)
    assert (await command.finished())[0] == code


async def test_ctrl_c_cancels_the_run_and_shows_what_there_was(services, procession):
    command = await procession("run", "Hi", "--agent", "demo")
    _, request = await services.request()
    run = request["runId"]
    await services.chunks(run, 0, "Hel")
    assert await command.process.stdout.read(3) == b"Hel"
    command.process.send_signal(signal.SIGINT)
    assert await services.control() == {"type": "cancel"}
    await services.chunks(run, 1, "lo", end=True)
    await services.finish(run, "Hello", status="cancelled")
    code, out, err = await command.finished()
    assert (code, out) == (130, "lo\n")
    assert "cancelling the run" in err


async def test_attach_shows_a_run_that_somebody_started(services, procession):
    await services.accept("somebodys")
    await services.chunks("somebodys", 0, "Hel", "lo", end=True)
    await services.finish("somebodys", "Hello")
    command = await procession("attach", "somebodys", "--after", "1")
    assert (await command.finished())[:2] == (0, "lo\n")


@pytest.mark.parametrize("after", ["0", "3"])
async def test_attach_shows_the_result_of_a_run_that_sends_no_chunks(services, procession, after):
    await services.accept("quiet", stream=False)
    await services.finish("quiet", "Hello")
    command = await procession("attach", "quiet", "--after", after)
    code, out, err = await command.finished()
    assert (code, out) == (0, "Hello\n")
    assert "lost" not in err


async def test_ctrl_c_leaves_the_run_alone_that_somebody_else_started(services, procession):
    await services.accept("somebodys")
    await services.chunks("somebodys", 0, "Hel")
    command = await procession("attach", "somebodys")
    assert await command.process.stdout.read(3) == b"Hel"
    command.process.send_signal(signal.SIGINT)
    code, _, err = await command.finished()
    assert (code, err) == (130, "\nthe run continues; `procession cancel somebodys` ends it\n")
    await procession("cancel", "another")
    assert (await services._controls.get()).subject.endswith(".another"), "the first one that came"


async def test_cancel_reaches_the_run(services, procession):
    await services.accept("somebodys")
    command = await procession("cancel", "somebodys")
    assert await services.control() == {"type": "cancel"}
    assert await command.finished() == (0, "", "asked to cancel somebodys\n")


async def test_cancel_says_that_the_run_has_ended_before(services, procession):
    await services.accept("somebodys")
    await services.finish("somebodys", text="Hello")
    command = await procession("cancel", "somebodys")
    said = "asked to cancel somebodys, but it has ended already: finished\n"
    assert await command.finished() == (0, "", said)


async def test_cancel_asks_where_the_last_request_of_that_name_was_refused(services, procession):
    error = {"code": "RATE_LIMITED", "message": "too many", "retryAfter": 1.0}
    await services.event("somebodys", "request.rejected", error=error, sequence=7)
    command = await procession("cancel", "somebodys")
    assert await command.finished() == (0, "", "asked to cancel somebodys\n")


async def test_cancel_says_where_nothing_is_known_of_the_run(services, procession):
    command = await procession("cancel", "misspelt")
    assert await services.control() == {"type": "cancel"}
    code, _, err = await command.finished()
    assert code == 1, "as of `attach`"
    assert err.startswith("asked to cancel misspelt, but no event of run misspelt")
    assert "kept for a day (PROCESSION_CONTEXT_TTL), and cancels a run that starts under this id" in err


def test_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (
        0,
        f"procession {metadata.version('procession')}\n",
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["approve", "RUN", "c1"], {"approved": True}),
        (["decline", "RUN", "c1", "--reason", "no"], {"approved": False, "reason": "no"}),
        (["resume", "RUN", "c1", '{"day": 1}'], {"resumeData": {"day": 1}}),
    ],
)
async def test_decisions_reach_a_run_that_waits(services, procession, arguments, said):
    await services.suspend("waits", "c1", fence=1)
    command = await procession(*("waits" if each == "RUN" else each for each in arguments))
    assert await services.control() == {"type": "resume", "toolCallId": "c1", "fence": 1, **said}
    assert (await command.finished())[0] == 0


async def test_a_decision_that_nobody_waits_for_is_one_clear_line(services, servers, monkeypatch, capsys):
    monkeypatch.setattr("procession.client.handle._SUSPENSION_SECONDS", 0.5)
    await services.suspend("waits", "c1", fence=1)
    where = "--nats-url", servers.nats_url, "--tenant", services.tenant
    code = await asyncio.to_thread(main, ["approve", "waits", "c2", *where])
    told = "procession: run waits is not waiting for a decision on c2: it is waiting for c1\n"
    assert (code, capsys.readouterr().err) == (1, told)


async def test_a_service_says_where_it_does_not_find_nats(procession):
    command = await procession("serve", "tools", PROCESSION_NATS_URL="nats://ann:secret@127.0.0.1:9")
    line = (await command.process.stderr.readline()).decode()
    assert "NATS at nats://127.0.0.1:9: ConnectionRefusedError" in line


async def test_a_server_that_is_not_there_is_one_clear_line(procession):
    command = await procession("run", "Hi", "--agent", "demo", PROCESSION_NATS_URL="nats://127.0.0.1:9")
    code, out, err = await command.finished()
    assert (code, out) == (1, "")
    assert err.startswith("procession: cannot reach NATS at nats://127.0.0.1:9")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("run", "Hi", "--agent", "a"),
            "no stream at {} accepts procession.v1.run.{}.a (are the services running? ",
        ),
        (("attach", "r1"), "the streams at {} do not answer: are the services running?\n"),
        (("approve", "r1", "c1"), "the streams at {} do not answer: are the services running?\n"),
        (("cancel", "r1"), "no stream at {} accepts procession.v1.control.{}.r1 (are the services running? "),
    ],
)
async def test_a_command_says_soon_what_it_waits_for(procession, tmp_path, arguments, told):
    async with EmbeddedServers(tmp_path, redis=False) as servers:
        url = servers.endpoints.nats_url
        command = await procession(*arguments, PROCESSION_NATS_URL=url, PROCESSION_TENANT="t")
        line = (await command.process.stderr.readline()).decode()
        assert command.process.returncode is None
    assert line.startswith(f"procession: waiting: {told.format(url, 't')}")


async def test_who_follows_a_run_is_told_once_that_nats_is_away(procession, tmp_path):
    async with EmbeddedServers(tmp_path, redis=False) as servers:
        url = servers.endpoints.nats_url
        async with services_at(url) as services:
            where = {"PROCESSION_NATS_URL": url, "PROCESSION_TENANT": services.tenant}
            command = await procession("run", "Hi", "--agent", "a", **where)
            run = (await services.request())[1]["runId"]
            await services.accept(run)
            await services.chunks(run, 0, "Hel")
            assert await command.process.stdout.read(3) == b"Hel"
            servers.kill_nats()
            line = (await command.process.stderr.readline()).decode()
            assert line.startswith(f"procession: waiting: NATS at {url} cannot be reached (")
            assert line.endswith("): is it running?\n")
            await servers.restart_nats()
            await until(lambda: services.nats.is_connected)
            await services.chunks(run, 1, "lo", end=True)
            await services.finish(run, text="Hello")
            code, out, err = await command.finished()
    assert (code, out) == (0, "lo\n")
    assert "waiting" not in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "Hi", "--agent", "demo", "--run-id", "not a token"], "procession: run_id: "),
        (["run", "Hi", "--agent", "two words"], "procession: agent 'two words' must be"),
        (["cancel", "not a token"], "procession: run id 'not a token' must be 1 to 128 "),
    ],
)
async def test_a_name_that_cannot_be_one_is_told(procession, arguments, told):
    code, _, err = await (await procession(*arguments)).finished()
    assert code == 2
    assert err.startswith(told)
    assert len(err.splitlines()) == 1


async def test_up_says_which_keys_its_models_lack(servers, procession, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "agents.yaml").write_text("agents: {a: {model: openai/gpt-4o-mini}}")
    command = await procession(
        "up", "--embedded", "--agents", str(tmp_path / "agents.yaml"),
        PROCESSION_REDIS_URL=servers.redis_url,
    )  # fmt: skip
    while not (line := await command.process.stderr.readline()).startswith(b"warning"):
        assert line
    assert line.startswith(b"warning: models: openai/gpt-4o-mini: needs OPENAI_API_KEY")
    command.process.terminate()
    assert (await command.finished())[0] == 0


async def test_up_takes_a_redis_that_is_named_alone(servers, procession, tmp_path):
    (tmp_path / "agents.yaml").write_text("agents: {a: {model: m/x}}")
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"redis_url: {servers.redis_url}\nagents: {tmp_path / 'agents.yaml'}")
    command = await procession("up", "--config", str(settings), *NO_SERVICE, PROCESSION_NATS_URL=None)
    while not (line := (await command.process.stderr.readline()).decode()).startswith("ready"):
        assert line
    assert servers.nats_url not in line
    assert f"Redis {servers.redis_url};" in line
    command.process.terminate()
    assert (await command.finished())[0] == 0


async def test_up_with_a_nats_of_ones_own_says_where_it_expects_redis(servers, procession, tmp_path):
    (tmp_path / "agents.yaml").write_text("agents: {a: {model: m/x}}")
    agents = ("--agents", str(tmp_path / "agents.yaml"))
    command = await procession("up", *agents, *NO_SERVICE, PROCESSION_REDIS_URL=None)
    line = (await command.process.stderr.readline()).decode()
    told = "expecting it at redis://127.0.0.1:6379/0 (PROCESSION_REDIS_URL)\n"
    assert line == f"NATS is named, so Redis is not started either: {told}"
    command.process.terminate()
    assert (await command.finished())[0] == 0


async def test_up_shows_no_password_of_a_server(servers, procession, tmp_path):
    (tmp_path / "agents.yaml").write_text("agents: {a: {model: m/x}}")
    nats_url, redis_url = (url.replace("://", "://:hidden@") for url in (servers.nats_url, servers.redis_url))
    urls = ("--nats-url", nats_url.replace("://", "://me"), "--redis-url", redis_url)
    command = await procession("up", "--agents", str(tmp_path / "agents.yaml"), *urls, *NO_SERVICE)
    said = ""
    while "procession run" not in said:
        line = (await command.process.stderr.readline()).decode()
        assert line, said
        said += line
    assert f"ready; NATS {servers.nats_url}, Redis {servers.redis_url};" in said
    assert f"  export PROCESSION_NATS_URL={servers.nats_url}  # with user and password" in said
    command.process.terminate()
    assert "hidden" not in said + (await command.finished())[2]


async def test_up_hands_its_settings_file_on_to_the_services(servers, procession, tmp_path):
    (tmp_path / "agents.yaml").write_text("agents: {a: {model: m/x, inputProcessors: [question-check]}}")
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        "plugins: procession_services.demo.processors"
    )  # without, nobody knows question-check
    others = ("input_processors", "llm_gateway", "output_processors", "error_recovery", "memory", "tools")
    left_out = [each for service in others for each in ("--replicas", f"{service}=0")]
    command = await procession(
        "up", "--config", str(settings), "--agents", str(tmp_path / "agents.yaml"), *left_out,
        PROCESSION_REDIS_URL=servers.redis_url,
    )  # fmt: skip
    said = ""
    while "procession run" not in said:
        line = (await command.process.stderr.readline()).decode()
        assert line, said
        said += line
    assert said.endswith(" --agent a\n")
    command.process.terminate()
    assert (await command.finished())[0] == 0


def test_up_says_what_is_wrong_with_the_agents_and_starts_nothing(tmp_path, capsys):
    path = tmp_path / "agents.yaml"
    path.write_text("agents: {a: {modell: m/x}}")
    assert main(["up", "--agents", str(path)]) == 2
    assert "starting" not in (told := capsys.readouterr().err)
    assert f"{path}:1: agents.a.modell: unknown key" in told


def test_up_says_once_what_components_refuse_and_starts_nothing(tmp_path, capsys):
    path = tmp_path / "agents.yaml"
    path.write_text("agents: {a: {model: m/x, inputProcessors: [unicode-normaliser]}}")
    assert main(["up", "--agents", str(path)]) == 2
    told = f"{path}:1: agents.a.inputProcessors.0.id: unknown processor 'unicode-normaliser'; did you mean "
    assert capsys.readouterr().err == f"procession: {told}'unicode-normalizer'?\n"


def test_up_says_which_plugin_is_missing(tmp_path, capsys, monkeypatch):
    path = tmp_path / "agents.yaml"
    path.write_text("agents: {a: {model: m/x}}")
    monkeypatch.setenv("PROCESSION_PLUGINS", "not_there")
    assert main(["up", "--agents", str(path)]) == 2
    assert capsys.readouterr().err.startswith("procession: plugin not_there: there is no module not_there")
    assert main(["processors"]) == 2
    assert capsys.readouterr().err.startswith("procession: plugin not_there: there is no module not_there")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("PLUGINS", "plugin wrong: there is no module wrong"),
        ("TENANTS", "wrong: cannot be read"),
        ("TLS_CA", "PROCESSION_TLS_CA: cannot use wrong"),
        ("REDIS_PASSWORD_FILE", "PROCESSION_REDIS_PASSWORD_FILE: cannot read wrong"),
    ],
)
def test_up_says_what_its_services_would_refuse_and_starts_nothing(capsys, monkeypatch, name, told):
    monkeypatch.setenv(f"PROCESSION_{name}", "wrong")
    assert main(["up"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"procession: {told}")


def without(module, *arguments):
    """Runs a command where a module is not installed."""
    program = f"import sys; sys.modules[{module!r}] = None\nfrom procession_services.cli import main\nsys.exit(main())"
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_check_without_the_libraries_of_the_gateway_checks_all_but_the_names_of_models(tmp_path):
    path = tmp_path / "agents.yaml"
    path.write_text("agents: {a: {model: nosuch/model, inputProcessors: [nonsense]}}")
    checked = without("aiohttp", "check", "--agents", str(path))
    assert (checked.returncode, checked.stderr) == (2, "problems: 1\n")
    warning, wrong = checked.stdout.splitlines()
    assert "procession[llm-gateway]" in warning
    assert "unknown processor 'nonsense'" in wrong


def test_a_service_without_its_libraries_says_which(tmp_path):
    served = without("aiohttp", "serve", "llm_gateway")
    assert (served.returncode, served.stdout) == (2, "")
    [told] = served.stderr.splitlines()
    assert told.startswith("procession: the Python module aiohttp is not installed")


def test_check_lists_what_is_wrong_and_says_so_in_its_exit_code(tmp_path, capsys):
    path = tmp_path / "agents.yaml"
    path.write_text("agents: {a: {model: m/x, inputProcesors: []}}")
    assert main(["check", "--no-models", "--agents", str(path)]) == 2
    assert capsys.readouterr().out == (
        f"{path}:1: agents.a.inputProcesors: unknown key; did you mean 'inputProcessors'?\n"
    )
    path.write_text("agents: {a: {model: m/x}}")
    assert main(["check", "--no-models", "--agents", str(path)]) == 0


async def test_check_knows_the_providers_of_models(procession, tmp_path):
    path = tmp_path / "agents.yaml"
    path.write_text(
        "agents: {a: {model: openai/gpt-4o-mini}, b: {model: opnai/gpt-4o-mini}, c: {model: gpt-4o}}"
    )
    code, out, _ = await (await procession("check", "--agents", str(path))).finished()
    assert code == 2
    assert [line.split(": ")[1] for line in out.splitlines()] == ["agents.b.model", "agents.c.model"]


def test_processors_are_listed_with_their_hooks(capsys, monkeypatch):
    monkeypatch.setenv("PROCESSION_PLUGINS", "procession_services.demo.processors")
    assert main(["processors"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["email-redactor", "processOutputStream"] for line in lines)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
async def test_letters_that_stdout_does_not_take_are_escaped(services, procession, encoding):
    command = await procession("run", "Hi", "--agent", "demo", PYTHONIOENCODING=encoding)
    _, request = await services.request()
    await services.accept(run := request["runId"])
    await services.chunks(run, 0, "5 \u20ac, \U0001f600", end=True)
    await services.finish(run, "5 \u20ac, \U0001f600")
    assert (await command.finished())[:2] == (0, "5 \\u20ac, \\U0001f600\n")


async def test_json_is_json_where_stdout_does_not_take_every_letter(services, procession):
    command = await procession("run", "Hi", "--agent", "demo", "--json", PYTHONIOENCODING="ascii")
    _, request = await services.request()
    await services.accept(run := request["runId"])
    await services.chunks(run, 0, "\xe9 \U0001f600", end=True)
    await services.finish(run, "\xe9 \U0001f600")
    _, out, _ = await command.finished()
    assert json.loads(out.splitlines()[-1])["result"]["text"] == "\xe9 \U0001f600"


async def test_a_text_that_is_not_utf_8_is_one_clear_line(procession):
    command = await procession("run", os.fsdecode(b"\xff"), "--agent", "demo")
    code, _, err = await command.finished()
    assert code == 2
    assert err.startswith("procession: the text of the request is not UTF-8: ")
    assert len(err.splitlines()) == 1


DEEP = "[" * 5000 + "]" * 5000


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("9" * 30, "procession: request['requestContext']['k'] is an integer of more than 64 bits"),
        ("[" * 150 + "]" * 150, "procession: request['requestContext']['k'][0][0]"),
        (os.fsdecode(b"\xff"), "procession: request['requestContext']['k'] contains half a character"),
        (DEEP, f"procession run: error: argument --request-context: '{DEEP[:20]}...' is nested too deeply"),
    ],
    ids=["long", "deep", "not UTF-8", "deeper"],
)
async def test_what_cannot_travel_is_one_clear_line(procession, value, told):
    command = await procession("run", "Hi", "--agent", "demo", "--request-context", f"k={value}")
    code, _, err = await command.finished()
    assert code == 2
    assert err.splitlines()[-1].startswith(told)
    assert "Traceback" not in err


async def test_what_python_takes_for_a_number_and_json_does_not_is_text(services, procession):
    command = await procession("run", "Hi", "--agent", "demo", "--request-context", "k=NaN")
    _, request = await answered(services)
    assert request["requestContext"] == {"k": "NaN"}
    assert (await command.finished())[0] == 0


async def test_the_pace_of_the_demo_model_can_be_chosen(procession):
    server = (await procession("model", "--port", "0", "--pace-ms", "200")).process
    port = json.loads(await server.stdout.readline())["port"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "Hi"}], "stream": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    loop = asyncio.get_running_loop()
    asked = loop.time()
    writer.write(f"{head}{body}".encode())
    async with asyncio.timeout(10):
        assert b" 200 " in await reader.readline()
        heard: list[float] = []
        while len(heard) < 5:
            if (await reader.readline()).startswith(b"data: "):
                heard.append(loop.time())
    writer.close()
    assert heard[-1] - asked > 0.6  # it would be a tenth of it at its own pace


async def test_a_port_that_is_taken_is_one_clear_line(servers, procession):
    port = servers.nats_url.rpartition(":")[2]
    code, _, err = await (await procession("model", "--port", port)).finished()
    assert code == 2
    assert "choose another --host or --port" in err
    assert len(err.splitlines()) == 1


async def test_somebody_elses_consumer_of_our_work_is_one_clear_line(procession, tmp_path):
    async with own_servers(tmp_path) as servers:
        async with await nats.connect(servers.endpoints.nats_url) as client:
            js = client.jetstream()
            await ensure_streams(js)
            await js.add_consumer("WORK", durable_name="nosy", ack_policy=AckPolicy.EXPLICIT)
        urls = {
            "PROCESSION_NATS_URL": servers.endpoints.nats_url,
            "PROCESSION_REDIS_URL": servers.endpoints.redis_url,
        }
        command = await procession("serve", "tools", **urls)
        code, _, err = await command.finished()
    assert code == 1
    [told] = err.splitlines()
    assert told.startswith("procession: JetStream reports an error: ")
    assert told.endswith("delete that consumer")


async def test_a_directory_that_cannot_be_one_is_one_clear_line(procession, tmp_path):
    (tmp_path / "file").write_text("")
    command = await procession("up", "--embedded", "--data", str(tmp_path / "file"))
    code, _, err = await command.finished()
    assert code == 1
    assert err.splitlines()[-1].startswith(f"procession: cannot keep data in {tmp_path / 'file'}: ")


async def test_a_wrong_password_for_nats_is_one_clear_line(procession, tmp_path):
    async with guarded_servers(tmp_path) as guarded:
        command = await procession("serve", "tools", PROCESSION_NATS_URL=guarded.nats_url)
        code, _, err = await command.finished()
        client = await procession("run", "Hi", "--agent", "a", PROCESSION_NATS_URL=guarded.nats_url)
        assert (await client.finished())[2].endswith(
            "(nats: 'Authorization Violation'): are the user and password correct?\n"
        )
    assert code == 1
    assert err.splitlines()[-1].startswith(
        "procession: NATS reports an error: nats: 'Authorization Violation'; "
    )
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "Hi"], "--agent"),
        (["model", "--port", "99999"], "'99999' is not a port from 0 to 65535"),
        (["model", "--pace-ms", "-1"], "'-1' is not a number of milliseconds of at least 0"),
        (["model", "--pace-ms", "fast"], "'fast' is not a number of milliseconds of at least 0"),
        (["model", "--pace-ms", "inf"], "'inf' is not a number of milliseconds of at least 0"),
        (["run", "Hi", "--agent", "a", "--request-context", "novalue"], "'novalue' is not KEY=VALUE"),
        (["resume", "r", "c", "NaN"], "'NaN' is not JSON: JSON has no NaN"),
        (["resume", "r", "c", DEEP], "is nested too deeply"),
        (["up", "--replicas", "toolz=2"], "unknown service 'toolz'"),
        (["up", "--replicas", "tools"], "'tools' is not SERVICE=N, such as output_processors=3"),
        (
            ["run", "Hi", "--agent", "a", "--tread", "t"],
            "procession run: error: unrecognized arguments: --tread t",
        ),
        (["run", "Hi", "--agent", "a", "--tread=t"], "--tread=t; did you mean --thread?\n"),
        (["run", "Hi", "you", "--agent", "a"], "unrecognized arguments: you\n"),
        (["memory", "threads", "r", "--pages", "1"], "--pages 1; did you mean --page?\n"),
        (["dead", "list", "--secret=x", "--deploy"], "unrecognized arguments: --deploy\n"),
        (["up", "--replicas", "tools=many"], "must be a whole number of at least 0"),
        (["up", "--replicas", "tools=true"], "must be a whole number of at least 0"),
        (["serve", "toolz"], "invalid choice"),
        (["attach", "r1", "--after", "-3"], "argument --after: '-3' is not a number of at least 0\n"),
        (["attach", "r1", "--after", "9" * 5000], f"'{'9' * 20}' is not a number of at least 0\n"),
        (["memory", "messages", "t", "r", "--last", "0"], "--last: '0' is not a number from 1 to 1000\n"),
        (["memory", "threads", "r", "--page", "-1"], "--page: '-1' is not a number from 0 to 2147483647\n"),
        (["memory", "threads", "r", "--per-page", "x"], "--per-page: 'x' is not a number from 1 to 1000\n"),
        (["dead", "show", "-1"], "NUMBER: '-1' is not a number from 1 to 18446744073709551615\n"),
        (["resume", "r1", "c1", "Monday"], "'Monday' is not JSON"),
        ([], "COMMAND"),
    ],
)
def test_wrong_usage(arguments, told, capsys):
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    assert told in capsys.readouterr().err


def test_a_thread_needs_a_resource(capsys):
    assert main(["run", "Hi", "--agent", "a", "--thread", "t"]) == 2
    assert "--resource" in capsys.readouterr().err


def test_an_unknown_setting_is_named(capsys, monkeypatch):
    monkeypatch.setenv("PROCESSION_NAST_URL", "x")
    assert main(["processors"]) == 2
    assert "PROCESSION_NAST_URL" in capsys.readouterr().err


EARLY = """
import importlib, os, signal, sys

class Impatient:
    def find_spec(self, name, path, target=None):
        if name == "pydantic":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Impatient())
module, function = sys.argv.pop(1).split(":")
sys.exit(getattr(importlib.import_module(module), function)())
"""


def test_ctrl_c_is_quiet_before_the_command_has_begun():
    script = tomllib.loads(PROJECT.read_text())["project"]["scripts"]["procession"]
    command = [sys.executable, "-c", EARLY, script, "processors"]
    done = subprocess.run(command, capture_output=True, check=False, preexec_fn=hear_interrupts)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_ctrl_c_that_is_nothing_to_a_command_in_the_background_is_nothing_to_it_early():
    script = tomllib.loads(PROJECT.read_text())["project"]["scripts"]["procession"]
    background = [
        "sh",
        "-c",
        'trap "" INT; exec "$@"',
        "sh",
        sys.executable,
        "-c",
        EARLY,
        script,
        "--version",
    ]
    done = subprocess.run(background, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def run_on(stdout, stderr, *arguments):
    command = [sys.executable, "-m", "procession_services", *arguments]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=buffered, check=False
    )


def test_what_a_closed_terminal_does_not_take_changes_no_exit_code():
    ours, theirs = os.openpty()
    os.close(ours)
    assert run_on(theirs, theirs, "check", "--agents", "none.yaml").returncode == 1
    os.close(theirs)


def test_a_reader_who_has_had_enough_interrupts():
    reader, writer = os.pipe()
    os.close(reader)
    done = run_on(writer, subprocess.PIPE, "processors")
    os.close(writer)
    assert (done.returncode, done.stderr) == (130, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux alone has a device that is always full")  # noqa: PTH110 - no path of ours
def test_results_that_cannot_be_written_are_a_failure():
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = run_on(full, subprocess.PIPE, "processors")
    assert (done.returncode, done.stderr) == (1, b"procession: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "code"), [(["processors"], 0), (["check", "--agents", "none.yaml"], 2)]
)
def test_a_command_does_its_work_where_everything_is_closed(arguments, code):
    command = [sys.executable, "-m", "procession_services", *arguments]
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    assert subprocess.run(closed, check=False).returncode == code


def test_a_terminal_is_shown_control_characters(tmp_path):
    ours, theirs = pty.openpty()
    agents = tmp_path / "a.yaml"
    agents.write_text('agents: {"\\e[31mred\\tgreen": {model: openai/x}}')
    command = [sys.executable, "-m", "procession_services", "check", "--agents", str(agents)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        with os.fdopen(ours, "rb") as terminal:
            told = terminal.readline().decode()
    assert process.returncode == 2
    assert "\x1b" not in told
    assert r"agents.\x1b[31mred" in told
