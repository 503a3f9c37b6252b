"""System messages of a run: untagged and tagged groups, and the baseline of each step (core.md 7.5)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

from procession.messages import system_text
from procession.parts import InvalidMessageError
from procession_schemas.messages import SystemMessage

FEEDBACK_TAG: Final = "processor-feedback"
"""Group of the feedback of a retried attempt; as the last group it follows the whole baseline (R-AB-29)."""


def feedback(reason: str) -> str:
    """What the model reads when a processor wants its answer again (R-AB-29)."""
    told = reason if reason.endswith(".") else f"{reason}."
    return (
        f"[Processor feedback] Your last answer was rejected: {told} "
        "Produce a new answer that takes this into account."
    )


class SystemMessages:
    """An untagged group first, then tagged groups in the order in which they appeared (R-SY-1).

    Messages are `{"role": "system", "content": str}`; what comes out are copies.
    """

    def __init__(self) -> None:
        self._groups: dict[str | None, list[str]] = {}
        self._baseline: dict[str | None, list[str]] | None = None

    def add(self, messages: Any, tag: str | None = None) -> None:
        """Appends a text, a system message or a list of these; what the group holds is ignored (R-ML-4).

        Raises:
            InvalidMessageError: One of them is neither a string nor a message of role system.
        """
        group = self._groups.setdefault(tag, [])
        for text in _read(messages):
            if text not in group:
                group.append(text)

    def get(self, tag: str | None = None) -> list[SystemMessage]:
        """Returns the messages of one group; without a tag the untagged ones."""
        return _as_messages(self._groups.get(tag, ()))

    def all(self) -> list[SystemMessage]:
        """Returns all messages in prompt order: untagged, then each tagged group."""
        tagged = (text for tag, group in self._groups.items() if tag is not None for text in group)
        return [*self.get(), *_as_messages(tagged)]

    def clear(self, tag: str | None = None) -> None:
        """Empties one group; without a tag the untagged one."""
        self._groups.pop(tag, None)

    def replace_untagged(self, messages: Sequence[Any]) -> None:
        """Replaces the untagged group; entries that are no system messages are ignored (R-ML-4)."""
        self._groups[None] = _read(
            [m for m in messages if isinstance(m, Mapping) and m.get("role") == "system"]
        )

    def replace_all(self, messages: Sequence[Any]) -> None:
        """Replaces every group by an untagged one in the order given (R-IS-10, A-17).

        Raises:
            InvalidMessageError: As in `add`.
        """
        self._groups = {None: _read(messages)}

    def freeze(self) -> None:
        """Takes the baseline (R-SY-2)."""
        self._baseline = _copy(self._groups)

    def reset(self, feedback: Iterable[str] = ()) -> None:
        """Goes back to the baseline, all groups alike, then adds the feedback (R-SY-3, R-SY-5, R-AB-30).

        Raises:
            RuntimeError: No baseline was taken.
        """
        if self._baseline is None:
            raise RuntimeError(
                "the system messages have no baseline; call freeze_baseline() after process_input"
            )
        self._groups = _copy(self._baseline)
        self.add(list(feedback), FEEDBACK_TAG)

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form: groups and baseline as lists of `[tag, texts]`."""
        baseline = None if self._baseline is None else _pairs(self._baseline)
        return {"groups": _pairs(self._groups), "baseline": baseline}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        made = cls()
        made._groups = dict(data["groups"])
        made._baseline = None if data["baseline"] is None else dict(data["baseline"])
        return made


def _read(messages: Any) -> list[str]:
    listed = messages if isinstance(messages, list | tuple) else [messages]
    return [_read_one(message, f"systemMessages.{i}") for i, message in enumerate(listed)]


def _read_one(message: Any, where: str) -> str:
    if isinstance(message, str):
        return message
    if not isinstance(message, Mapping) or message.get("role") != "system":
        raise InvalidMessageError(
            where, "is not a system message; give a string or {'role': 'system', 'content': text}"
        )
    content = message.get("content")
    if isinstance(content, list):
        content = {"parts": content}
    if not isinstance(content, str | Mapping):
        raise InvalidMessageError(f"{where}.content", "is missing or is not text; give a string")
    return system_text({"content": content})


def _as_messages(texts: Iterable[str]) -> list[SystemMessage]:
    return [{"role": "system", "content": text} for text in texts]


def _copy(groups: dict[str | None, list[str]]) -> dict[str | None, list[str]]:
    return {tag: list(texts) for tag, texts in groups.items()}


def _pairs(groups: dict[str | None, list[str]]) -> list[list[Any]]:
    return [[tag, list(texts)] for tag, texts in groups.items()]
