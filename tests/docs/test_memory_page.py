"""The page about memory tells other languages each operation, and all of its fields."""

import re
from pathlib import Path

from procession_services.memory.api import OPERATIONS

PAGE = (Path(__file__).parents[2] / "docs" / "memory.md").read_text(encoding="utf-8")
ROWS = PAGE.partition("### In other languages")[2].partition("\n## ")[0]


def test_the_operations_are_there_with_their_fields():
    told = {
        operation: {name: not optional for name, optional in re.findall(r"`(\w+)`(\??)", fields)}
        for operation, fields in re.findall(r"^\| `([a-z-]+)` \|(.*?)\|", ROWS, re.MULTILINE)
    }
    known = {
        operation: {field.alias or name: field.is_required() for name, field in body.model_fields.items()}
        for operation, body in OPERATIONS.items()
        if operation != "update-note"
    }
    assert told == known
