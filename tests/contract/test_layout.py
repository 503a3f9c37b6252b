"""The shape of the repository: what belongs together lies together."""

import importlib
import inspect
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from procession_services.supervisor import SERVICES
from tests.contract.write_golden import ROOT

UNIT = ROOT / "tests" / "unit"
TESTS = sorted(UNIT.rglob("test_*.py"))
SOURCES = (ROOT / "schemas", ROOT / "services", ROOT)
OF_NO_MODULE = {Path("test_readme.py")}
"""Tests of documents, which have no module to mirror."""
OF_A_PACKAGE = ("exports", "init")
"""`test_exports.py` and `test_init.py` are about the package that has their folder's name."""


def mirrored(test):
    """What a test's path says that it tests: a module, the package whose name it has, or an example."""
    inside = test.relative_to(UNIT)
    module = inside.with_name(inside.name.removeprefix("test_"))
    packages = [module.with_suffix("")]
    if module.stem in (*OF_A_PACKAGE, inside.parent.name):
        packages.append(inside.parent)
    places = [root / path for root in SOURCES for path in (module, *(p / "__init__.py" for p in packages))]
    if inside.parts[0] == "examples":
        places += (ROOT / "examples").rglob(module.name)
    return [path for path in places if path.is_file()]


@pytest.mark.parametrize("test", TESTS, ids=lambda path: str(path.relative_to(UNIT)))
def test_a_unit_test_lies_where_its_module_lies(test):
    assert mirrored(test) or test.relative_to(UNIT) in OF_NO_MODULE


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_put_together_in_app(service):
    app = importlib.import_module(f"procession_services.{service}.app")
    assert service == app.SERVICE
    assert inspect.iscoroutinefunction(app.start)
    assert list(inspect.signature(app.start).parameters) == ["host"]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_introduces_itself_on_one_screen(service):
    text = (ROOT / "services" / "procession_services" / service / "README.md").read_text()
    assert len(text.splitlines()) <= 40
    for word in ("| reads |", "| writes |", "| state |", "| scale |", "Start reading at"):
        assert word in text


def test_no_minor_version_of_litellm_is_installed_but_the_one_that_is_locked():
    """The gateway uses modules of it that are not public, and that the next one may not have."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (allowed,) = [Requirement(each).specifier for each in extras["llm-gateway"] if each.startswith("litellm")]
    (locked,) = re.findall(r"^litellm==(\S+)", (ROOT / "requirements" / "all.lock").read_text(), re.MULTILINE)
    major, minor, _ = map(int, locked.split("."))
    assert locked in allowed
    assert f"{major}.{minor + 1}.0" not in allowed
    assert f"{major}.{minor - 1}.9" not in allowed
