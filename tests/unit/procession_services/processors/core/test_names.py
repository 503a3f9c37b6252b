"""Names in a set that remember their order."""

from procession_services.processors.core.names import numbered, ordered


def test_names_come_back_in_their_order():
    members = {*numbered(2.0, ["c", "a b"]), *numbered(1.5, ["b", "a b"]), *numbered(10.0, ["z"])}
    assert ordered(members) == ["b", "a b", "c", "z"]
    assert ordered(()) == []


def test_more_than_ten_at_once_stay_in_order():
    names = [f"n{i}" for i in range(12)]
    assert ordered(set(numbered(1.0, names))) == names
