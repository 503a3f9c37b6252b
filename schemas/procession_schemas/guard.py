"""One guard beside the model, asked by the LLM gateway: request and reply, never stored.

Subject `procession.v1.api.input_processors.<tenant>.guard`. The gateway holds the model's answer back until the reply
is there, and ends the run if none comes.
"""

from pydantic import Field

from procession_schemas.base import JsonObject, WireModel
from procession_schemas.run import Failure, HookReport, Tripwire
from procession_schemas.work import Guard, WorkCommand


class GuardRequest(WireModel):
    """Asks a guard about the conversation that the model is reading."""

    command: WorkCommand = Field(
        description="The gateway's command, without its operations; it says which run this is."
    )
    guard: Guard
    messages: JsonObject | None = Field(default=None, description="The conversation.")
    messages_key: str | None = Field(
        default=None, description="Redis key of the conversation if it is too long for a message."
    )
    state: JsonObject = Field(default_factory=dict, description="The guard's own state.")
    request_context: JsonObject = Field(default_factory=dict)
    tracing_context: JsonObject = Field(default_factory=dict)
    beats: str | None = Field(
        default=None,
        description="Subject on which the asker expects an empty message twice a second until the reply; if "
        "they stop, it asks another replica as well.",
    )


class GuardReply(WireModel):
    """The verdict; without `tripwire` and `error`, the guard lets the conversation pass."""

    tripwire: Tripwire | None = None
    error: Failure | None = None
    state: JsonObject = Field(default_factory=dict)
    reports: list[HookReport] = Field(default_factory=list)
