import inspect
import json
import re

import pytest

from procession_schemas import subjects
from procession_schemas.catalog import CATALOG, CLIENT, SERVICES
from procession_schemas.chunks import CORE_TYPES
from procession_schemas.messages import StepResult
from procession_schemas.run import RunResult
from procession_services import supervisor
from procession_services.bus.streams import stream_configs
from tests.contract.json_schemas import json_schemas
from tests.contract.reference import configuration, messages
from tests.contract.write_golden import ROOT
from tests.support.subjects import matches

FUNCTIONS = [
    function
    for name, function in inspect.getmembers(subjects, inspect.isfunction)
    if name not in ("token", "parse") and not name.startswith("_")
]


def sample(row):
    return re.sub(r"{\w+}", "x", row.subject)


@pytest.mark.parametrize("row", CATALOG, ids=lambda row: row.name)
def test_a_message_falls_into_exactly_its_stream(row):
    taking = [
        name for name, patterns in subjects.STREAMS.items() if any(matches(p, sample(row)) for p in patterns)
    ]
    assert taking == ([row.stream] if row.stream else [])


def test_the_bus_makes_the_streams_of_the_grammar():
    assert {config.name: tuple(config.subjects or ()) for config in stream_configs()} == subjects.STREAMS


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_every_subject_is_in_the_catalog(function):
    required = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    fixed = {
        "service": ("output_processors", "memory", "orchestrator"),
        "type_": ("run.accepted",),
        "operation": ("status",),
    }
    tokens = [fixed.get(parameter.name, ("x",)) for parameter in required]
    made = {function(*(choices[min(i, len(choices) - 1)] for choices in tokens)) for i in range(3)}
    assert any(
        re.fullmatch(re.sub(r"{\w+}", "[^.]+", row.subject), f"{subject}{more}")
        for subject in made
        for more in ("", ".x")  # some are only the beginning of a subject
        for row in CATALOG
    )


def test_names_are_unique():
    assert len({row.name for row in CATALOG}) == len(CATALOG)


def test_the_catalog_and_the_supervisor_know_the_same_services():
    assert set(SERVICES) == set(supervisor.SERVICES)


def test_every_type_of_the_runtime_is_described():
    described = set()
    for reference in json_schemas()["chunk"]["anyOf"][0]["oneOf"]:
        definition = json_schemas()["chunk"]["$defs"][reference["$ref"].rpartition("/")[2]]
        kind = definition["properties"]["type"]
        described |= set(kind.get("enum", [kind.get("const")]))
    assert described == CORE_TYPES


@pytest.mark.parametrize(
    "row",
    [row for row in CATALOG if row.body and CLIENT in row.producers + row.consumers],
    ids=lambda row: row.name,
)
def test_the_reference_has_the_fields_of_all_that_clients_send_and_get(row):
    if row.name.startswith("memory."):
        return  # docs/memory.md has them
    schema = json_schemas()[row.name]
    assert schema["properties"]
    others = {each.body.__name__ for each in CATALOG if inspect.isclass(each.body)}
    told = set(re.findall(r"^### (\w+)$", configuration() + messages(), re.MULTILINE))
    assert schema.get("$defs", {}).keys() - others <= told


@pytest.mark.parametrize("name", ["toolCalls", "toolResults", "steps"])
def test_what_the_lists_of_a_result_hold_is_described(name):
    golden = json.loads((ROOT / "schemas/golden-messages/run.finished/finished.json").read_bytes())
    described = RunResult.model_json_schema()["properties"][name]["description"]
    assert [key for entry in golden["result"][name] for key in entry if f"`{key}`" not in described] == []


def test_the_steps_of_a_result_are_described():
    described = RunResult.model_json_schema()["properties"]["steps"]["description"]
    left_out = {"segment", "content", "reasoning", "files"}  # docs/differences.md
    assert {key for key in StepResult.__annotations__ if f"`{key}`" not in described} == left_out
