"""State signals: keep the model informed of something that changes, without repeating it at every step (R-WM-16).

A state has an id on a thread. It is sent once as a snapshot, then as deltas, as long as the snapshot is among the
messages that the model sees. What was sent is read from the conversation itself, so it needs no store.
"""

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Required, TypedDict

from procession import signals
from procession.args import HookArgs, InputStepArgs, InputStepReturn
from procession.processor import OptionsT, Processor
from procession.signals import Signal
from procession_schemas.memory import MEMORY_KEY
from procession_schemas.messages import Message

__all__ = ["SentState", "StateSignal", "StateSignalArgs", "StateSignalProcessor", "sent_states"]


class StateSignal(TypedDict, total=False):
    """What `compute_state_signal` returns.

    Keys:
        id: Names the state on its thread; by default `state_id` of the processor.
        mode: `snapshot`: `contents` is all of it. `delta`: `contents` is what changed.
        cacheKey: Tells one value of the state from another.
        tagName: The tag around the contents; by default the id.
        contents: The text for the model.
        value, delta: JSON for the next computation, which finds them in `metadata` of what was sent.
        attributes: Attributes of the tag.
        metadata: More JSON to keep.
    """

    id: str
    mode: Literal["snapshot", "delta"]
    cacheKey: Required[str]
    tagName: str
    contents: Required[str]
    value: Any
    delta: Any
    attributes: dict[str, Any]
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SentState:
    """A state signal of the conversation: the text, and `metadata` with `value` and `delta` where they were given."""

    contents: str
    mode: str
    cache_key: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True, slots=True)
class StateSignalArgs(HookArgs):
    """What `compute_state_signal` gets.

    `has_snapshot` and `last_snapshot` speak of the messages that the model sees; `deltas` are those since that
    snapshot, oldest first; `current_cache_key` is the key of what was sent last, None where nothing is visible.
    `thread_id` and `resource_id` are None for a run without memory.
    """

    step: InputStepArgs
    thread_id: str | None
    resource_id: str | None
    has_snapshot: bool = False
    last_snapshot: SentState | None = None
    deltas: list[SentState] = field(default_factory=list)
    current_cache_key: str | None = None


class StateSignalProcessor(Processor[OptionsT]):
    """A processor that keeps the model informed of one state: override `compute_state_signal`.

    It runs at every step, in its place among the input processors. One that overrides `process_input_step` too
    calls `send_state(args)` where the signal shall be sent.

    Class attributes:
        state_id: Names the state on its thread.
    """

    state_id: ClassVar[str]

    async def process_input_step(self, args: InputStepArgs) -> InputStepReturn:
        """Sends the state where it changed, or where the model sees it no longer."""
        await self.send_state(args)
        return None

    async def send_state(self, args: InputStepArgs) -> Message | None:
        """Computes the state signal and sends it; returns its message, None where there is nothing to tell."""
        found = self.compute_state_signal(state_args(args, self.state_id))
        signal = await found if isinstance(found, Awaitable) else found
        return None if signal is None else await args.services.send_signal(_signal(self.state_id, signal))

    def compute_state_signal(
        self, args: StateSignalArgs
    ) -> StateSignal | Awaitable[StateSignal | None] | None:
        """The signal to send in this step, None for none (`computeStateSignal` of the reference)."""
        raise NotImplementedError


def state_args(args: InputStepArgs, state_id: str) -> StateSignalArgs:
    """The arguments of `compute_state_signal` for a step and a state."""
    sent = sent_states(args.messages, state_id)
    starts = [i for i, each in enumerate(sent) if each.mode == "snapshot"]
    since = sent[starts[-1] + 1 :] if starts else []
    memory = args.request_context.get(MEMORY_KEY)
    memory = memory if isinstance(memory, dict) else {}
    return StateSignalArgs(
        abort=args.abort,
        retry_count=args.retry_count,
        request_context=args.request_context,
        tracing_context=args.tracing_context,
        state=args.state,
        run_id=args.run_id,
        services=args.services,
        step=args,
        thread_id=(memory.get("thread") or {}).get("id"),
        resource_id=memory.get("resourceId"),
        has_snapshot=bool(starts),
        last_snapshot=sent[starts[-1]] if starts else None,
        deltas=since,
        current_cache_key=sent[-1].cache_key if sent and starts else None,
    )


def sent_states(messages: Iterable[Message], state_id: str) -> list[SentState]:
    """The signals of one state among the messages, oldest first."""
    found = []
    for message in messages:
        if message["role"] != signals.ROLE:
            continue
        metadata = _map(signals.about(message).get("metadata"))
        state = _map(metadata.get("state"))
        if state.get("id") == state_id:
            rest = {key: value for key, value in metadata.items() if key != "state"}
            text = signals.contents(message)
            found.append(SentState(text, state.get("mode", "snapshot"), state.get("cacheKey", ""), rest))
    return found


def _map(value: Any) -> Mapping[str, Any]:
    """What a message says of itself may be a client's, and anything."""
    return value if isinstance(value, Mapping) else {}


def _signal(state_id: str, given: StateSignal) -> Signal:
    """The signal that carries a state."""
    mode = given.get("mode", "snapshot")
    name = given.get("id", state_id)
    metadata = dict(given.get("metadata", {}))
    metadata |= {key: value for key, value in given.items() if key in ("value", "delta")}
    metadata["state"] = {"id": name, "mode": mode, "cacheKey": given["cacheKey"]}
    return {
        "type": "state",
        "tagName": given.get("tagName", name),
        "contents": given["contents"],
        "attributes": given.get("attributes", {}),
        "metadata": metadata,
    }
