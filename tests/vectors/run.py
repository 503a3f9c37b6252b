"""Runs vector files against our processors.

    python tests/vectors/run.py VECTORS_DIR [--json FILE]

Each vector is `pass`, `fail`, or overridden: by the `A-n` or `D-n` that demands what we do. The exit code is 1 where
one fails.
"""

import argparse
import asyncio
import json
import re
import sys
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(_ROOT), str(_ROOT / "services"), str(_ROOT / "schemas")]

from tests.vectors.adapters import adapter_for  # noqa: E402 - the path is set first
from tests.vectors.compare import differences  # noqa: E402

_RULE = re.compile(r"[AD]-\d+")
_SECONDS = 60.0


@dataclass(frozen=True)
class Result:
    """What became of one vector: `status` is `pass`, `fail`, or the rule that overrides it."""

    file: str
    name: str
    status: str
    differences: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether it counts as a failure."""
        return self.status == "fail"


def vectors_of(path: Path) -> list[dict[str, Any]]:
    """The vectors of a file; none where it holds something else."""
    found = json.loads(path.read_text(encoding="utf-8"))
    fits = isinstance(found, list) and all(isinstance(v, dict) and "expected" in v for v in found)
    return found if fits else []


async def judge(file: str, vector: dict[str, Any]) -> Result:
    """Runs one vector of a file."""
    name = str(vector.get("name", ""))
    adapter = adapter_for(Path(file).stem, vector)
    if adapter is None:
        return Result(file, name, "fail", ["no adapter"])
    try:
        observed = await asyncio.wait_for(adapter.observe(vector), _SECONDS)
        found = differences(vector, observed, getattr(adapter, "PROSE", ()))
        if not found:
            return Result(file, name, "pass")
        override = getattr(adapter, "override", None)
        rule = override(vector, observed, found) if override is not None else None
    except Exception:  # noqa: BLE001 - whatever an adapter raises is a failure of its vector
        return Result(file, name, "fail", [f"the adapter failed: {traceback.format_exc(limit=-4)}"])
    if rule is not None and not _RULE.fullmatch(rule):
        found.append(f"the adapter names {rule!r}, which is no rule")
        rule = None
    return Result(file, name, rule or "fail", found)


def run(directory: Path) -> list[Result]:
    """Runs all vectors of all files, in order."""
    return [
        asyncio.run(judge(path.name, vector))
        for path in sorted(directory.glob("*.json"))
        for vector in vectors_of(path)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each vector that does not simply pass, and a summary for each file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="VECTORS_DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write all results")
    parser.add_argument("--verbose", action="store_true", help="all vectors, and all differences")
    told = parser.parse_args(arguments)
    if not told.directory.is_dir():
        parser.error(f"{told.directory} is no directory")
    results = run(told.directory)
    _print(results, verbose=told.verbose)
    if told.json:
        told.json.write_text(json.dumps([asdict(result) for result in results], indent=1), encoding="utf-8")
    return int(any(result.failed for result in results) or not results)


def _print(results: list[Result], *, verbose: bool) -> None:
    lines = []
    for result in results:
        if result.status != "pass" or verbose:
            lines.append(f"{result.file}: {result.name}: {result.status}")
            shown = result.differences if verbose else result.differences[:3] if result.failed else []
            lines += ["    " + difference.replace("\n", "\n    ") for difference in shown]
    lines.append("")
    for file in [*dict.fromkeys(result.file for result in results), "all"]:
        counts = Counter(result.status for result in results if file in (result.file, "all"))
        told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items(), key=_order))
        lines.append(f"{file:35} {told}")
    print("\n".join(lines))  # noqa: T201 - it is a command


def _order(item: tuple[str, int]) -> tuple[int, str]:
    return (("pass", "fail").index(item[0]) if item[0] in ("pass", "fail") else 2), item[0]


if __name__ == "__main__":
    sys.exit(main())
