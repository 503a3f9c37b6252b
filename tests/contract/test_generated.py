import pytest

from tests.contract.asyncapi import document
from tests.contract.write_golden import JSON_SCHEMAS, ROOT, generated

FILES = generated()


@pytest.mark.parametrize("path", FILES, ids=str)
def test_generated_files_are_current(path):
    assert (ROOT / path).read_text(encoding="utf-8") == FILES[path], "run `make schemas`"


def test_no_schema_outlives_its_message():
    assert {path.relative_to(ROOT) for path in (ROOT / JSON_SCHEMAS).iterdir()} <= FILES.keys()


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".json"], ids=str)
def test_a_schema_has_no_word_that_asyncapi_takes_for_another(path):
    assert '"discriminator"' not in FILES[path]


def references(value):
    """Every `$ref` in a document."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_reference_in_the_asyncapi_document_leads_somewhere():
    api = document()
    for reference in references(api):
        if reference.startswith("./"):
            assert (ROOT / "schemas" / reference).is_file()
            continue
        _, kind, *path = reference.split("/")
        target = api[kind]
        for key in path:
            target = target[key]
        assert target
