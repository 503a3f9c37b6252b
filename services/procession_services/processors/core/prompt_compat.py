"""Takes out of a prompt what its model's provider would refuse in history that another one wrote (R-PHC-2).

Each rule gets a prompt and gives a new one, or the same object where it has nothing to do. The entries that it gets are
never changed.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from procession_services.processors.core.model_names import family_named, family_of, is_of, provider_of

Entry = dict[str, Any]
Prompt = list[Entry]

_TAG: Final = re.compile(r"(</?)system-reminder(?=[\s/>])")
_SIGNED: Final = ("signature", "redactedData")


@dataclass(frozen=True, slots=True)
class PromptCase:
    """What a rule knows beside the prompt.

    Attributes:
        model: The model that is called, in any form that `model_names` reads.
        stored: The conversation; an assistant message says in `metadata.provider` who wrote it.
    """

    model: Any
    stored: Iterable[Mapping[str, Any]] = field(default=())


PromptRule = Callable[[Prompt, PromptCase], Prompt]


def fitted(prompt: Prompt, case: PromptCase) -> Prompt:
    """The prompt after every rule; the same object where none had anything to do."""
    for rule in PROMPT_RULES:
        prompt = rule(prompt, case)
    return prompt


# --- the rules, in their order ------------------------------------------------------------------------


def without_foreign_tools(prompt: Prompt, case: PromptCase) -> Prompt:
    """Calls of tools that ran at another provider, and their results, wherever those stand (D-76).

    All with their ids: where a provider counts its ids anew in each turn, no call may stay without its result.
    """
    target = family_of(case.model)
    foreign = {
        part.get("toolCallId")
        for entry in prompt
        if target and entry.get("role") == "assistant"
        for part in _parts(entry)
        if _is_foreign_call(part, target)
    }
    if not foreign:
        return prompt

    def stays(_entry: Entry, part: Entry) -> bool:
        of_tool = part.get("type") in ("tool-call", "tool-result")
        return not of_tool or part.get("toolCallId") not in foreign

    return _filtered(prompt, stays)


def _is_foreign_call(part: Entry, target: str) -> bool:
    if part.get("type") != "tool-call" or not part.get("providerExecuted"):
        return False
    families = {family for name in _options(part) if (family := family_named(str(name)))}
    return bool(families) and target not in families


def without_reasoning(prompt: Prompt, case: PromptCase) -> Prompt:
    """All reasoning, for Cerebras, which knows none."""
    if not is_of(case.model, "cerebras"):
        return prompt
    return _filtered(prompt, lambda entry, part: not _is_reasoning(entry, part))


def without_empty_signed(prompt: Prompt, case: PromptCase) -> Prompt:
    """Anthropic's signatures without text, but for the turn under way."""
    if not is_of(case.model, "anthropic"):
        return prompt
    protected = _protected(prompt)

    def stays(entry: Entry, part: Entry) -> bool:
        if entry is protected or not _is_reasoning(entry, part):
            return True
        signature = part.get("signature") or _own(part).get("signature")
        return not signature or bool(part.get("text"))

    return _filtered(prompt, stays)


def without_foreign_reasoning(prompt: Prompt, case: PromptCase) -> Prompt:
    """Reasoning that is not Anthropic's, for Anthropic; a turn under way that also holds genuine one is left alone."""
    if not is_of(case.model, "anthropic"):
        return prompt
    protected = _protected(prompt)
    if protected and not any(_is_reasoning(protected, p) and _is_anthropic(p) for p in _parts(protected)):
        protected = None
    return _filtered(
        prompt,
        lambda entry, part: entry is protected or not _is_reasoning(entry, part) or _is_anthropic(part),
    )


def without_foreign_signatures(prompt: Prompt, case: PromptCase) -> Prompt:
    """Reasoning that was signed for another provider, as the conversation tells."""
    target = provider_of(case.model)
    foreign: set[str] = set()
    for message in case.stored if target else ():
        writer = (message["content"].get("metadata") or {}).get("provider")
        if message["role"] == "assistant" and isinstance(writer, str) and writer and writer != target:
            foreign |= {mark for part in message["content"]["parts"] for mark in _stored_marks(part)}
    if not foreign:
        return prompt
    return _filtered(
        prompt,
        lambda entry, part: not _is_reasoning(entry, part) or foreign.isdisjoint(_marks(part)),
    )


