"""What travels, and what becomes of what does not."""

import dataclasses
import datetime as dt
import enum
from typing import Any, ClassVar, NamedTuple

import pytest
from pydantic_core import from_json

from procession.authors import said
from procession.errors import TripWire
from procession.json_values import NotJsonError, encoded, error_text, given, plain, text

SURROGATE = "\ud800"
CYCLE: dict[str, Any] = {}
CYCLE["x"] = CYCLE


class Colour(enum.Enum):
    RED = "red"


class Pair(NamedTuple):
    x: int


class Name(str):
    """As the tags of a library."""

    __slots__ = ()


class Score(float):
    """As the numbers of numpy."""


@dataclasses.dataclass
class Word:
    said: str


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_long_text_of_an_error_is_cut():
    told = error_text(ValueError("x" * 5_000_000))
    assert "x" * 1000 in told
    assert len(told) < 10_000


def test_json_travels_as_it_is_with_lists_for_tuples():
    value: Any = {"a": [{"b": None}], "c": 1.5, "d": True, "e": 2**64 - 1}
    assert from_json(encoded(value, "v")) == value
    assert from_json(encoded({"a": (1, (2,))}, "v")) == {"a": [1, [2]]}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({1}, "is of type set"), (b"x", "is of type bytes"), (object(), "is of type object"),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "is of type datetime"), (Colour.RED, "is of type Colour"),
        (Word("x"), "is of type Word"), (MuteError(), "is of type MuteError"),
        (float("nan"), "is nan"), (float("-inf"), "is -inf"), (2**70, "more than 64 bits"),
        (SURROGATE, "half a character"), (Pair(1), "is of type Pair"), (Score(1.5), "is of type Score"),
    ],
)  # fmt: skip
def test_what_would_not_arrive_as_it_is_is_told_with_its_place(value, told):
    with pytest.raises(NotJsonError) as caught:
        encoded({"a": [{"b": (0, value)}]}, "v")
    assert str(caught.value).startswith("v['a'][0]['b'][1] ")
    assert caught.value.field == "a.0.b.1"
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({1: "a"}, "v has the key 1"),
        ({SURROGATE: 1}, r"v has the key '\\ud800'"),
        ({"a": [{Name("b"): 1}]}, r"v\['a'\]\[0\] has the key 'b' of type Name; keys must be plain strings"),
        (CYCLE, "nested too deeply"),
    ],
    ids=["number", "surrogate", "subclass", "cycle"],
)
def test_so_are_keys_that_are_no_texts_and_what_holds_itself(value, told):
    with pytest.raises(NotJsonError, match=told) as caught:
        encoded(value, "v")
    assert str(caught.value).encode()


def nested(levels: int) -> Any:
    return {"a": nested(levels - 1)} if levels else 1


def test_what_is_given_may_be_put_into_others():
    assert from_json(b"[" * 100 + given(nested(100), "v") + b"]" * 100)
    with pytest.raises(NotJsonError, match="nested too deeply: 100 levels at most"):
        given(nested(101), "v")


def test_what_nests_too_deeply_has_a_text():
    assert plain(nested(101)) == str(nested(101))


@pytest.mark.parametrize(
    ("value", "nearest"),
    [
        ({"a": {1}}, {"a": [1]}),
        ({1: (2, Pair(3))}, {"1": [2, [3]]}),
        ([Colour.RED, Word("x"), dt.date(2026, 1, 1)], ["red", {"said": "x"}, "2026-01-01"]),
        ({"a": f"x{SURROGATE}", "b": float("nan"), "c": 2**70}, {"a": "x?", "b": "nan", "c": str(2**70)}),
        ([ValueError("x"), MuteError()], ["x", "<Unserializable MuteError object>"]),
        (CYCLE, "{'x': {...}}"),
    ],
    ids=["set", "tuple", "rich", "leaves", "errors", "cycle"],
)
def test_the_nearest_to_a_value_always_travels(value, nearest):
    assert plain(value) == from_json(encoded(plain(value), "v")) == nearest


def test_everything_has_a_text():
    assert (text(f"a{SURROGATE}b"), text(5), text(MuteError())) == ("a?b", "5", "")
    assert [error_text(e) for e in (ValueError("x"), ValueError(), MuteError())] == [
        "x",
        "ValueError",
        "MuteError",
    ]


class ExitingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(2)


def test_what_ends_the_process_when_it_is_told_does_not():
    """Out of a task, `sys.exit` would: a tool's error is told in one."""
    error = ExitingError()
    assert (text(error), error_text(error), said(error)) == ("", "ExitingError", "ExitingError")


def test_a_tripwire_holds_what_travels_whoever_makes_it():
    """R-AB-10."""
    tripwire = TripWire(ValueError("why"), metadata={"words": {"x"}})  # type: ignore[arg-type]  # by mistake
    assert (tripwire.reason, str(tripwire), tripwire.metadata) == ("why", "why", {"words": ["x"]})


def test_where_a_long_value_is_no_json_is_found_without_naming_all_other_places():
    """Anybody can send such a value, and nothing else goes on meanwhile."""

    class Key(str):
        __slots__ = ()
        named: ClassVar[list[str]] = []

        def __repr__(self) -> str:
            self.named.append(str(self))
            return super().__repr__()

    value = {Key(f"k{number}"): 1 for number in range(100)} | {Key("last"): float("nan")}
    with pytest.raises(NotJsonError, match=r"^v\['last'\] is nan"):
        given(value, "v")
    assert set(Key.named) == {"last"}
