"""The table of error codes has every code that the services give."""

import re
from pathlib import Path

from procession_schemas import codes
from tests.contract.write_golden import ROOT

OF_THEIR_OWN = ROOT / "services" / "procession_services" / "processors"
"""Built-in processors, whose pages tell theirs."""
GIVEN = re.compile(r'(?:\bcode(?::\s*\w+)?\s*=\s*|: Final = |RefusedError\(\s*)"([A-Z]+(?:_[A-Z]+)+)"')
TABLE = Path(codes.__file__)
SOURCES = [path for root in ("services", "schemas") for path in (ROOT / root).rglob("*.py") if path != TABLE]


def test_every_code_is_in_the_table():
    sources = [path for path in SOURCES if not path.is_relative_to(OF_THEIR_OWN)]
    given = {code for path in sources for code in GIVEN.findall(path.read_text(encoding="utf-8"))}
    assert len(given) > 20
    assert {code for code in given - codes.ERROR_CODES.keys() if not code.startswith("PROCESSION_")} == set()


def test_every_code_of_the_table_is_given():
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    assert {code for code in codes.ERROR_CODES if f'"{code}"' not in text} == set()