def with_renamed_reminders(prompt: Prompt, case: PromptCase) -> Prompt:
    """`<system-reminder>` tags, which Azure's content filter takes for an attack, under another name."""
    if not is_of(case.model, "azure", "azure-openai", "azure_ai"):
        return prompt
    made = [_renamed(entry) if entry.get("role") in ("system", "user") else entry for entry in prompt]
    return prompt if all(new is old for new, old in zip(made, prompt, strict=True)) else made


def _renamed(entry: Entry) -> Entry:
    content = entry.get("content")
    if isinstance(content, str):
        text = _TAG.sub(r"\1memory-context", content)
        return entry if text == content else {**entry, "content": text}
    parts = [_renamed_part(part) for part in _parts(entry)]
    return entry if parts == _parts(entry) else {**entry, "content": parts}


def _renamed_part(part: Entry) -> Entry:
    if part.get("type") != "text" or not isinstance(part.get("text"), str):
        return part
    return {**part, "text": _TAG.sub(r"\1memory-context", part["text"])}


PROMPT_RULES: Final[tuple[PromptRule, ...]] = (
    without_foreign_tools,
    without_reasoning,
    without_empty_signed,
    without_foreign_reasoning,
    without_foreign_signatures,
    with_renamed_reminders,
)


# --- parts --------------------------------------------------------------------------------------------


def _filtered(prompt: Prompt, stays: Callable[[Entry, Entry], bool]) -> Prompt:
    """The prompt without some parts, and without the turns of which nothing is left (D-76)."""
    made: Prompt = []
    changed = False
    for entry in prompt:
        parts = _parts(entry)
        left = [part for part in parts if stays(entry, part)]
        if len(left) == len(parts):
            made.append(entry)
            continue
        changed = True
        if left:
            made.append({**entry, "content": left})
    return made if changed else prompt


def _parts(entry: Entry) -> list[Entry]:
    content = entry.get("content")
    return content if isinstance(content, list) else []


def _protected(prompt: Prompt) -> Entry | None:
    """The assistant turn that is under way: only results of its tools come after it."""
    for entry in reversed(prompt):
        if entry.get("role") != "tool":
            return entry if entry.get("role") == "assistant" else None
    return None


def _is_reasoning(entry: Entry, part: Entry) -> bool:
    return entry.get("role") == "assistant" and part.get("type") == "reasoning"


def _options(part: Mapping[str, Any]) -> dict[str, Any]:
    """What a part says for each provider, under either of its names."""
    found: dict[str, Any] = {}
    for name in ("providerOptions", "providerMetadata"):
        if isinstance(value := part.get(name), Mapping):
            found |= value
    return found


def _own(part: Entry) -> Mapping[str, Any]:
    own = _options(part).get("anthropic")
    return own if isinstance(own, Mapping) else {}


def _is_anthropic(part: Entry) -> bool:
    """Whether reasoning is Anthropic's own: it says so, or it is signed as our gateway notes that."""
    return "anthropic" in _options(part) or any(part.get(name) for name in _SIGNED)


def _marks(part: Mapping[str, Any]) -> set[str]:
    """The signatures and sealed data of reasoning, its own and those for each provider."""
    places = [part, *(value for value in _options(part).values() if isinstance(value, Mapping))]
    return {mark for place in places for name in _SIGNED if isinstance(mark := place.get(name), str) and mark}


def _stored_marks(part: Any) -> set[str]:
    """The same of a stored part, whose signatures may also stand in its details."""
    if part.get("type") != "reasoning":
        return set()
    details = [detail for detail in part.get("details") or () if isinstance(detail, Mapping)]
    told = [
        detail.get("signature") if detail.get("type") != "redacted" else detail.get("data")
        for detail in details
    ]
    return _marks(part) | {mark for mark in told if isinstance(mark, str) and mark}
