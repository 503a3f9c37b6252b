import json

import pytest

from procession_services.memory.core.notes import (
    InvalidUpdateError,
    merge_update,
    replace_update,
    vnext_update,
)
from procession_services.memory.core.templates import DEFAULT, Template

FORM = Template("markdown", "# Me\n- Name:")
SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "string"},
        "age": {"type": "number"},
        "home": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def merged(stored, **memory):
    return merge_update({"memory": memory}, json.dumps(stored), SCHEMA).text


def test_an_empty_template_overwrites_only_an_empty_template():
    refused = replace_update({"memory": " #  Me\n\n- Name: "}, "# Me\n- Name: Ann", FORM)
    assert (refused.text, refused.told["success"]) == (None, False)
    assert replace_update({"memory": "# Me\n- Name:"}, None, FORM).text == "# Me\n- Name:"
    assert replace_update({"memory": "# Me\n- Name: "}, "# Me  - Name:", FORM).text == "# Me\n- Name: "


@pytest.mark.parametrize("given", [{}, {"memory": None}, {"memory": 3}])
def test_markdown_needs_a_text(given):
    with pytest.raises(InvalidUpdateError, match="`memory` is missing"):
        replace_update(given, None, FORM)


def test_merging():
    """R-WM-13."""
    assert merged({"id": "a", "age": 3}, age=None) == '{"id":"a","age":3}', (
        "it is not required: null says nothing"
    )
    assert merged({"id": "a", "age": 3}, id=None) == '{"age":3}', "it is required: null deletes"
    assert merged({"x": 1}, x=None) == "{}", "the schema does not know it: null deletes"
    assert merged({"home": {"city": "X", "zip": "1"}}, home={"city": None, "zip": "2"}) == (
        '{"home":{"city":"X","zip":"2"}}'
    )
    assert merged({"home": "a text"}, home={"city": "Y"}) == '{"home":{"city":"Y"}}'
    assert merged({"age": [1, 2]}, age=[3]) == '{"age":[3]}'
    assert merged({}, name="Zoë") == '{"name":"Zoë"}'


def test_nulls_behind_references_are_those_of_the_schema_meant():
    """An optional field that is null changes nothing; a needed one that is null goes (R-WM-13)."""
    address = {"type": "object", "properties": {"city": {}, "zip": {}}, "required": ["city"]}
    schema = {
        "type": "object",
        "properties": {
            "home": {"$ref": "#/$defs/a~1b"},
            "work": {"anyOf": [{"$ref": "#/$defs/a~1b"}, {"type": "null"}]},
            "gone": {"$ref": "#/$defs/missing"},
            "loop": {"$ref": "#/properties/loop"},
        },
        "$defs": {"a/b": address},
    }
    there = {"city": "Oslo", "zip": "1"}
    stored = json.dumps({"home": there, "work": there, "gone": {"x": 1}, "loop": {"x": 1}})
    nulls = {"city": None, "zip": None}
    given = {"home": nulls, "work": nulls, "gone": {"x": None}, "loop": {"x": None}}
    text = merge_update({"memory": given}, stored, schema).text
    assert json.loads(text or "") == {"home": {"zip": "1"}, "work": {"zip": "1"}, "gone": {}, "loop": {}}


def test_a_payload_that_is_missing_changes_nothing():
    for given in ({}, {"memory": None}):
        assert (merge_update(given, "{}", SCHEMA).text, merge_update(given, "{}", SCHEMA).told) == (
            None,
            {"success": True},
        )


def test_a_text_is_read_as_json():
    assert merge_update({"memory": '{"age": 1}'}, None, SCHEMA).text == '{"age":1}'
    for wrong in ("nonsense", "[1]", "3"):
        with pytest.raises(InvalidUpdateError, match="memory"):
            merge_update({"memory": wrong}, None, SCHEMA)


def vnext(new, stored, *, resource=False, **more):
    update = vnext_update({"newMemory": new, **more}, stored, FORM, resource_scope=resource)
    return update.text, update.told["success"]


def test_entries():
    """R-WM-15."""
    clarify = {"updateReason": "clarify-existing-memory"}
    assert vnext("- b", "- a", searchString="- a") == ("- a\n- b", True), "an append ignores the search"
    assert vnext("- b", "- a- a", searchString="- a", **clarify) == ("- b- a", True), "the first one only"
    assert vnext("- b", "- a", **clarify) == (None, False)
    assert vnext("- a", "- a\n- c") == (None, False)
    assert vnext(f" {FORM.text}\n", "- a") == (None, False)
    assert vnext(FORM.text, None) == (None, False)
    for blank in ("\n", "  "):
        assert vnext(FORM.text.replace("\n", f"\n{blank}") + blank, None) == (None, False)
        assert vnext(FORM.text.replace("\n", f"\n{blank}"), "- a") == (None, False)
    assert vnext(f"{FORM.text}\n- b", "- a") == ("- a\n\n- b", True), "the template is no note"
    irrelevant = {"updateReason": "replace-irrelevant-memory", "searchString": "- a"}
    assert vnext("- b", "- a", **irrelevant) == ("- b", True)
    assert vnext("- b", "- a", resource=True, **irrelevant) == (None, False)
    with pytest.raises(InvalidUpdateError):
        vnext_update({}, None, DEFAULT, resource_scope=False)
