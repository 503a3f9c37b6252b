"""YAML that configures something: a key may come once, since the second one drops silently what the first one says."""

from pathlib import Path
from typing import Any

import yaml

from procession_services.runtime.problems import Problem

__all__ = ["composed", "no_yaml", "parsed"]


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: dict[Any, Any]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in keys:
                    told = f"the key {key.value!r} appears twice"
                    raise yaml.composer.ComposerError(None, None, told, key.start_mark)
                keys.add((key.tag, key.value))
        return node


def composed(text: str) -> yaml.Node | None:
    """The nodes of a text, which know their lines.

    Raises:
        yaml.YAMLError: It is not YAML, nested too deeply, or has a key twice; the message tells the line.
    """
    try:
        return yaml.compose(text, Loader=_Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def parsed(text: str) -> Any:
    """What a text says; raises as `composed`."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  # a safe one
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def no_yaml(path: Path, error: yaml.YAMLError) -> Problem:
    """The problem of a file whose text is no YAML, with its line where that is known."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return Problem(str(path), "", f"is not YAML: {' '.join(str(error).split())}")
    mark, begun = error.problem_mark or error.context_mark, error.context_mark
    told = [
        error.problem,
        error.context,
        begun and error.context and f"which begins on line {begun.line + 1}",
    ]
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    return Problem(where, "", f"is not YAML: {', '.join(part for part in told if part)}")
