"""`working-memory-state`: tells the note as a state signal, whole at first and then what changed (R-WM-16..18)."""

import hashlib

from pydantic import Field

from procession.state_signals import SentState, StateSignal, StateSignalArgs, StateSignalProcessor
from procession_services.memory.core.line_diff import hunks
from procession_services.memory.scope import Place, current_memory, place
from procession_services.memory.working import NoteOptions, form_of, note_of


class WorkingMemoryStateOptions(NoteOptions):
    """Options of `working-memory-state`."""

    has_template: bool = Field(default=True, description="False: there is no working memory to tell.")


class WorkingMemoryState(StateSignalProcessor[WorkingMemoryStateOptions]):
    """Keeps the model informed of the note, without repeating it at every step."""

    id = "working-memory-state"
    name = "Working memory state"
    description = "Tells the model its notes about the user when they change."
    host = "memory"
    state_id = "working-memory"

    async def compute_state_signal(self, args: StateSignalArgs) -> StateSignal | None:
        """A snapshot, or for Markdown the changed lines as long as the model sees the snapshot; None if it knows.

        Raises:
            MemoryScopeError: There is no store here.
        """
        if not self.options.has_template:
            return None
        found = place(args.request_context)
        here = Place(found.thread or args.thread_id, found.resource or args.resource_id, found.options)
        text = (await note_of(current_memory(), here, self.options.scope) or "").strip()
        if not text:
            return None
        written = form_of(self.options).format
        digest = hashlib.sha256(b"\0".join(each.encode() for each in (written, text))).hexdigest()
        key = f"sha256:{digest}"
        if args.has_snapshot and args.current_cache_key == key:
            return None
        attributes = {"format": written, "scope": self.options.scope}
        known = _known(args) if args.has_snapshot and written == "markdown" else None
        if not known:
            return {"id": self.state_id, "mode": "snapshot", "cacheKey": key, "tagName": self.state_id,
                    "contents": text, "value": text, "attributes": attributes}  # fmt: skip
        delta = hunks(known, text)
        return {"id": self.state_id, "mode": "delta", "cacheKey": key, "tagName": self.state_id,
                "contents": delta, "delta": delta, "value": text,
                "attributes": {**attributes, "patch": "unified-diff"}}  # fmt: skip


def _known(args: StateSignalArgs) -> str | None:
    """The text that the model has, from what was sent; None or empty where that is not known."""
    latest: SentState | None = args.deltas[-1] if args.deltas else None
    for sent in (latest, args.last_snapshot):
        if sent is not None and isinstance(sent.metadata.get("value"), str):
            value: str = sent.metadata["value"]
            return value
    return args.last_snapshot.contents if args.last_snapshot is not None else None
