"""The table of error codes has every code that the services give."""

import re

from procession_schemas.codes import ERROR_CODES
from tests.contract.write_golden import ROOT

OF_THEIR_OWN = ROOT / "services" / "procession_services" / "processors"
"""Built-in processors, whose pages tell theirs."""
GIVEN = re.compile(r'(?:\bcode(?::\s*\w+)?\s*=\s*|(?:Invalid|ApiError)\(\s*)"([A-Z_]+)"')
SOURCES = [path for path in (ROOT / "services").rglob("*.py") if not path.is_relative_to(OF_THEIR_OWN)]


def test_every_code_is_in_the_table():
    given = {code for path in SOURCES for code in GIVEN.findall(path.read_text(encoding="utf-8"))}
    assert len(given) > 20
    assert given - ERROR_CODES.keys() == set()


def test_every_code_of_the_table_is_given():
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "services").rglob("*.py"))
    assert {code for code in ERROR_CODES if f'"{code}"' not in text} == set()
