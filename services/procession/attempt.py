"""The output of one attempt inside the run's assistant message: adding it, and taking just that out again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from procession.merging import STEP_START
from procession.parts import copy_json
from procession_schemas.messages import Message, Part


@dataclass(slots=True)
class Attempt:
    """What the response message was before this attempt wrote to it.

    The counts are taken at the first write, so edits that processors made before do not count as output.
    `metadata` holds the earlier value of each key that the attempt set, in a list that is empty if there was
    none.
    """

    started: bool = False
    kept_steps: int = 0
    kept_parts: int = 0
    metadata: dict[str, list[Any]] = field(default_factory=dict)

    def write(self, message: Message, parts: Iterable[Part], metadata: Mapping[str, Any]) -> None:
        """Adds output; the first parts open a new step if the message holds an earlier one (R-DM-2)."""
        own, parts = message["content"]["parts"], list(parts)
        if parts and not self.started:
            self.started = True
            self.kept_parts, self.kept_steps = len(own), len(_steps(own))
            if own:
                own.append({"type": STEP_START})
        old = message["content"].get("metadata", {})
        for key in metadata:
            self.metadata.setdefault(key, [old[key]] if key in old else [])
        write(message, parts, metadata)

    def undo(self, message: Message) -> None:
        """Takes the output out; edits of the earlier steps stay (R-AB-28)."""
        content = message["content"]
        if self.started:
            del content["parts"][self._cut(content["parts"]) :]
        if self.metadata:
            kept = {
                key: value for key, value in content.get("metadata", {}).items() if key not in self.metadata
            }
            kept |= {key: old[0] for key, old in self.metadata.items() if old}
            content["metadata"] = kept
            if not kept:
                del content["metadata"]

    def to_dict(self) -> dict[str, Any]:
        """Its fields for JSON, as the constructor takes them; what they hold is shared."""
        return {name: getattr(self, name) for name in self.__slots__}

    def _cut(self, parts: Sequence[Part]) -> int:
        """Where the output begins: at its `step-start`, or by number if a processor removed that."""
        steps = _steps(parts)
        if not self.kept_parts:
            return 0
        return steps[self.kept_steps] if len(steps) > self.kept_steps else self.kept_parts


def write(message: Message, parts: Sequence[Part], metadata: Mapping[str, Any]) -> None:
    """Adds parts and metadata to a message; one with text has a flat copy, which reading keeps up to date."""
    content = message["content"]
    content["parts"].extend(copy_json(list(parts)))
    if metadata:
        content["metadata"] = {**content.get("metadata", {}), **copy_json(dict(metadata))}
    if any(part["type"] == "text" for part in parts):
        content.setdefault("content", "")


def _steps(parts: Sequence[Part]) -> list[int]:
    return [i for i, part in enumerate(parts) if part["type"] == STEP_START]
