"""Which provider a model belongs to, and how new it is: read from its name (R-PHC-1, R-TAG-1)."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from procession.args import ModelInfo

FAMILIES: Final[dict[str, tuple[str, ...]]] = {
    "anthropic": ("anthropic",),
    "openai": ("openai", "azure", "azure_ai"),
    "google": ("google", "vertex", "gemini", "vertex_ai"),
}
"""Providers that understand each other's history; both the reference's names and LiteLLM's."""

_GEMINI: Final = re.compile(r"gemini-(\d+)", re.IGNORECASE)
_CLAUDE: Final = re.compile(r"claude(?:-[a-z]+)?-(\d+)(?:[.-](\d{1,2})(?!\d))?", re.IGNORECASE)


def is_of(model: Any, *providers: str) -> bool:
    """Whether a model is one of these providers' (R-PHC-1).

    Args:
        model: `provider/name`, a `ModelInfo`, an object with `provider` and `modelId` (or with `model`), or a list, of
            which one entry is enough. Anything else is nobody's.
        providers: Names in lower case.
    """
    if isinstance(model, str):
        return any(model.lower().startswith((f"{name}/", f"{name}:")) for name in providers)
    if isinstance(model, ModelInfo):
        return (
            is_named(model.provider, providers)
            or is_of(model.id, *providers)
            or is_of(model.model_id, *providers)
        )
    if isinstance(model, Mapping):
        named = is_named(model.get("provider"), providers) or is_of(model.get("modelId"), *providers)
        return named or is_of(model.get("model"), *providers)
    return isinstance(model, list | tuple) and any(is_of(entry, *providers) for entry in model)


def is_named(provider: Any, names: Iterable[str]) -> bool:
    """Whether a provider's name is one of these, or one of these with a suffix after `.` or `-`."""
    if not isinstance(provider, str):
        return False
    lower = provider.lower()
    return any(lower == name or lower.startswith((f"{name}.", f"{name}-")) for name in names)


def family_of(model: Any) -> str | None:
    """The family of a model's provider; None for one of no family."""
    return next((family for family, names in FAMILIES.items() if is_of(model, *names)), None)


def family_named(provider: str) -> str | None:
    """The family of a provider's name."""
    return next((family for family, names in FAMILIES.items() if is_named(provider, names)), None)


def provider_of(model: Any) -> str:
    """The provider that a model names; empty where it names none."""
    if isinstance(model, ModelInfo):
        return model.provider
    if isinstance(model, Mapping):
        provider = model.get("provider")
        return provider if isinstance(provider, str) else provider_of(model.get("model"))
    if isinstance(model, str):
        return model.partition("/")[0] if "/" in model else ""
    return ""


def name_of(model: Any) -> str:
    """The name of a model in a form in which a version can be found; empty where there is none."""
    if isinstance(model, ModelInfo):
        return model.model_id or model.id
    if isinstance(model, Mapping):
        name = model.get("modelId")
        return name if isinstance(name, str) else name_of(model.get("model"))
    return model if isinstance(model, str) else ""


def is_older_gemini(model: Any, major: int) -> bool:
    """Whether the name says that it is a Gemini below that version; an unknown one is not known to be."""
    found = _GEMINI.search(name_of(model))
    return found is not None and int(found[1]) < major


def is_older_claude(model: Any, version: tuple[int, int]) -> bool:
    """Whether the name says that it is a Claude below that version; an unknown one is not known to be."""
    found = _CLAUDE.search(name_of(model))
    return found is not None and (int(found[1]), int(found[2] or 0)) < version
