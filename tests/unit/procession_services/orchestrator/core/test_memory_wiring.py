"""What vectors do not say about the wiring; the rest is in tests/vectors (memory-wiring)."""

import pytest

from procession_schemas.memory import MemoryConfig, MemoryOptions, RequestMemory
from procession_services.orchestrator.core.memory_wiring import NoVectorStoreError, merged_options, wire

PLACE = {"thread": "t", "resource": "r"}


def ids(refs):
    return [ref.id for ref in refs]


def wired(vectors=True, input_ids=(), output_ids=(), **options):
    given = MemoryOptions.model_validate(options)
    return wire(given, input_ids=input_ids, output_ids=output_ids, vectors=vectors)


def test_what_is_indexed_is_saved():
    """D-85."""
    made = wired(lastMessages=False, semanticRecall=True)
    assert (ids(made.input), ids(made.output)) == (
        ["semantic-recall"],
        ["semantic-recall", "message-history"],
    )
    assert ids(wired(lastMessages=False, semanticRecall=True, output_ids={"message-history"}).output) == [
        "semantic-recall"
    ]


def test_each_list_is_suppressed_by_itself():
    """R-WIRE-5."""
    made = wired(semanticRecall=True, input_ids={"semantic-recall"})
    assert "semantic-recall" not in ids(made.input)
    assert ids(made.output) == ["semantic-recall", "message-history"]


def test_recall_that_is_switched_off_needs_no_vector_store():
    assert ids(wired(vectors=False, semanticRecall=False).output) == ["message-history"]
    with pytest.raises(NoVectorStoreError):
        wired(vectors=False, semanticRecall={})


def test_a_request_overrides_deeply():
    """R-WIRE-9."""
    own = MemoryConfig.model_validate(
        {"semanticRecall": {"topK": 9, "scope": "thread"}, "lastMessages": 3, **PLACE}
    )
    asked = RequestMemory.model_validate({"semanticRecall": {"topK": 2}, "readOnly": True, **PLACE})
    merged = merged_options(own, asked)
    assert merged.semantic_recall
    assert (merged.semantic_recall.top_k, merged.semantic_recall.scope) == (2, "thread")
    assert (merged.last_messages, merged.read_only) == (3, True)
    off = RequestMemory.model_validate({"semanticRecall": False, **PLACE})
    assert merged_options(own, off).semantic_recall is False


def test_a_budget_is_given_to_reader_and_cutter():
    made = wired(messageHistory={"maxTokens": 100})
    options = {ref.id: ref.options for ref in made.input}
    assert options["message-history"] == {"tokenLimit": {"maxTokens": 100, "atMaxRemoveTokens": 25}}
    assert options["memory-token-limiter"] == {"limit": 100, "atMaxRemoveTokens": 25}


@pytest.mark.parametrize("recall", [False, True])
def test_an_observer_in_an_array_takes_the_place_of_history_there(recall):
    """R-OM-3, R-WIRE-5: else both would load and save the thread."""
    observer = {"observational-memory"}
    options = {"messageHistory": {"maxTokens": 9}, "semanticRecall": recall}
    made = wired(input_ids=observer, output_ids=observer, **options)
    recalled = ["semantic-recall"] if recall else []
    assert (ids(made.input), ids(made.output)) == (["memory-input-filter", *recalled], recalled)
    assert ids(wired(input_ids=observer, **options).output) == [*recalled, "message-history"]


def test_observational_memory_takes_the_place_of_history():
    """R-OM-3, R-WIRE-2, R-WIRE-3."""
    made = wired(
        observationalMemory={"scope": "resource"}, messageHistory={"maxTokens": 9}, semanticRecall=True
    )
    assert ids(made.input) == ["memory-input-filter", "semantic-recall", "observational-memory"]
    assert ids(made.output) == ["semantic-recall", "observational-memory"]
    assert made.input[-1].options == {"scope": "resource"}
