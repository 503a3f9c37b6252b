"""What the documents name is there."""

import re

import pytest

from tests.contract.write_golden import ROOT


def name(path):
    return str(path.relative_to(ROOT))


PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "schemas/*.md", "services/**/*.md", "tests/**/*.md")
    for path in ROOT.glob(pattern)
)
OURS = [page for page in PAGES if not page.is_relative_to(ROOT / "tests")]
FILES = [
    name(path)
    for pattern in ("*", "docs/**/*", "schemas/**/*", "services/**/*", "tests/**/*")
    for path in ROOT.glob(pattern)
]
THEIRS = {"AGENTS.md", "CLAUDE.md", "CONTEXT.md", "SKILL.md", "tokenizer.json"}
"""Files of our users that the pages speak of."""
TABLE = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
DIFFERENCES = set(re.findall(r"^\| (D-\d+) \|", TABLE, re.MULTILINE))
CODE = [path for folder in ("schemas", "services", "tests") for path in (ROOT / folder).rglob("*.py")]


def prose(page):
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", prose(page))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", OURS, ids=name)
def test_files_that_are_named_exist(page):
    named = set(re.findall(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|toml|json|md))`", prose(page)))
    named -= THEIRS
    assert {path for path in named if not any(f"/{file}".endswith(f"/{path}") for file in FILES)} == set()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_rows_stand_below_the_heads_of_their_table(page):
    """Below an empty line they are shown as text."""
    tables = re.findall(r"(?:^\|.*\n)+", prose(page), re.MULTILINE)
    assert [rows[:80] for rows in tables if not re.match(r"\|.*\n\|[ :|-]+\|\n", rows)] == []


@pytest.mark.parametrize("path", CODE, ids=name)
def test_every_difference_that_code_names_is_explained(path):
    assert set(re.findall(r"\bD-\d+\b", path.read_text(encoding="utf-8"))) <= DIFFERENCES
