"""The conversation of a run: messages with their sources, system messages, the response in the making.

Messages are plain dicts, and those that come out are the live ones: an edit shows up everywhere (R-AR-6).
Those that go in are copied. The rules are in core.md 7.3 to 7.5.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self, cast

from procession.attempt import Attempt, by_step, write
from procession.entries import Entries, Entry, known
from procession.merging import advance, find_part, is_open, keep_outcomes
from procession.messages import check_stored, is_readable, normalise, system_text, without_stale_flat
from procession.parts import MAPPINGS, InvalidMessageError, copy_json
from procession.signals import cut_back
from procession.system_messages import SystemMessages
from procession.views import Clear, Views
from procession_schemas.messages import Message, Part, Source, SystemMessage, ToolInvocation

_ONE: Final = (str, *MAPPINGS)
"""What stands for one message rather than several."""
_SOURCES: Final[dict[str, Source]] = {
    "memory": "memory",
    "input": "input",
    "user": "input",
    "response": "response",
    "context": "context",
}


class MessageList:
    """The live conversation of one run (R-AR-7).

    Args:
        new_id: Makes the id of a message that has none.
        now: Tells the time as `2026-01-31T12:00:00.000Z`.
        thread_id: Thread of messages that name none.
        resource_id: Resource of messages that name none.
    """

    def __init__(
        self,
        *,
        new_id: Callable[[], str],
        now: Callable[[], str],
        thread_id: str | None = None,
        resource_id: str | None = None,
    ) -> None:
        self.thread_id = thread_id
        self.resource_id = resource_id
        self._new_id = new_id
        self._entries = Entries(now)
        self._system = SystemMessages()
        self._response_id: str | None = None
        self._attempt: Attempt | None = None

    # --- views: made when they are asked for, since nothing here may be in a circle (docs/adr/0023) -------

    @property
    def get(self) -> Views:
        """The messages that are not drained yet, by source (R-ML-2)."""
        return Views(partial(self._select, drained=False))

    @property
    def get_persisted(self) -> Views:
        """All messages, by source (R-ML-2)."""
        return Views(partial(self._select, drained=True))

    @property
    def clear(self) -> Clear:
        """What can be cleared (R-ML-4)."""
        return Clear(self._clear)

    # --- messages ------------------------------------------------------------------------------

    def add(self, messages: Any, source: str, *, merge: bool = True) -> Self:
        """Adds a text, a message in any format that `messages.normalise` reads, or a list (R-ML-4..10).

        A known id replaces the stored message; an incoming copy beats one of memory, whichever came first
        (D-18). An assistant message right after another one becomes part of it, unless `merge` is False. An empty text
        is no message.

        Raises:
            InvalidMessageError: One of them cannot be read; none is added then.
            ValueError: The source is unknown.
        """
        if source not in _SOURCES:
            raise ValueError(f"unknown source {source!r}; use one of {', '.join(_SOURCES)}")
        kind, index = _SOURCES[source], self._entries.index()
        newest = self._entries.newest()
        read = [(like, self._read(like, index, f"messages.{i}")) for i, like in enumerate(_listed(messages))]
        for like, message in read:
            stored = index.get(message["id"])
            if message["role"] == "system":
                self._take_system(message, kind)
            elif stored and _is_outcome(like) and stored.message["role"] == "assistant":
                stored.take(message, kind)
            elif stored:
                before = stored.time
                stored.replace(message, kind)
                if stored.time != before:
                    newest = self._entries.newest()
            elif merge and newest and newest.may_take(message, kind):
                self._join(newest, message, kind)
            else:
                entry = index[message["id"]] = self._append(message, kind)
                if newest is None or newest.time <= entry.time:
                    newest = entry
        return self

    def reconcile(self, stage: Sequence[Message], returned: Sequence[Any], default_source: str) -> None:
        """Takes over the array that a hook returned for its stage messages (R-RC-1..5).

        What is missing in `returned` goes; what is as the stored object stays; a known id is replaced and
        keeps its source; an unknown one is added with the default source, never merged. Messages outside the
        stage stay.

        Raises:
            InvalidMessageError: A returned message cannot be read; nothing changes then.
        """
        index = self._entries.index()
        self._entries.newest()
        read: list[Message] = []
        kept: set[str] = set()
        for i, like in enumerate(returned):
            stored = known(like, index)
            if stored is not None and _are_equal(stored.message, like):
                message = stored.message
            else:
                message = self._read(like, index, f"messages.{i}")
            read.append(message)
            kept.add(message["id"])
        if gone := {message["id"] for message in stage} - kept:
            self.remove_by_ids(gone)
        for message in read:
            stored = index.get(message["id"])
            if message["role"] == "system":
                self._system.add(system_text(message))
            elif stored is None:
                index[message["id"]] = self._append(message, _SOURCES[default_source])
            elif stored.message != message:
                stored.message = message

    def remove_by_ids(self, ids: Collection[str]) -> list[Message]:
        """Removes messages and returns them; unknown ids are ignored."""
        wanted = {ids} if isinstance(ids, str) else set(ids)
        return self._remove(lambda entry: entry.message["id"] in wanted)

    def source_of(self, message_id: str) -> Source | None:
        """Returns where a message came from, None if there is no such message (R-ML-1)."""
        return entry.source if (entry := self._entries.find(message_id)) else None

    def drain_unsaved_messages(self) -> list[Message]:
        """Returns input and response messages not drained before; they stay in the conversation (R-PE-2)."""
        drained = [e for e in self._entries.fresh() if e.source in ("input", "response") and not e.saved]
        for entry in drained:
            entry.saved = True
        return [entry.message for entry in drained]

    # --- system messages -----------------------------------------------------------------------

    def add_system(self, messages: Any, tag: str | None = None) -> Self:
        """Adds a text, a system message or a list of these; duplicates under one tag are ignored (R-ML-4)."""
        self._system.add(messages, tag)
        return self

    def get_system_messages(self, tag: str | None = None) -> list[SystemMessage]:
        """Returns copies of the untagged system messages, or of those of one tag."""
        return self._system.get(tag)

    def get_all_system_messages(self) -> list[SystemMessage]:
        """Returns copies of all system messages in prompt order: untagged, then tagged groups (R-SY-1)."""
        return self._system.all()

    def clear_system_messages(self, tag: str | None = None) -> None:
        """Removes the untagged system messages, or those of one tag."""
        self._system.clear(tag)

    def replace_all_system_messages(self, messages: Sequence[Any]) -> None:
        """Replaces the untagged system messages only; entries of another role are ignored (R-ML-4)."""
        self._system.replace_untagged(messages)

    def replace_system(self, messages: Sequence[Any]) -> None:
        """Replaces all system messages, tagged ones too, by what a hook returned (R-IS-10, A-17)."""
        self._system.replace_all(messages)

    def freeze_baseline(self) -> None:
        """Takes the baseline of the system messages, once `process_input` is through (R-SY-2)."""
        self._system.freeze()

    def reset_system(self, feedback: Iterable[str] = ()) -> None:
        """Goes back to the baseline, then one system message per feedback text (R-SY-3, R-AB-29, R-AB-30).

        Raises:
            RuntimeError: No baseline was taken.
        """
        self._system.reset(feedback)

    # --- the response in the making ------------------------------------------------------------

    def begin_response(self, message_id: str) -> None:
        """Starts an attempt that writes into the assistant message with that id; accepts the one before."""
        self._response_id = message_id
        self._attempt = Attempt()

    def append_response_parts(
        self, parts: Iterable[Part], *, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Adds parts and metadata to the run's assistant message; an attempt's first open a step (R-DM-2).

        Without parts no message is made. After `accept_response`, parts join the last step, or what a processor has put
        in the place of the message.

        Raises:
            RuntimeError: No response was begun.
        """
        if self._response_id is None:
            raise RuntimeError("there is no response to add to; call begin_response(message_id) first")
        new, entry = list(parts), self._entries.find(self._response_id)
        if entry is None and self._attempt is None:
            entry = next(filter(_is_answer, reversed(self._entries.ordered())), None)
        if entry is None:
            if not new:
                return
            self._entries.newest()
            entry = self._append(self._empty_response(self._response_id), "response")
        if self._attempt:
            self._attempt.write(entry.message, new, metadata or {})
        else:
            write(entry.message, new, metadata or {})
        entry.source, entry.saved = "response", False

    @property
    def attempt_has_parts(self) -> bool:
        """Whether the run's assistant message has anything of the attempt in hand, as processors have left it."""
        attempt, entry = self._attempt, self._entries.find(self._response_id)
        if attempt is None or not attempt.started or entry is None:
            return False
        attempt.follow(entry.message)
        return bool(attempt.output)

    def response_steps(self) -> list[list[Part]]:
        """The parts of the run's assistant message, step by step (R-DM-2); none without that message."""
        entry = self._entries.find(self._response_id)
        return by_step(entry.message["content"]["parts"]) if entry else []

    def rollback_response(self, *, failed: bool = False) -> None:
        """Removes what this attempt added, and only that; edits of anything else stay (R-AB-28, R-AE-12).

        Messages of the assistant that processors added to its output go with it; where they took the place of the
        response message, that comes back with its earlier steps. All stay when the attempt has `failed`, those that
        have become part of the response message too: they are changes of error processors, for the next one (R-AE-10).
        """
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        answers = [] if failed else attempt.answers
        self.remove_by_ids(answers)
        entry = self._entries.find(self._response_id)
        if entry is None and answers and attempt.accepted:
            entry = self._append(attempt.accepted, "response")
        if entry:
            attempt.undo(entry.message)
            cut_back(self.get.all.db(), entry.message)
            if attempt.started and not entry.message["content"]["parts"]:
                self._entries.all.remove(entry)
        if failed:
            self.add(attempt.joined, "response")

    def accept_response(self) -> None:
        """Keeps what the attempt added; nothing can be rolled back any more."""
        self._attempt = None

    def add_error_part(self, name: str, message: str) -> None:
        """Adds the failure that ended the run to its assistant message (R-AE-14)."""
        self.append_response_parts([{"type": "error", "error": {"name": name, "message": message}}])

    # --- tool calls ----------------------------------------------------------------------------

    def update_tool_invocation(self, part: Mapping[str, Any]) -> bool:
        """Stores state and outcome of a tool call; arguments stay, its message becomes a response (R-ML-4).

        Args:
            part: `{"type": "tool-invocation", "toolInvocation": {"toolCallId", "state", "result"?, ...}}`.

        Returns:
            Whether the call was found and the move was a forward one.

        Raises:
            InvalidMessageError: The part names no tool call.
        """
        update = part.get("toolInvocation")
        if not isinstance(update, Mapping) or not isinstance(update.get("toolCallId"), str):
            raise InvalidMessageError(
                "part.toolInvocation", "names no tool call; give an object with toolCallId and state"
            )
        return self._advance(update["toolCallId"], update)

    def set_tool_result(self, tool_call_id: str, result: Any) -> bool:
        """Records what a tool returned; tells whether there was such a call to record it with."""
        return self._advance(tool_call_id, {"state": "result", "result": copy_json(result)})

    def set_tool_error(self, tool_call_id: str, message: str) -> bool:
        """Records that a tool failed (R-TX-4); tells whether there was such a call."""
        return self._advance(tool_call_id, {"state": "output-error", "errorText": message})

    def set_tool_denied(self, tool_call_id: str, reason: str | None = None) -> bool:
        """Records that a call was not approved (R-AP-3); tells whether there was such a call."""
        approval = {"approved": False} | ({"reason": reason} if reason else {})
        return self._advance(tool_call_id, {"state": "output-denied", "approval": approval})

    def begin_again(self, call: Mapping[str, Any]) -> None:
        """Makes a call of an earlier step that of this one, which has its id; taken back with the attempt."""
        call_id = call["toolCallId"]
        if found := self._call(call_id):
            if self._attempt:
                self._attempt.calls.setdefault(call_id, found[1]["toolInvocation"])
            found[1]["toolInvocation"] = {
                "state": "call",
                "toolCallId": call_id,
                "toolName": call["toolName"],
                "args": call.get("args"),
            }

    def pending_tool_calls(self) -> list[ToolInvocation]:
        """Returns copies of the tool calls of this run that still wait for an outcome, in call order."""
        parts = [part for message in self.get_persisted.response.db() for part in message["content"]["parts"]]
        calls = [part["toolInvocation"] for part in parts if "toolInvocation" in part]
        return [copy_json(call) for call in calls if is_open(call)]

    def check(self) -> None:
        """Looks for what edits in place have spoilt, and takes it out, so that the run can be told of.

        Raises:
            InvalidMessageError: There was such a message; says what is wrong with the first.
        """
        try:
            check_stored(entry.message for entry in self._entries.all)
        except InvalidMessageError:
            self._entries.all = [entry for entry in self._entries.all if is_readable(entry.message)]
            raise

    # --- travelling between services -----------------------------------------------------------

    def serialize(self) -> dict[str, Any]:
        """Returns the full state for JSON; it shares the live messages: encode it before they change."""
        response = self._entries.find(self._response_id)
        if self._attempt and response:
            self._attempt.follow(response.message)
        return {
            "threadId": self.thread_id,
            "resourceId": self.resource_id,
            "lastStamp": self._entries.last_stamp,
            "messages": [
                {"message": entry.message, "source": entry.source, "saved": entry.saved}
                for entry in self._entries.fresh()
            ],
            "system": self._system.to_dict(),
            "responseId": self._response_id,
            "attempt": self._attempt.to_dict() if self._attempt else None,
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any], *, new_id: Callable[[], str], now: Callable[[], str]) -> Self:
        """The inverse of `serialize`; takes the data over."""
        made = cls(new_id=new_id, now=now, thread_id=data["threadId"], resource_id=data["resourceId"])
        made._entries.last_stamp = data["lastStamp"]
        made._entries.all = [Entry(**entry) for entry in data["messages"]]
        made._system = SystemMessages.from_dict(data["system"])
        made._response_id = data["responseId"]
        if data["attempt"]:
            response = made._entries.find(data["responseId"])
            made._attempt = Attempt.from_dict(data["attempt"], response.message if response else None)
        return made

    def changes_since(self, before: Mapping[str, Any]) -> dict[str, Any] | None:
        """What is other than when `serialize` gave `before`, for `take_changes`; None where nothing is.

        Args:
            before: A copy that nobody has changed.
        """
        now = self.serialize()
        if now == before:
            return None
        gone = {entry["message"]["id"]: entry for entry in before["messages"]}
        changed = [entry for entry in now["messages"] if gone.pop(entry["message"]["id"], None) != entry]
        system = None if now["system"] == before["system"] else now["system"]
        return {"messages": changed, "gone": list(gone), "system": system, "lastStamp": now["lastStamp"]}

    def take_changes(self, changes: Mapping[str, Any]) -> None:
        """Takes what was changed in a copy; messages stay the objects that they are, and tool calls keep outcomes."""
        index = self._entries.index()
        for entry in changes["messages"]:
            made, stored = Entry(**entry), index.get(entry["message"]["id"])
            if stored is None:
                self._entries.all.append(made)
                continue
            keep_outcomes(made.message, stored.message)
            stored.message.clear()  # type: ignore[attr-defined]  # a TypedDict is a dict
            stored.message.update(made.message)
            stored.source, stored.saved = made.source, made.saved
        self.remove_by_ids(changes["gone"])
        if changes["system"] is not None:
            self._system = SystemMessages.from_dict(changes["system"])
        self._entries.stamped(changes["lastStamp"])

    # --- inside --------------------------------------------------------------------------------

    def _select(self, source: Source | None, *, drained: bool) -> list[Message]:
        if source is None:
            return [entry.message for entry in self._entries.fresh()]
        return [e.message for e in self._entries.fresh() if e.source == source and (drained or not e.saved)]

    def _remove(self, doomed: Callable[[Entry], bool]) -> list[Message]:
        gone = self._entries.remove(doomed)
        for message in gone:
            if self._attempt and message["id"] == self._response_id:
                self._attempt.lose(message)
        return gone

    def _clear(self, source: Source | None) -> list[Message]:
        return self._remove(lambda entry: source is None or (entry.source == source and not entry.saved))

    def _read(self, like: Any, index: Mapping[str, Entry], where: str) -> Message:
        """Normalises a message; a known one keeps the time, thread and resource that it does not name."""
        defaults: dict[str, Any] = {"threadId": self.thread_id, "resourceId": self.resource_id}
        if stored := known(like, index):
            like = without_stale_flat(like, stored.message)
            defaults |= {key: value for key, value in stored.message.items() if key != "content"}
        now = (lambda: stored.time) if stored else self._entries.stamp
        message = normalise(like, new_id=self._new_id, now=now, where=where)
        self._entries.stamped(message["createdAt"])
        present = {key: value for key, value in defaults.items() if value is not None}
        return cast("Message", {**present, **message})

    def _append(self, message: Message, source: Source) -> Entry:
        entry, attempt = Entry(message, source), self._attempt
        self._entries.all.append(entry)
        if attempt and attempt.started and (message["role"], source) == ("assistant", "response"):
            attempt.answers.append(message["id"])
        return entry

    def _join(self, entry: Entry, message: Message, source: Source) -> None:
        entry.take(message, source)
        if self._attempt and entry.message["id"] == self._response_id:
            self._attempt.join(message)

    def _take_system(self, message: Message, source: Source) -> None:
        """System messages have their own place; those of memory are dropped (R-ML-9)."""
        if source != "memory":
            self._system.add(system_text(message))

    def _advance(self, call_id: str, update: Mapping[str, Any]) -> bool:
        if found := self._call(call_id):
            entry, part = found
            if moved := advance(part, update):
                entry.source, entry.saved = "response", False
            return moved
        return False

    def _call(self, call_id: str) -> tuple[Entry, Part] | None:
        for entry in reversed(self._entries.ordered()):
            if part := find_part(entry.message["content"]["parts"], call_id):
                return entry, part
        return None

    def _empty_response(self, message_id: str) -> Message:
        like = {"id": message_id, "role": "assistant", "content": []}
        return self._read(like, {}, "response")


def _are_equal(stored: Message, like: Any) -> bool:
    """Whether something is the stored message, or says the same."""
    try:
        return stored is like or bool(stored == like)
    except RecursionError:  # it contains itself
        return False


def _listed(messages: Any) -> Iterable[Any]:
    if isinstance(messages, _ONE):
        return [messages] if messages != "" else []
    if not isinstance(messages, Iterable):
        raise InvalidMessageError(
            "messages", f"is of type {type(messages).__name__}; give a message or a list of them"
        )
    return messages


def _is_answer(entry: Entry) -> bool:
    return entry.source == "response" and entry.message["role"] == "assistant"


def _is_outcome(like: Any) -> bool:
    """Whether it is a message of tool results, which completes one with its id and does not replace it."""
    return isinstance(like, Mapping) and like.get("role") == "tool"
