"""Every key of the configuration is documented, from the code."""

import re

import pytest

from procession_services.runtime.settings import Settings, variable
from tests.contract.json_schemas import json_schemas
from tests.contract.write_golden import ROOT

PAGE = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
MODELS = {
    name: definition
    for name, definition in json_schemas()["agents-file"]["$defs"].items()
    if definition.get("type") == "object" and name != "NamedAgent"  # an Agent whose key is its name
}


def section(name):
    return re.split(rf"^### {name}$", PAGE, flags=re.MULTILINE)[1].split("\n### ")[0].split("\n## ")[0]


@pytest.mark.parametrize("name", MODELS)
def test_every_field_of_an_agents_file_has_type_and_meaning(name):
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (.*) \|$", section(name), re.MULTILINE))
    assert rows.keys() == MODELS[name]["properties"].keys()
    assert [field for field, told in rows.items() if not told.rpartition("|")[2].strip()] == []


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_type_and_meaning(name):
    [(told, meaning)] = re.findall(rf"^\| `{variable(name)}` \| (.+?) \| .*? \| (.+) \|$", PAGE, re.MULTILINE)
    assert told.strip()
    assert meaning.strip()
