"""Writes every generated file: `python -m tests.contract.write_golden`, or `make schemas`.

Golden messages are not among them: those are yesterday's bytes, added by hand and never changed.
"""

import json
from pathlib import Path

from tests.contract.asyncapi import document
from tests.contract.json_schemas import json_schemas
from tests.contract.reference import configuration, messages

ROOT = Path(__file__).parents[2]
JSON_SCHEMAS = Path("schemas/json-schema")


def generated() -> dict[Path, str]:
    """The contents of all generated files, by path from the root of the repository."""
    schemas = {JSON_SCHEMAS / f"{name}.json": _json(schema) for name, schema in json_schemas().items()}
    return {
        **schemas,
        Path("schemas/asyncapi.json"): _json(document()),
        Path("docs/reference/configuration.md"): configuration(),
        Path("docs/reference/messages.md"): messages(),
    }


def write() -> None:
    """Writes them, and removes schemas of messages that are no more."""
    files = generated()
    for stale in {path.relative_to(ROOT) for path in (ROOT / JSON_SCHEMAS).glob("*")} - files.keys():
        (ROOT / stale).unlink()
    for path, text in files.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    write()
