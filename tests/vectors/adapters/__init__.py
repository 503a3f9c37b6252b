"""One adapter for each vector file: drives our processor and says what happened in the form of the vectors.

The module is named as the file (`regex-filter.json`: `regex_filter`) and has

    async def observe(vector: dict) -> Any
    def override(vector: dict, observed: Any, differences: list[str]) -> str | None     # optional

`observe` runs the real processor and returns what `vector["expected"]` would say. `override` names the rule (`D-n` or
`A-n`) that demands exactly what differs; it decides by what the vector has and what was observed, never by its name.
`PROSE` (optional) is a set of further keys whose text is prose.
"""

import importlib
import pkgutil
from types import ModuleType
from typing import Any


def known() -> list[str]:
    """The stems that have an adapter, longest first."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted(
        (name.replace("_", "-") for name in names if name not in _HELPERS), key=lambda n: (-len(n), n)
    )


def adapter_for(stem: str, vector: dict[str, Any]) -> ModuleType | None:
    """The adapter of a file, or of the processor that its stem or the vector's `processor` contains."""
    for name in (stem, str(vector.get("processor", ""))):
        for candidate in known():
            if candidate in name.replace("_", "-").lower():
                module = importlib.import_module(f"{__name__}.{candidate.replace('-', '_')}")
                if hasattr(module, "observe"):
                    return module
    return None


_HELPERS = frozenset({"common"})
