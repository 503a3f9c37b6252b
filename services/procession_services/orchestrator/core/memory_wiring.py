"""Which memory processors and tools a run gets, and in which order (R-WIRE, R-ME-1..3, builtins.md 17)."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from procession_schemas.agent import ProcessorRef, ToolRef
from procession_schemas.memory import (
    MemoryOptions,
    ObservationalConfig,
    SemanticRecallConfig,
    WorkingMemoryConfig,
    history_limits,
)
from procession_schemas.validation import RefusedError
from procession_services.runs.merging import deep_merge

__all__ = ["NoVectorStoreError", "Wiring", "last_messages", "merged_options", "wire"]

HISTORY: Final = "message-history"
RECALL: Final = "semantic-recall"
NOTE: Final = "working-memory"
OBSERVER: Final = "observational-memory"
INDEX: Final = "messages"
"""The index of agents that name none: one for all embedders, so that a change of the embedder is noticed (R-WIRE-8)."""
_DEFAULT_LAST: Final = 10


class NoVectorStoreError(Exception):
    """Semantic recall is on, and nothing is configured that could keep embeddings."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """What memory adds: processors before the input array, behind the output array, and tools."""

    input: list[ProcessorRef] = field(default_factory=list)
    output: list[ProcessorRef] = field(default_factory=list)
    tools: list[ToolRef] = field(default_factory=list)
    history: dict[str, Any] = field(default_factory=dict)


def merged_options(own: MemoryOptions, asked: MemoryOptions | None) -> MemoryOptions:
    """The agent's options, and over them those of the request (R-WIRE-9).

    Raises:
        RefusedError: They do not go together, though each is right by itself.
    """
    names = {*MemoryOptions.model_fields}
    given = [
        each.model_dump(include=names, by_alias=True, exclude_unset=True, exclude_none=True)
        for each in (own, asked)
        if each is not None
    ]
    merged = deep_merge(given[0], given[1]) if len(given) > 1 else given[0]
    try:
        return MemoryOptions.model_validate(merged)
    except ValidationError as error:
        raise RefusedError.because(error, "memory", merged) from error


def wire(
    options: MemoryOptions, *, input_ids: Collection[str], output_ids: Collection[str], vectors: bool
) -> Wiring:
    """What memory adds to arrays that have processors of these ids already; those it leaves to them (R-WIRE-5).

    Args:
        options: The memory options of the request.
        input_ids: Ids in the input array of the user.
        output_ids: Ids in the output array.
        vectors: Whether a vector store is configured.

    Raises:
        NoVectorStoreError: Semantic recall needs one (R-WIRE-8).
    """
    limits = history_limits(last_messages(options), options.message_history)
    observing = options.observational_memory or None
    # In an array that has an observer, whoever put it there, it loads or saves in the place of history.
    observes_input, observes_output = (
        observing is not None or OBSERVER in ids for ids in (input_ids, output_ids)
    )
    enabled: bool = limits["enabled"] and not observes_input
    note = _note(options)
    recall = options.semantic_recall or None
    if recall is not None and not vectors:
        raise NoVectorStoreError("semantic recall needs a vector store")
    inputs: list[ProcessorRef] = []
    if enabled or observes_input or HISTORY in input_ids:
        inputs.append(ProcessorRef(id="memory-input-filter"))
    if note is not None and not note.use_state_signals:
        inputs.append(_note_ref(NOTE, note, read_only=bool(options.read_only)))
    if enabled:
        inputs.append(ProcessorRef(id=HISTORY, options=_history_options(options, limits)))
    if recall is not None:
        inputs.append(_recall_ref(recall))
    if enabled and limits.get("maxTokens"):
        budget = {"limit": limits["maxTokens"], "atMaxRemoveTokens": limits["atMaxRemoveTokens"]}
        inputs.append(ProcessorRef(id="memory-token-limiter", options=budget))
    observer = [] if observing is None else [_observer_ref(observing, options)]
    inputs += observer
    if note is not None and note.use_state_signals:
        inputs.append(_note_ref("working-memory-state", note))
    outputs = [_recall_ref(recall)] if recall is not None else []
    # What is indexed must be stored, or it could never be recalled (D-85).
    if (limits["enabled"] or recall is not None) and not observes_output:
        outputs.append(ProcessorRef(id=HISTORY, options=_history_options(options, limits)))
    outputs += observer
    return Wiring(
        input=[ref for ref in inputs if ref.id not in input_ids],
        output=[ref for ref in outputs if ref.id not in output_ids],
        tools=[] if note is None or options.read_only else [_tool_ref(note)],
        history=limits,
    )


def last_messages(options: MemoryOptions) -> Any:
    """How many of the messages before are shown, where that is said in numbers of messages; False: none."""
    if options.last_messages is None and options.message_history is None:
        return _DEFAULT_LAST
    return options.last_messages


def _note(options: MemoryOptions) -> WorkingMemoryConfig | None:
    note = options.working_memory
    return note if note and note.enabled else None


def _history_options(options: MemoryOptions, limits: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if "maxMessages" in limits:
        told["lastMessages"] = limits["maxMessages"]
    if limits["enabled"] and "maxTokens" in limits:
        told["tokenLimit"] = {name: limits[name] for name in ("maxTokens", "atMaxRemoveTokens")}
    return {**told, **_saving(options)}


def _saving(options: MemoryOptions) -> dict[str, Any]:
    told: dict[str, Any] = {"save": "eager"} if options.save == "eager" else {}
    return {**told, "markPartial": True} if options.mark_partial else told


def _recall_ref(recall: SemanticRecallConfig) -> ProcessorRef:
    told = recall.model_dump(by_alias=True, exclude_none=True, exclude_unset=True)
    return ProcessorRef(id=RECALL, options={"indexName": INDEX, **told})


def _observer_ref(observing: ObservationalConfig, options: MemoryOptions) -> ProcessorRef:
    told = observing.model_dump(by_alias=True, exclude_none=True, exclude_unset=True)
    return ProcessorRef(id=OBSERVER, options={**told, **_saving(options)})


def _form(note: WorkingMemoryConfig) -> dict[str, Any]:
    names = {"template", "schema_", "scope"}
    return note.model_dump(include=names, by_alias=True, exclude_none=True, exclude_unset=True)


def _note_ref(name: str, note: WorkingMemoryConfig, *, read_only: bool = False) -> ProcessorRef:
    told = _form(note)
    if name == NOTE and note.version == "vnext":
        told["useVNext"] = True
    if read_only:
        told["readOnly"] = True
    return ProcessorRef(id=name, options=told)


def _tool_ref(note: WorkingMemoryConfig) -> ToolRef:
    told = _form(note)
    if note.version == "vnext":
        told["vnext"] = True
    name = "setWorkingMemory" if note.use_state_signals else "updateWorkingMemory"
    return ToolRef(id=name, options=told)
