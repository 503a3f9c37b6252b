"""Where embeddings are: names that may never change, since they are all that tells."""

from collections import Counter

from procession_services.memory.core.shards import LEVELS, OWN, shards


def test_names_are_what_they_were_when_indexes_were_made():
    hashed = "49915e0d7d4b402e3017d010bc1c0e83cac6c797d6c16e66340fe3268693a6a1"
    names = [shards(level, "ann", "chat-7") for level in range(LEVELS)]
    assert names == [("index",), ("1-13",), ("2-13",), (f"own-{hashed}",), (f"own-{hashed}-4",)]


def test_resources_are_spread_over_more_collections_on_each_level():
    resources = [f"r{number}" for number in range(4000)]
    counts = [Counter(shards(level, resource, None) for resource in resources) for level in range(OWN + 1)]
    assert [len(count) for count in counts] == [1, 16, 256, 4000]
    assert max(counts[1].values()) < 2 * 4000 / 16


def test_a_thread_is_in_one_collection_of_a_level_and_a_resource_in_all_of_its_threads():
    for level in range(LEVELS):
        everywhere = shards(level, "ann", None)
        assert {shards(level, "ann", f"chat-{number}")[0] for number in range(200)} == set(everywhere)


def test_own_collections_are_nobody_elses():
    for level in (OWN, OWN + 1):
        assert not set(shards(level, "ann", None)) & set(shards(level, "bob", None))
