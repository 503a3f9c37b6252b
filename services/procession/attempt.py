"""The output of one attempt inside the run's assistant message: adding it, and taking just that out again."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self, cast

from msgspec import Struct

from procession.merging import STEP_START
from procession.parts import copy_json
from procession_schemas.messages import Message, Part, ToolInvocation


class Attempt(Struct):
    """What this attempt wrote to the response message, found again where processors have rewritten that.

    `parts` are those of the message when it was last looked at, `output` the numbers of this attempt's among them.
    `metadata` holds the earlier value of each key that the attempt set, in a list that is empty if there was none.
    `answers` are the ids of messages that processors put beside the response message, or in its place. `accepted` is
    that message with its earlier steps alone, kept only where processors put something else in their place. `calls` are
    those of earlier steps whose ids this attempt has used anew, as they were. `joined` are messages of processors that
    have become part of the response message since it had output.
    """

    started: bool = False
    parts: list[Part] = []
    output: list[int] = []
    metadata: dict[str, list[Any]] = {}
    answers: list[str] = []
    accepted: Message | None = None
    calls: dict[str, ToolInvocation] = {}
    joined: list[Message] = []

    def join(self, message: Message) -> None:
        """Notes a message that has become part of the response message."""
        if self.started:
            self.joined.append(message)

    def write(self, message: Message, parts: Iterable[Part], metadata: Mapping[str, Any]) -> None:
        """Adds output; the first parts open a new step if the message holds an earlier one (R-DM-2)."""
        self.follow(message)
        own, parts = message["content"]["parts"], list(parts)
        first = len(own)
        if parts and not self.started:
            self.started = True
            if own:
                own.append({"type": STEP_START})
        old = message["content"].get("metadata") or {}
        for key in metadata:
            self.metadata.setdefault(key, [old[key]] if key in old else [])
        write(message, parts, metadata)
        self.parts = list(own)
        self.output += range(first, len(own))

    def follow(self, message: Message) -> None:
        """Finds the output again in a message that processors may have rewritten.

        What they did before the first output is none of it.
        """
        parts = message["content"]["parts"]
        if self.started and parts != self.parts:
            found = _find(self.parts, self.output, parts)
            if found is None:
                self._keep_accepted(message)
            self.output = [*range(len(parts))] if found is None else found
        self.parts = list(parts)

    def lose(self, message: Message) -> None:
        """Notes that a processor has removed the response message."""
        self.follow(message)
        if self.started:
            self._keep_accepted(message)
            self.parts, self.output, self.joined = [], [], []

    def _keep_accepted(self, message: Message) -> None:
        if self.accepted is None:
            kept = _without(self.parts, self.output)
            self.accepted = cast("Message", {**message, "content": {**message["content"], "parts": kept}})

    def undo(self, message: Message) -> None:
        """Takes the output out; edits of the earlier steps stay (R-AB-28)."""
        self.follow(message)
        content, accepted = message["content"], self.accepted
        content["parts"] = accepted["content"]["parts"] if accepted else _without(self.parts, self.output)
        for part in content["parts"]:
            if (call := part.get("toolInvocation")) and call["toolCallId"] in self.calls:
                part["toolInvocation"] = self.calls[call["toolCallId"]]
        if self.metadata:
            kept = {
                key: value
                for key, value in (content.get("metadata") or {}).items()
                if key not in self.metadata
            }
            kept |= {key: old[0] for key, old in self.metadata.items() if old}
            content["metadata"] = kept
            if not kept:
                del content["metadata"]

    def to_dict(self) -> dict[str, Any]:
        """Its JSON form, without the message's parts; what it holds is shared."""
        return {
            "started": self.started,
            "output": self.output,
            "metadata": self.metadata,
            "answers": self.answers,
            "accepted": self.accepted,
            **({"calls": self.calls} if self.calls else {}),
            **({"joined": self.joined} if self.joined else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], message: Message | None) -> Self:
        """The inverse of `to_dict`; `message` is the response message, where there is one."""
        return cls(**data, parts=list(message["content"]["parts"]) if message else [])


def write(message: Message, parts: Sequence[Part], metadata: Mapping[str, Any]) -> None:
    """Adds parts and metadata to a message; one with text has a flat copy, which reading keeps up to date."""
    content = message["content"]
    content["parts"].extend(copy_json(list(parts)))
    if metadata:
        content["metadata"] = {**(content.get("metadata") or {}), **copy_json(dict(metadata))}
    if any(part["type"] == "text" for part in parts):
        content.setdefault("content", "")


def _without(parts: Sequence[Part], output: Iterable[int]) -> list[Part]:
    gone = set(output)
    return [part for number, part in enumerate(parts) if number not in gone]


def _find(before: Sequence[Part], output: Collection[int], parts: Sequence[Part]) -> list[int] | None:
    """Finds the numbers of the output in rewritten parts: its own, and all behind the accepted ones.

    Parts are recognized by what they hold, calls of tools by their id; a part that may belong to either side decides
    nothing. None where accepted parts and output cannot be told apart: no accepted part is left, or a new part among
    them may hold output that is missing.
    """
    if len(output) == len(before):
        return [*range(len(parts))]
    ours = {_mark(before[number]) for number in output}
    theirs = {_mark(part) for part in _without(before, output)}
    known = ours | theirs | {STEP_START}
    ours, theirs = ours - theirs - {STEP_START}, theirs - ours - {STEP_START}
    marks = [_mark(part) for part in parts]
    end = 1 + max((n for n, mark in enumerate(marks) if mark in theirs), default=-1)
    begins = {STEP_START, *ours}
    end = next((n for n in range(end, len(marks)) if marks[n] in begins), end)
    new = [n for n, mark in enumerate(marks) if mark not in known]
    missing, edited = len(ours.difference(marks)), sum(n >= end for n in new)
    if theirs.isdisjoint(marks) or (edited < len(new) and edited < missing):
        return None
    return [n for n, mark in enumerate(marks) if n >= end or mark in ours]


def _mark(part: Part) -> str:
    """What a part is recognized by, however it was copied."""
    if part["type"] == STEP_START:
        return STEP_START
    call = part.get("toolInvocation")
    return call["toolCallId"] if call else repr(part)


def by_step(parts: Iterable[Part]) -> list[list[Part]]:
    """The parts of each step; a `step-start` stands between two (R-DM-2)."""
    steps: list[list[Part]] = [[]]
    for part in parts:
        if part["type"] == STEP_START:
            steps.append([])
        else:
            steps[-1].append(part)
    return steps
