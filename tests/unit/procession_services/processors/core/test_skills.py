"""Skill files, catalogues and answers (builtins.md 25.2, 25.3)."""

import json
from xml.etree import ElementTree as ET

import pytest

from procession_services.processors.core.skills import (
    InvalidSkillError,
    Skill,
    SkillIndex,
    by_path,
    catalog,
    guidance,
    matching,
    not_found,
    parse,
    search_answer,
)

ALPHA = Skill("alpha", "Does A", "skills/alpha")
OTHER = Skill("alpha", "Does A too", "more/alpha", "external")
BETA = Skill("beta", "Does B", "skills/beta", text="fills forms")
ENTRIES = [
    {"name": "zeta", "description": "Z & <b> \"q\" 's'", "location": "z/SKILL.md", "source": "local"},
    {"name": "Alpha", "description": "A é", "location": "a/SKILL.md", "source": "managed"},
]


def test_a_skill_file():
    skill, text = parse(
        "\ufeff---\nname: forms\ndescription: Fills forms.\nextra: [1]\n---\n\n# Do\nthis\n", "a/b"
    )
    assert (skill.name, skill.description, skill.path, skill.file) == (
        "forms",
        "Fills forms.",
        "a/b",
        "a/b/SKILL.md",
    )
    assert text == skill.text == "# Do\nthis"


def test_the_directory_names_a_skill_that_does_not():
    assert parse("---\ndescription: d\n---\n", "a/b")[0].name == "b"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no front matter"),
        ("name: x", "no front matter"),
        ("---\nname: x\n", "does not end"),
        ("---\nname: [x\n---\n", "not YAML"),
        ("---\n- x\n---\n", "no mapping"),
        ("---\nname: 1\n---\n", "else than text"),
        ("---\nname: ' '\n---\n", "else than text"),
        ("---\nname: x\ndescription: [y]\n---\n", "else than text"),
        ("---\nname: x\ndescription: 2024-99-99\n---\n", "not YAML"),
        ("---\nname: x\nuser: !!bool maybe\n---\n", "not YAML"),
        ("---\nname: x\nsize: !!int ''\n---\n", "not YAML"),
        ('---\nname: "\\ud800"\n---\n', "else than text"),
        ("---\nx: !!python/object/apply:os.system ['true']\n---\n", "not YAML"),
    ],
)
def test_what_is_wrong_with_a_skill_file(text, told):
    with pytest.raises(InvalidSkillError, match=told):
        parse(text, "a")


def test_each_path_once_the_first_one_counts():
    first = Skill("b", "first", "p")
    assert by_path([first, Skill("a", "second", "p"), ALPHA, OTHER]) == [OTHER, ALPHA, first]


def test_the_catalogue_as_xml_is_well_formed():
    read = ET.fromstring(catalog(ENTRIES, "xml"))
    assert [{field.tag: field.text for field in skill} for skill in read] == [ENTRIES[1], ENTRIES[0]]


def test_the_catalogue_as_json():
    heading, blank, text = catalog(ENTRIES, "json").split("\n", 2)
    assert (heading, blank) == ("Available Skills:", "")
    assert json.loads(text) == [ENTRIES[1], ENTRIES[0]]
    assert "é" in text


def test_the_catalogue_as_markdown():
    assert catalog(ENTRIES, "markdown").splitlines() == [
        "# Available Skills",
        "",
        "- **Alpha** [managed] (a/SKILL.md): A é",
        "- **zeta** [local] (z/SKILL.md): Z & <b> \"q\" 's'",
    ]


def test_guidance_names_the_tools():
    for by_location in (True, False):
        told = guidance(by_location=by_location)
        assert "`skill`" in told
        assert "`skill_read`" in told
        assert ("location" in told) is by_location


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("beta", [BETA]),
        ("alpha", [ALPHA, OTHER]),
        ("more/alpha", [OTHER]),
        ("skills/alpha/SKILL.md", [ALPHA]),
        ("skill:alpha", [ALPHA]),
        ("nope", []),
    ],
)
def test_whom_a_question_means(asked, found):
    assert matching([ALPHA, OTHER, BETA], asked, {"skill:alpha": "skills/alpha"}) == found


def test_suggestions():
    assert "alpha" in not_found("alphabet", [ALPHA, BETA], "Search.")
    assert not_found("zzz", [ALPHA, BETA], "Search.").endswith("Search.")


def test_search_looks_at_name_description_and_text():
    index = SkillIndex([ALPHA, BETA])
    assert [index.search(query)[0][0] for query in ("beta", "does forms")] == ["beta", "beta"]


def test_an_answer_has_each_name_once_and_only_skills_that_there_are():
    hits = [("beta", 2.345), ("gone", 2.0), ("beta", 1.0), ("alpha", 0.5), ("low", 0.0)]
    answer = search_answer("q", hits, [ALPHA, OTHER, BETA], 5, 0)
    assert answer["results"] == [
        {"name": "beta", "description": "Does B", "score": 2.35},
        {"name": "alpha", "description": "Does A", "score": 0.5},
    ]
    assert len(search_answer("q", hits, [ALPHA, BETA], 1, 0)["results"]) == 1
    assert search_answer("q", hits, [ALPHA, BETA], 5, 3)["results"] == []
