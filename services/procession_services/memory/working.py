"""`working-memory`: shows the model its notes about the user, and tells how to change them (R-WM, builtins.md 15.1)."""

from typing import Any, Self

from pydantic import Field, model_validator

from procession.args import InputArgs
from procession.message_list import MessageList
from procession.processor import Options, Processor
from procession.structured import schema_problem
from procession_schemas.base import JsonObject
from procession_schemas.memory import Scope, Template
from procession_services.memory.core.templates import Template as Form
from procession_services.memory.core.templates import instructions, template_of
from procession_services.memory.scope import Memory, Place, current_memory, place

__all__ = ["TAG", "NoteOptions", "WorkingMemory", "WorkingMemoryOptions", "form_of", "note_home", "note_of"]

TAG = "memory"
"""The group of system messages that memory owns (R-WM-4)."""


class NoteOptions(Options):
    """Which note is meant, and what it should look like."""

    template: Template | None = Field(
        default=None,
        description="Markdown text, or `{format: markdown|json, content}`; default: a list about a user.",
    )
    schema_: JsonObject | None = Field(
        default=None, alias="schema", description="JSON Schema of the note, in place of a template."
    )
    scope: Scope = Field(
        default="resource", description="One note for each thread, or for all of a resource."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.template is not None and self.schema_ is not None:
            raise ValueError("give either a template or a schema")
        if self.schema_ is not None and (problem := schema_problem(self.schema_)):
            place, what = problem
            raise ValueError(f"{'.'.join(['schema', *place])} {what}")
        return self


class WorkingMemoryOptions(NoteOptions):
    """Options of `working-memory`."""

    use_v_next: bool = Field(
        default=False,
        alias="useVNext",
        description="Instructions for the tool that adds and replaces entries.",
    )
    read_only: bool = Field(
        default=False, description="Show the note; do not mention that it can be changed."
    )


class WorkingMemory(Processor[WorkingMemoryOptions]):
    """Adds one system message with the note, its template and what to do with it; override `template` to choose one."""

    id = "working-memory"
    name = "Working memory"
    description = "Shows the model its notes about the user."
    host = "memory"

    def template(self, args: InputArgs) -> Form:  # noqa: ARG002 - for overriding
        """The template of this request (`templateProvider` of the reference)."""
        return form_of(self.options)

    async def process_input(self, args: InputArgs) -> MessageList | None:
        """Adds the system message; nothing where neither thread nor resource is known (R-WM-1).

        Raises:
            MemoryScopeError: There is no store here.
        """
        here = place(args.request_context, args.message_list)
        if here.thread is None and here.resource is None:
            return None
        note = await note_of(current_memory(), here, self.options.scope)
        read_only = self.options.read_only or bool(here.options.read_only)
        told = instructions(
            self.template(args),
            note,
            read_only=read_only,
            vnext=self.options.use_v_next,
            merges=self.options.schema_ is not None,
        )
        return args.message_list.add_system(told, TAG)


def form_of(options: NoteOptions) -> Form:
    """The template that options give."""
    if options.schema_ is not None:
        return template_of({"format": "json", "content": options.schema_})
    given: Any = options.template
    return template_of(given.model_dump() if given is not None else None)


def note_home(here: Place, scope: Scope) -> tuple[str, str | None] | None:
    """Whose note it is: the resource, and the thread where it is a thread's; None without an id for it (R-WM-2)."""
    if scope == "resource":
        return None if here.resource is None else (here.resource, None)
    return None if here.thread is None else (here.resource or here.thread, here.thread)


async def note_of(memory: Memory, here: Place, scope: Scope) -> str | None:
    """The note of a run; None where there is none, or nothing in it."""
    home = note_home(here, scope)
    return (await memory.store.note(memory.tenant, *home) or None) if home is not None else None
