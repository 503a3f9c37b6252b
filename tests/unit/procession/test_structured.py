import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.structured import ObjectStream, _strip, parse_object, schema_problem
from tests.support.cost import growth
from tests.unit.procession.making import delta

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": ["integer", "null"]}, "any": True},
    "required": ["name", "any"],
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def streamed(pieces):
    stream = ObjectStream()
    return [chunk["object"] for piece in pieces for chunk in stream.before(delta(piece))]


def test_the_object_grows_with_its_text():
    pieces = ['{"na', 'me": "A', "nn", '", "tags": [', '"x"', "]}"]
    assert streamed(pieces) == [
        {}, {"name": "A"}, {"name": "Ann"}, {"name": "Ann", "tags": []}, {"name": "Ann", "tags": ["x"]},
    ]  # fmt: skip


@given(st.dictionaries(st.text(max_size=3), json_values, max_size=3), st.data())
def test_the_last_object_is_the_whole_one_however_the_text_is_cut(value, data):
    text = json.dumps(value)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    objects = streamed(pieces)
    assert objects[-1] == value
    assert all(a != b for a, b in itertools.pairwise(objects))


def test_line_ends_as_they_are_in_strings_do_not_stop_the_object_from_growing():
    pieces = ['{"a": "one\n', "two\t\\", '"\r\n"', ',\n"b": 1}']
    assert streamed(pieces) == [
        {"a": "one\n"}, {"a": "one\ntwo\t"}, {"a": 'one\ntwo\t"\r\n'}, {"a": 'one\ntwo\t"\r\n', "b": 1},
    ]  # fmt: skip
    assert streamed(['{"a": 1, "b": "x', "\ny", '"}']) == [{"a": 1, "b": "x"}, {"a": 1, "b": "x\ny"}]


def test_only_text_makes_objects_and_only_objects_and_lists_count():
    assert ObjectStream().before({"type": "source", "payload": {}}) == []
    assert streamed(['"text"']) == streamed(["12"]) == streamed(["no json"]) == []
    assert streamed(["[1"])[-1:] != streamed(["{}"])


def test_a_fence_around_the_object_is_no_part_of_it():
    assert streamed(["```json\n", '{"a": 1}', "\n```"]) == [{"a": 1}]
    assert parse_object('```json\n{"name": "x", "any": 1}\n```', PERSON) == ({"name": "x", "any": 1}, None)


@pytest.mark.parametrize(
    "text",
    [
        'Here it is: {"name": "x", "any": 1}',
        '{"name": "x", "any": 1}\n\nIs there anything else?',
        'Sure:\n```json\n{"name": "x", "any": 1}\n```\nNote that x is a guess.',
        '\ufeff{"name": "x", "any": 1}',
    ],
)
def test_words_around_the_object_are_no_part_of_it(text):
    assert parse_object(text, PERSON) == ({"name": "x", "any": 1}, None)


def test_line_ends_in_strings_are_taken_as_they_are():
    assert parse_object('{"name": "a\n\tb", "any": 1}', PERSON) == ({"name": "a\n\tb", "any": 1}, None)


@pytest.mark.parametrize(
    "text",
    [
        'The text says {"name": "x", "any": 1}. I say {"name": "y", "any": 1}',
        'Here: {"name": "x", "any": [1',
        'Here: {"name": "x", "any": NaN}',
        'Here: {"name": "\\ud800", "any": 1}',
        "Here: " + '{"any":' * 100_000,
        "Here: {x}",
    ],
)
def test_several_objects_and_half_ones_are_no_answer(text):
    value, problem = parse_object(text, PERSON)
    assert (value, str(problem)[:22]) == (None, "the answer is not JSON")


def test_a_search_for_the_object_costs_no_more_than_the_text():
    def parse(size):
        assert parse_object("Here: " + "{ " * size, PERSON)[1]
        assert parse_object("x" * size + '{"name": 1}', PERSON)[1]

    assert growth(parse, 1_000_000) < 12


@given(st.text(st.sampled_from("` \n\tjsZ1{\u2003"), max_size=14))
def test_a_fence_is_what_it_ever_was(text):
    assert _strip(text) == re.sub(r"^\s*```[a-zA-Z]*\s*\n?|\n?\s*```\s*$", "", text)


