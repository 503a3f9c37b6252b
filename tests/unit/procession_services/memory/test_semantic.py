"""`semantic-recall`, where it cannot recall; tests/integration has it with a real index."""

from typing import Any

import pytest

from procession.testing import ProcessorKit
from procession.testing import environment as make_environment
from procession_services.memory.scope import acting_for
from procession_services.memory.semantic import SemanticRecall


@pytest.fixture
def logs():
    return list[str]()


@pytest.fixture
def kit(logs):
    where = {"MastraMemory": {"thread": {"id": "t"}, "resourceId": "ann"}}
    return ProcessorKit(SemanticRecall, request_context=where, environment=make_environment(log=logs.append))


async def test_without_an_index_the_warning_says_what_to_configure(kit, logs):
    store: Any = None
    with acting_for("acme", store):
        await kit.input("what was my secret?")
    [told] = logs
    assert told.startswith("semantic-recall: semantic recall failed: MemoryScopeError: ")
    assert "PROCESSION_CHROMA_URL or PROCESSION_CHROMA_PATH" in told


async def test_any_other_failure_is_told_without_its_text(kit, logs):
    """It might quote the conversation."""
    broken: Any = object()
    with acting_for("acme", broken, recall=broken):
        await kit.input("what was my secret?")
    assert logs == ["semantic-recall: semantic recall failed: AttributeError"]
