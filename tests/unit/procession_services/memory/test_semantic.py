"""`semantic-recall`: what it hands to the index, and where it cannot recall; tests/integration has a real index."""

from typing import Any

import pytest

from procession.testing import ProcessorKit
from procession.testing import environment as make_environment
from procession_services.memory.recall import Recall
from procession_services.memory.scope import acting_for
from procession_services.memory.semantic import SemanticRecall
from procession_services.memory.stores.redis_jobs import RedisJobs


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


@pytest.mark.integration
async def test_only_what_is_stored_is_indexed_and_no_state_or_reminder(kit, store, redis, tenant):
    def signal(text, **about):
        content = {"parts": [{"type": "text", "text": text}], "metadata": {"signal": about}}
        return {"role": "signal", "content": content}

    unused: Any = None
    jobs = RedisJobs(redis, "replica", lost_ms=60_000)
    with acting_for(tenant, store, Recall(unused, unused, jobs)):
        await kit.input(
            [
                "where does my boat lie?",
                signal("is on the phone", type="status", transient=True),
                signal("# Me\n- Ann has a boat", type="state"),
                signal("answer in English", type="reactive"),
                signal("the mast is mended", type="notification"),
            ]
        )
        await kit.output_result("<working_memory># Me\n- Boat</working_memory> at pier 7")
    taken = await jobs.take(tenant)
    assert taken
    texts = {entry["text"] for entry in taken[1]["entries"]}
    assert texts == {"where does my boat lie?", "the mast is mended", "at pier 7"}
