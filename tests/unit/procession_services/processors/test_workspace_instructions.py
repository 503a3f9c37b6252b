"""`workspace-instructions-processor` (R-SK-6); the vectors cover getters of one's own."""

import pytest

from procession.errors import InvalidOptionsError, ProcessorError
from procession.testing import ProcessorKit
from procession_services.processors.workspace import ROOTS
from procession_services.processors.workspace_instructions import MAX_FILE, WorkspaceInstructions


def told(outcome):
    return [message["content"] for message in outcome.system]


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv(ROOTS, str(tmp_path))
    return tmp_path


async def test_a_file_is_read_at_every_step(root):
    kit = ProcessorKit(WorkspaceInstructions, {"workspace": str(root)}, instructions="Be kind.")
    for text in ("first", "second"):
        (root / "AGENTS.md").write_text(text)
        assert told(await kit.input_step()) == ["Be kind.", text]


async def test_instructions_without_a_file():
    assert told(await ProcessorKit(WorkspaceInstructions, {"instructions": "text"}).input_step()) == ["text"]


async def test_blank_instructions_are_left_out(root):
    (root / "RULES.txt").write_text(" \n")
    kit = ProcessorKit(WorkspaceInstructions, {"workspace": str(root), "file": "RULES.txt"})
    assert told(await kit.input_step()) == []


@pytest.mark.parametrize("file", ["missing.md", "../x.md", "long.md"])
async def test_a_file_that_cannot_be_read_fails_the_run(root, file):
    (root / "long.md").write_text("x" * (MAX_FILE + 1))
    kit = ProcessorKit(WorkspaceInstructions, {"workspace": str(root), "file": file})
    with pytest.raises(ProcessorError):
        await kit.input_step()


def test_nothing_to_tell_is_refused():
    with pytest.raises(InvalidOptionsError, match="workspace"):
        WorkspaceInstructions.build({})


def test_files_that_are_no_text_for_people_are_refused():
    """Options may come with a request; a service's directory may hold more than instructions."""
    with pytest.raises(InvalidOptionsError, match="file"):
        WorkspaceInstructions.build({"workspace": ".", "file": ".env"})
