"""What containers may do and what their images hold, asked of the running stack."""

import asyncio
import json
import re
import tomllib
from typing import Any, Final

from tests.e2e.load import Figures
from tests.e2e.scenario import SERVERS
from tests.e2e.stack import COMPOSED, ROOT, Stack

__all__ = ["confined", "slim"]

Needs = dict[str, list[tuple[str, list[str], str | None]]]
EXTRAS: Final = {
    "orchestrator": {"guardrails", "tokens"},  # it checks the options of all processors
    "input-processors": {"guardrails", "tokens"},
    "output-processors": {"guardrails", "tokens"},
    "llm-gateway": {"llm-gateway"},
    "memory": {"memory"},
    "error-recovery": set[str](),
    "tools": set[str](),
    "demo-model": set[str](),
}
_STOP_SECONDS: Final = 30

_INSTALLED: Final = """
import importlib.metadata, json, re
def plain(text):
    return re.sub("[-_.]+", "-", text).lower()
def needed(text):
    name, extras = re.match(r"([\\w.-]+)(?:\\[([^]]*)\\])?", text).groups()
    only = re.search("extra == .([\\w.-]+)", text)
    return plain(name), [plain(extra) for extra in re.findall(r"[\\w.-]+", extras or "")], only and plain(only[1])
print(json.dumps({
    plain(each.name): [needed(text) for text in each.requires or ()]
    for each in importlib.metadata.distributions()
}))
"""
"""The libraries of an image, and what each of them needs: a name, its extras, and for which extra only."""
_WHO_RUNS: Final = """
import json
from procession.processor import INPUT_HOOKS, OUTPUT_HOOKS
from procession.registry import Registry
told = {}
for name, kind in Registry.load().processors.items():
    hooks = {str(hook) for hook in kind.hooks_for({})}
    arrays = [
        service for service, its in (
            ("input-processors", {*map(str, INPUT_HOOKS)}),
            ("output-processors", {*map(str, OUTPUT_HOOKS)}),
            ("error-recovery", {"processAPIError"}),
        ) if hooks & its
    ]
    told[name] = [kind.host] if kind.host else arrays
print(json.dumps(told))
"""
_LOADED: Final = """
import sys
from procession.registry import Registry
registry = Registry.load()
for name in sys.argv[1:]:
    registry.processor(name)
list(registry.tools.values())
"""


async def confined(stack: Stack, figures: Figures) -> None:
    """Every container is without rights, bounded, pinned, watched, and has no password in its environment."""
    passwords = [
        file.read_text().strip()
        for kind in ("nats", "redis", "clients", "processors")
        for file in (stack.deployment.directory / kind).iterdir()
        if file.suffix == ""
    ]
    named = {each["Config"]["Labels"]["com.docker.compose.service"]: each for each in await stack.inspect()}
    running = {*COMPOSED, *SERVERS, "demo-model"}
    figures.expect(named.keys() == {*running, "volumes"}, f"there are containers of {sorted(named)}")
    for name in sorted(running):
        wrong = _wrong(named[name], passwords, ours=name in COMPOSED)
        figures.expect(not wrong, f"container {name}: {', '.join(wrong)}")
    for name in SERVERS:
        mounts = {
            mount["Destination"]: mount.get("Name", "")
            for mount in named[name]["Mounts"]
            if mount["Type"] == "volume"
        }
        figures.expect(mounts == {"/data": f"{stack.project}_{name}"}, f"container {name}: volumes {mounts}")
    for name in ("orchestrator", "redis", "nats"):
        told = await stack.compose("exec", "-T", name, "sh", "-c", "id -u; touch /x 2>&1 || true")
        figures.expect(
            not told.startswith("0") and "Read-only" in told, f"container {name}: writes as {told!r}"
        )


def _wrong(container: dict[str, Any], passwords: list[str], *, ours: bool) -> list[str]:
    host, config = container["HostConfig"], container["Config"]
    environment = " ".join(config["Env"])
    holds = {
        "root file system may be written": host["ReadonlyRootfs"],
        "runs as root": config["User"].split(":")[0] not in ("", "0", "root"),
        "has capabilities": host["CapDrop"] == ["ALL"] and not host["CapAdd"],
        "may gain rights": "no-new-privileges:true" in (host["SecurityOpt"] or []),
        "has no limit of memory": host["Memory"] > 0,
        "has no limit of processors": host["NanoCpus"] > 0,
        "is not healthy": container["State"].get("Health", {}).get("Status") == "healthy",
        "is not started again": host["RestartPolicy"]["Name"] == "unless-stopped",
        "has no pinned version": re.search(r":(\d+\.\d+\.\d+|e2e)", config["Image"]) is not None,
        "has a password in its environment": not any(password in environment for password in passwords),
        "keeps all logs": host["LogConfig"]["Config"].get("max-size") is not None,
    }
    if ours:
        holds["may not stop in peace"] = config.get("StopTimeout") == _STOP_SECONDS
    return [what for what, true in holds.items() if not true]


async def slim(stack: Stack, figures: Figures) -> dict[str, int]:
    """Images have what their services need, and no extra of another; gives their sizes in MB."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extras = {
        name: {_name(requirement) for requirement in requirements}
        for name, requirements in project.items()
        if name != "all"
    }
    placed: dict[str, list[str]] = json.loads(await stack.python("orchestrator", _WHO_RUNS))

    async def look(service: str) -> None:
        there: Needs = json.loads(await stack.python(service, _INSTALLED))
        wanted = {name for extra in EXTRAS[service] for name in extras[extra]}
        lacking = wanted - there.keys()
        figures.expect(not lacking, f"image {service} lacks {sorted(lacking)}")
        others = {name for names in extras.values() for name in names} - _closure(wanted, there)
        surplus = others & there.keys()
        figures.expect(not surplus, f"image {service} has {sorted(surplus)}")
        runs = [name for name, services in placed.items() if service in services or service == "orchestrator"]
        if service != "demo-model":
            await stack.python(service, _LOADED, *runs)

    await asyncio.gather(*(look(service) for service in EXTRAS))
    return {
        service: round(int(await stack.run("docker", "image", "inspect", "-f", "{{.Size}}", image)) / 1e6)
        for service in EXTRAS
        for image in [f"procession-{service}:{stack.version}"]
    }


def _closure(names: set[str], needs: Needs) -> set[str]:
    """These libraries and all that they need."""
    found, open_ = set[tuple[str, frozenset[str]]](), [(name, frozenset[str]()) for name in names]
    while open_:
        name, extras = place = open_.pop()
        if place not in found:
            found.add(place)
            open_ += [
                (need, frozenset(its))
                for need, its, only in needs.get(name, ())
                if only is None or only in extras
            ]
    return {name for name, _ in found}


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=;~! ]", requirement)[0].lower()