def test_spaces_cost_no_more_than_other_text():
    def parse(size):
        assert parse_object('{"name": 1,' + " " * size + "}", PERSON)[1]

    assert growth(parse, 1_000_000) < 12


@pytest.mark.parametrize("end", ["text-end", "finish"])
def test_a_long_text_makes_fewer_objects_and_the_last_one_is_the_whole(end):
    stream, sizes = ObjectStream(), []
    for piece in ['{"a": "', *["word "] * 100_000, '"}', "\n"]:
        sizes += [len(made["object"].get("a", "")) for made in stream.before(delta(piece))]
    [whole] = stream.before({"type": end, "payload": {}})
    assert whole == {"type": "object", "object": {"a": "word " * 100_000}}
    assert sizes[:3000] == [0, *range(5, 15_000, 5)]
    assert len(sizes) < 5000
    assert stream.before({"type": end, "payload": {}}) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        '{"name": ',
        '{"name": NaN, "any": 1}',
        '{"name": Infinity}',
        f'{{"name": "x", "any": {2**70}}}',
    ],
)
def test_what_is_no_json_is_told_so(text):
    value, problem = parse_object(text, PERSON)
    assert value is None
    assert str(problem).startswith("the answer is not JSON")


def test_nor_does_an_object_with_such_a_value_go_by():
    assert ObjectStream().before(delta(f'{{"any": {2**70}}}')) == []


def test_each_wrong_field_is_named():
    value, problem = parse_object('{"age": "old"}', PERSON)
    assert value is None
    assert str(problem).splitlines() == [
        "Structured output validation failed: - age: Invalid input: expected integer or null, received string",
        "- any: Invalid input: expected a value, received undefined",
        "- name: Invalid input: expected string, received undefined",
    ]


def test_an_answer_that_is_wrong_as_a_whole_is_named_too():
    assert "- root: Invalid input: expected object, received null" in str(parse_object("null", PERSON)[1])


@pytest.mark.parametrize("ref", ["http://127.0.0.1:1/any.json", "#/$defs/none"])
def test_a_schema_that_cannot_be_used_is_told(ref):
    value, problem = parse_object("{}", {"$ref": ref})
    assert value is None
    assert "The schema of the answer is unusable" in str(problem)


def test_other_rules_are_told_in_the_validators_words():
    _, problem = parse_object('{"n": 1}', {"properties": {"n": {"minimum": 5}}})
    assert "- n: 1 is less than the minimum of 5" in str(problem)


@pytest.mark.parametrize(
    "ref",
    [
        "#/$defs/none",
        "#none",
        "other.json",
        "http://127.0.0.1:1/any.json",
        "http://[",
        "#/$defs/x/examples/0/y",
    ],
)
def test_a_reference_that_leads_nowhere_is_told_before_a_model_is_asked(ref):
    schema = {"properties": {"a": {"items": {"$ref": ref}}}, "$defs": {"x": {"examples": ["text"]}}}
    assert schema_problem(schema) == (
        [],
        f"refers to {ref!r}, which it does not contain; other schemas are not fetched",
    )


@pytest.mark.parametrize(
    "ref", ["#", "#/$defs/x", "#here", "within", "https://json-schema.org/draft/2020-12/schema"]
)
def test_a_reference_to_a_part_of_the_schema_is_fine(ref):
    parts = {"x": {"$ref": "#"}, "y": {"$anchor": "here"}, "z": {"$id": "within", "type": "string"}}
    assert (
        schema_problem({"properties": {"a": {"$ref": ref}, "$ref": {"type": "string"}}, "$defs": parts})
        is None
    )


def test_a_schema_is_held_against_the_draft_that_it_names():
    tuples = {"type": "array", "items": [{"type": "string"}]}
    assert schema_problem({"$schema": "http://json-schema.org/draft-07/schema#", **tuples}) is None
    assert (schema_problem(tuples) or [None])[0] == ["items"]
    for none in ({"a": 1}, [1], 5, None):
        assert (schema_problem({"$schema": none}) or [None])[0] == ["$schema"]
