"""Which instruction files the model is told, when, and which are never read."""

import json
import os
from typing import Any

import pytest

from procession import signals
from procession.errors import InvalidOptionsError
from procession.messages import new_message
from procession.testing import ProcessorKit, check_processor
from procession_services.processors.agents_md_injector import AgentsMDInjector, WorkspaceFiles
from procession_services.processors.core.instruction_files import absolute, shortened, touched


@pytest.fixture
def repo(tmp_path, monkeypatch):
    monkeypatch.setenv("PROCESSION_WORKSPACES", str(tmp_path / "repo"))
    for name, text in {
        "repo/AGENTS.md": "root rules",
        "repo/pkg/CLAUDE.md": "pkg rules",
        "repo/pkg/src/x.ts": "code",
        "repo/blank/AGENTS.md": " \n",
        "outside/AGENTS.md": "SECRET",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "repo"


def called(number: int, arguments: Any, state: str = "result") -> dict[str, Any]:
    result = {"result": "ok"} if state == "result" else {}
    call = {"state": state, "toolCallId": f"c{number}", "toolName": "read", "args": arguments, **result}
    return new_message("assistant", [{"type": "tool-invocation", "toolInvocation": call}], id=f"a{number}")


async def told(repo, *arguments, options=None, before=(), processor=AgentsMDInjector, steps=1):
    """Runs steps after these tool calls; returns path and text of each reminder."""
    kit = ProcessorKit(processor, {"workspace": str(repo), **(options or {})})
    messages = [new_message("user", "go", id="u"), *before]
    messages += [called(number, given) for number, given in enumerate(arguments)]
    kit.message_list.add(messages, "memory", merge=False)
    for _ in range(steps):
        await kit.input_step()
    sent = [m for m in kit.messages if m["role"] == signals.ROLE and m["id"] not in {b["id"] for b in before}]
    return [(signals.about(m)["attributes"]["path"], signals.contents(m)) for m in sent]


class TestFinding:
    async def test_the_nearest_file_above_is_told_once(self, repo):
        found = await told(repo, {"path": f"{repo}/pkg/src/x.ts"}, steps=3)
        assert found == [(f"{repo}/pkg/CLAUDE.md", "pkg rules")]

    async def test_a_relative_path_begins_at_the_workspace(self, repo):
        assert await told(repo, {"path": "pkg/src/../new.ts"}) == [(f"{repo}/pkg/CLAUDE.md", "pkg rules")]

    async def test_arguments_may_be_json_text(self, repo):
        assert await told(repo, json.dumps({"file": "pkg/src"})) == [(f"{repo}/pkg/CLAUDE.md", "pkg rules")]

    async def test_one_a_step_the_newest_call_first(self, repo):
        found = await told(repo, {"path": "new.ts"}, {"dest": "pkg/a", "path": "pkg/b"}, steps=3)
        assert [text for _, text in found] == ["pkg rules", "root rules"]

    async def test_what_is_known_or_ignored_is_not_told(self, repo):
        markup = f'<system-reminder path="{repo}/pkg/CLAUDE.md">x</system-reminder>'
        assert await told(repo, {"path": "pkg/a"}, before=[new_message("user", markup, id="m")]) == []
        noted = new_message("user", "x", id="n")
        noted["content"]["metadata"] = {"dynamicAgentsMdReminder": {"path": f"{repo}/pkg/CLAUDE.md"}}
        assert await told(repo, {"path": "pkg/a"}, before=[noted]) == []
        assert await told(repo, {"path": "pkg/a"}, options={"ignoredPaths": ["pkg/CLAUDE.md"]}) == []

    async def test_a_blank_file_is_told_by_another_text_if_there_is_one(self, repo):
        assert await told(repo, {"path": "blank/a"}) == []
        found = await told(repo, {"path": "blank/a"}, options={"reminderText": "look"})
        assert found == [(f"{repo}/blank/AGENTS.md", "look")]

    async def test_it_may_be_switched_off(self, repo):
        class Off(AgentsMDInjector):
            def is_enabled(self, args):
                return False

        assert await told(repo, {"path": "pkg/a"}, processor=Off) == []

    @pytest.mark.parametrize(
        "arguments", [None, "no json", "[1]", {"path": 3}, {"path": " "}, {"other": "pkg/a"}]
    )
    async def test_arguments_without_a_path_are_passed_over(self, repo, arguments):
        assert await told(repo, {"path": "pkg/a"}, arguments) == [(f"{repo}/pkg/CLAUDE.md", "pkg rules")]


class TestBounds:
    """D-79: nothing outside of the workspace is read."""

    @pytest.mark.parametrize(
        "path", ["../outside/AGENTS.md", "../outside/x", "/etc/passwd", "{up}/outside/x", "a\0b", "x/" * 500]
    )
    async def test_a_path_that_leads_out_tells_nothing(self, repo, path):
        found = await told(repo, {"path": path.replace("{up}", str(repo.parent))})
        assert "SECRET" not in str(found)
        assert found == []

    async def test_a_link_that_leads_out_is_not_followed(self, repo):
        (repo / "link").symlink_to(repo.parent / "outside")
        (repo / "pkg" / "AGENTS.md").symlink_to(repo.parent / "outside" / "AGENTS.md")
        assert await told(repo, {"path": "link/AGENTS.md"}) == []
        assert await told(repo, {"path": "pkg/x"}) == [(f"{repo}/pkg/CLAUDE.md", "pkg rules")]

    async def test_a_link_inside_is(self, repo):
        (repo / "alias").symlink_to(repo / "pkg")
        assert await told(repo, {"path": "alias/x"}) == [(f"{repo}/alias/CLAUDE.md", "pkg rules")]

    async def test_what_is_no_file_is_not_opened(self, repo):
        os.mkfifo(repo / "pkg" / "AGENTS.md")
        assert await told(repo, {"path": "pkg/x"}) == [(f"{repo}/pkg/CLAUDE.md", "pkg rules")]

    async def test_a_workspace_that_the_operator_does_not_allow_is_no_workspace(self, repo):
        kit = ProcessorKit(AgentsMDInjector, {"workspace": str(repo.parent)})
        kit.message_list.add([new_message("user", "q", id="u"), called(1, {"path": "outside/x"})], "memory")
        await kit.input_step()
        assert not [m for m in kit.messages if m["role"] == signals.ROLE]
        (tally,) = kit.calls.reports.values()
        assert tally.errors == 1

    def test_a_long_file_is_read_only_in_part(self, repo):
        (repo / "AGENTS.md").write_bytes(b"\xff" + b"x" * 1_000_000)
        assert len(WorkspaceFiles(str(repo)).read("AGENTS.md")) <= 256 * 1024


def test_a_text_is_cut_at_the_end_of_a_line():
    cut = shortened("one two three\nfour five six\nseven", 4)
    assert cut.startswith("one two three\n\n[truncated")
    assert shortened("short", 4) == "short"
    assert shortened("x" * 100, 2).startswith("x" * 8 + "\n\n[")


@pytest.mark.parametrize(
    ("path", "root", "expected"),
    [
        ("a/../b", "/r", "/r/b"),
        ("/a//b/", "/r", "/a/b"),
        ("//a", "/r", "/a"),
        ("C:\\a\\..\\b", "/r", "C:\\b"),
    ],
)
def test_absolute(path, root, expected):
    assert absolute(path, root) == expected


def test_unfinished_calls_touch_nothing():
    assert list(touched([called(1, {"path": "a"}, state="call")])) == []


def test_options_are_checked():
    with pytest.raises(InvalidOptionsError):
        AgentsMDInjector.build({"maxTokens": 0})


async def test_conformance():
    await check_processor(AgentsMDInjector)
