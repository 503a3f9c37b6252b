"""`procession memory` against a real memory service, run as a user runs it but in this process."""

import asyncio
import json
import sys
from unittest.mock import Mock

import pytest

from procession_services.cli import main
from procession_services.cli.memory import memory_problems
from procession_services.memory.app import start
from procession_services.processor_host.service import hosted
from procession_services.runtime.settings import Settings
from tests.support.tiny_model import write_tiny_model

pytestmark = pytest.mark.integration
MESSAGES = [{"id": f"m{n}", "role": "user", "content": f"text {n}"} for n in range(3)]


@pytest.fixture
def command(servers, monkeypatch, capsys, tmp_path):
    """Runs commands in a thread, while the service runs in this one."""
    monkeypatch.setenv("PROCESSION_NATS_URL", servers.nats_url)
    monkeypatch.setenv("PROCESSION_REDIS_URL", servers.redis_url)
    monkeypatch.setenv("PROCESSION_TENANT", tmp_path.name.replace("_", "-"))

    async def run(*arguments):
        async with hosted("memory", Settings.load(), start):
            code = await asyncio.to_thread(main, ["memory", *arguments])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


async def test_a_file_that_is_not_there_is_told_as_other_commands_tell_it(command, tmp_path):
    absent = tmp_path / "absent.jsonl"
    assert await command("import", str(absent)) == (
        1,
        "",
        f"procession: {absent}: No such file or directory\n",
    )


async def test_a_thread_is_taken_in_shown_and_given_out(command, tmp_path):
    page = {
        "thread": {"id": "t", "resource": "r", "title": "Trip"},
        "note": "knows Ann",
        "messages": MESSAGES,
    }
    given = tmp_path / "given.jsonl"
    given.write_text(json.dumps(page))
    assert (await command("import", str(given)))[0] == 0
    assert "Trip" in (await command("threads", "r"))[1]
    shown = (await command("messages", "t", "r", "--last", "2"))[1].splitlines()
    assert [json.loads(line)["id"] for line in shown] == ["m1", "m2"]
    _, first, more = await command("messages", "t", "r", "--per-page", "2")
    assert len(first.splitlines()) == 2
    assert "3 in total: see --page 1" in more
    exported = json.loads((await command("export", "t", "r"))[1])
    assert [m["id"] for m in exported["messages"]] == ["m0", "m1", "m2"]
    assert (await command("note", "r", "--thread", "t"))[1] == "knows Ann\n"
    assert (await command("note", "r", "--set", "of all"))[0] == 0
    assert (await command("note", "r"))[1] == "of all\n"
    assert (await command("rename", "t", "r", "Voyage"))[0] == 0
    assert "Voyage" in (await command("threads", "r"))[1]
    assert json.loads((await command("thread", "t", "r"))[1])["title"] == "Voyage"
    assert json.loads((await command("create", "t2", "r", "--title", "New"))[1])["title"] == "New"
    code, _, told = await command("create", "t2", "r")
    assert (code, "THREAD_EXISTS" in told) == (1, True)
    assert (await command("delete", "t", "r"))[0] == 0
    code, _, told = await command("messages", "t", "r")
    assert (code, "UNKNOWN_THREAD" in told) == (1, True)


async def test_what_is_given_out_is_taken_in_whatever_letters_are_in_it(command, tmp_path):
    text = "one\u2028two\u0085three"
    page = {"thread": {"id": "t", "resource": "r"}, "messages": [{**MESSAGES[0], "content": text}]}
    given = tmp_path / "given.jsonl"
    given.write_text(json.dumps(page, ensure_ascii=False) + "\n", encoding="utf-8")
    assert (await command("import", str(given)))[::2] == (0, "1 message imported\n")
    [message] = json.loads((await command("export", "t", "r"))[1])["messages"]
    assert text in json.dumps(message, ensure_ascii=False)


