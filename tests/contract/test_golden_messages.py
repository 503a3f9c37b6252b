import json

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, TypeAdapter

from procession_schemas.base import StrictModel, WireModel, WireStruct
from procession_schemas.catalog import CATALOG, row
from procession_schemas.chunk_types import MADE_BY_CLIENTS, AnyChunk
from procession_schemas.chunks import CORE_TYPES, HIDDEN_TYPES
from tests.contract.write_golden import ROOT

GOLDEN = ROOT / "schemas" / "golden-messages"
FILES = sorted(GOLDEN.glob("*/*.json"))
NAMES = [f"{path.parent.name}/{path.stem}" for path in FILES]
BATCHES = sorted(GOLDEN.glob("chunk.batch/*.json"))


def body_of(path):
    return row(path.parent.name).body


def parsed(path, content):
    body, text = body_of(path), json.dumps(content)
    message = TypeAdapter(body).validate_json(text)
    if isinstance(message, WireStruct):  # which services read by themselves
        assert body.from_json(text) == message
    return message


def sent(message):
    if isinstance(message, WireModel | WireStruct):
        return json.loads(message.to_json())
    return (
        message.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if isinstance(message, BaseModel)
        else message
    )


def told(value):
    """All that a message says, with what it leaves out."""
    if isinstance(value, WireStruct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        tag = {value.__struct_config__.tag_field: value.__struct_config__.tag}
        return {key: told(getattr(value, name)) for key, name in names} | (tag if None not in tag else {})
    if isinstance(value, BaseModel):
        fields = type(value).model_fields.items()
        return {field.alias or name: told(getattr(value, name)) for name, field in fields}
    if isinstance(value, list):
        return [told(each) for each in value]
    return {key: told(each) for key, each in value.items()} if isinstance(value, dict) else value


def kept(given, made):
    """Whether everything given is there, a bare id perhaps as an object."""
    if isinstance(given, dict):
        return isinstance(made, dict) and all(
            value is None or (key in made and kept(value, made[key])) for key, value in given.items()
        )
    if isinstance(given, list):
        return isinstance(made, list) and len(given) == len(made) and all(map(kept, given, made))
    return made == given or (isinstance(made, dict) and made["id"] == given)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_yesterdays_message_means_today_what_it_meant(path):
    content = json.loads(path.read_text())
    message = parsed(path, content)
    assert kept(content, told(message))
    assert parsed(path, sent(message)) == message


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_golden_messages_fit_the_json_schema(path):
    schema = json.loads((ROOT / "schemas" / "json-schema" / f"{path.parent.name}.json").read_text())
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(json.loads(path.read_text()))


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_field_from_tomorrow_is_ignored_between_services_and_refused_from_people(path):
    content = json.loads(path.read_text()) | {"fromTomorrow": 1}
    body = body_of(path)
    if isinstance(body, type) and issubclass(body, StrictModel):
        with pytest.raises(ValueError, match="fromTomorrow"):
            parsed(path, content)
    elif isinstance(body, type) and issubclass(body, WireModel | WireStruct):
        assert parsed(path, content) == parsed(path, json.loads(path.read_text()))


def test_every_message_with_a_body_has_a_golden_example_and_nothing_else_has():
    assert {path.parent.name for path in FILES} == {each.name for each in CATALOG if each.body is not None}


@pytest.mark.parametrize("path", BATCHES, ids=lambda path: path.stem)
def test_chunks_of_golden_batches_are_chunks(path):
    for chunk in json.loads(path.read_text())["chunks"]:
        assert TypeAdapter(AnyChunk).validate_python(chunk) == chunk


def test_a_golden_batch_has_every_type_that_travels():
    batch = json.loads((GOLDEN / "chunk.batch" / "every-type.json").read_text())
    types = {chunk["type"] for chunk in batch["chunks"]}
    assert types == (CORE_TYPES - HIDDEN_TYPES - MADE_BY_CLIENTS) | {"data-progress"}
