"""Changes of working memory, one after another for each note (R-WM-10..15)."""

from collections.abc import Mapping
from typing import Any, Final

from procession_services.memory.core.notes import (
    LONGEST_NOTE,
    InvalidUpdateError,
    Update,
    merge_update,
    replace_update,
    vnext_update,
)
from procession_services.memory.ports import MessageStore
from procession_services.memory.working import NoteOptions, form_of

__all__ = ["NoteToolOptions", "update_note"]

_TRIES: Final = 50


class NoteToolOptions(NoteOptions):
    """Options of the tool: those of the note, and which of the two forms it has."""

    vnext: bool = False


async def update_note(
    store: MessageStore,
    tenant: str,
    options: NoteToolOptions,
    given: Mapping[str, Any],
    *,
    resource: str | None,
    thread: str | None,
) -> dict[str, Any]:
    """Makes one change and gives what the model is told; concurrent calls all count.

    Raises:
        InvalidUpdateError: The call says nothing that can be stored, or too much, or it is not known whose note it is.
    """
    home = _home(options, resource, thread)
    for _ in range(_TRIES):
        stored = await store.note(tenant, *home)
        update = _update(options, given, stored)
        if update.text is None:
            return update.told
        if (size := len(update.text)) > LONGEST_NOTE:
            raise InvalidUpdateError(
                f"the working memory would have {size:,} characters and may have {LONGEST_NOTE:,}; make it shorter"
            )
        if await store.replace_note(tenant, *home, update.text, expected=stored):
            return update.told
    raise InvalidUpdateError("the working memory is being changed by others; call again")


def _home(options: NoteToolOptions, resource: str | None, thread: str | None) -> tuple[str, str | None]:
    if options.scope == "thread":
        if thread is None:
            raise InvalidUpdateError("working memory of a thread needs a thread id, and this run has none")
        return resource or thread, thread
    if resource is None:
        raise InvalidUpdateError("working memory of a resource needs a resource id, and this run has none")
    return resource, None


def _update(options: NoteToolOptions, given: Mapping[str, Any], stored: str | None) -> Update:
    if options.schema_ is not None:
        return merge_update(given, stored, options.schema_)
    if options.vnext:
        explicit = "scope" in options.model_fields_set and options.scope == "resource"
        return vnext_update(given, stored, form_of(options), resource_scope=explicit)
    return replace_update(given, stored, form_of(options))