@pytest.fixture
def shallow():
    """Python's own limit; Hypothesis leaves another one in a process that has many tests."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("[" * 5000, "RecursionError"),
        ('{"thread": {"id": "t", "resource": "r"}}', "KeyError: 'messages'"),
    ],
)
async def test_a_line_that_is_none_of_an_export_is_told(command, tmp_path, line, why):
    page = {"thread": {"id": "t", "resource": "r"}, "messages": MESSAGES}
    given = tmp_path / "given.jsonl"
    given.write_text(f"{json.dumps(page)}\n{line}\n")
    code, _, told = await command("import", str(given))
    assert (code, f"{given}:2: this is not a line of `procession memory export`: {why}" in told) == (2, True)


async def test_what_was_done_has_not_failed_because_its_terminal_is_closed(command, monkeypatch, tmp_path):
    given = tmp_path / "given.jsonl"
    given.write_text(json.dumps({"thread": {"id": "t", "resource": "r"}, "messages": MESSAGES}))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Mock(write=Mock(side_effect=OSError)))
        assert (await command("import", str(given)))[0] == 0


async def test_how_many_jobs_the_index_has_yet_to_do(command, monkeypatch, tmp_path):
    monkeypatch.setenv("PROCESSION_CHROMA_PATH", str(tmp_path / "chroma"))
    monkeypatch.setenv("PROCESSION_EMBEDDER", "lexical")
    assert (await command("index"))[:2] == (0, "0 jobs waiting\n")


async def test_reindex_without_a_vector_store_says_what_to_set(command):
    code, _, told = await command("reindex")
    assert code == 1
    assert "PROCESSION_CHROMA_URL" in told


def test_check_tells_what_semantic_recall_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # so that no weights are there
    agents = tmp_path / "agents.yaml"
    agents.write_text("agents: {a: {model: m/one, memory: {semanticRecall: true}}, b: {model: m/one}}")
    problems = memory_problems(Settings(agents=agents))
    assert [problem.path for problem in problems] == ["agents.a.memory.semanticRecall"] * 2
    assert all(problem.warning for problem in problems)
    assert "lexical fallback" in problems[1].message
    recalling = {"agents": agents, "chroma_path": tmp_path}
    assert memory_problems(Settings(**recalling, embedder="lexical")) == []
    (problem,) = memory_problems(Settings(**recalling, embedder="onnx", onnx_path=tmp_path))
    assert (problem.where, problem.warning) == ("PROCESSION_ONNX_PATH", True)
    assert f"{tmp_path / 'model.onnx'} is missing" in problem.message
    write_tiny_model(tmp_path)
    assert memory_problems(Settings(**recalling, onnx_path=tmp_path)) == []


def test_check_tells_which_agents_share_an_index_with_different_embedders(tmp_path):
    recalls = {
        "a": {},
        "b": {"embedder": "m/other"},
        "c": {"embedder": "m/other", "indexName": "others"},
        "d": {"embedder": "m/other", "indexName": "others", "embedderOptions": {"dimensions": 64}},
        "e": {"embedder": "lexical"},
    }
    agents = {name: {"model": "m/one", "memory": {"semanticRecall": each}} for name, each in recalls.items()}
    file = tmp_path / "agents.yaml"
    file.write_text(json.dumps({"agents": agents}))
    problems = memory_problems(Settings(agents=file, chroma_path=tmp_path, embedder="lexical"))
    assert [(problem.path, problem.warning) for problem in problems] == [
        ("agents.b.memory.semanticRecall", True), ("agents.d.memory.semanticRecall", True),
    ]  # fmt: skip
    assert "with agent 'a', " in problems[0].message
    assert "with agent 'c', " in problems[1].message
    automatic = memory_problems(
        Settings(agents=file, chroma_path=tmp_path, onnx_path=tmp_path, embedder="auto")
    )
    shared = [problem.path for problem in automatic if "shares its index" in problem.message]
    assert shared == ["agents.b.memory.semanticRecall", "agents.d.memory.semanticRecall"], (
        "e has what auto is"
    )
