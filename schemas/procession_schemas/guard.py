"""One guard beside the model, asked by the LLM gateway: request and reply, never stored.

Subject `procession.v1.api.input_processors.<tenant>.guard`. Whoever asks holds the model's answer until the reply is
there, and ends the run when none comes.
"""

from pydantic import Field

from procession_schemas.base import JsonObject, WireModel
from procession_schemas.run import Failure, HookReport, Tripwire
from procession_schemas.work import Guard, WorkCommand


class GuardRequest(WireModel):
    """Asks a guard about the conversation that the model is reading."""

    command: WorkCommand = Field(description="The gateway's, without operations: which run this is.")
    guard: Guard
    messages: JsonObject | None = Field(default=None, description="The conversation, as it travels.")
    messages_key: str | None = Field(
        default=None, description="Where it lies in Redis, when it is too long for a message."
    )
    state: JsonObject = Field(default_factory=dict, description="The guard's own.")
    request_context: JsonObject = Field(default_factory=dict)
    tracing_context: JsonObject = Field(default_factory=dict)
    beats: str | None = Field(
        default=None,
        description="A subject that wants an empty message twice a second until the reply: whoever asks takes "
        "silence for death, and asks another replica too.",
    )


class GuardReply(WireModel):
    """The verdict: neither `tripwire` nor `error` means that the guard agrees."""

    tripwire: Tripwire | None = None
    error: Failure | None = None
    state: JsonObject = Field(default_factory=dict)
    reports: list[HookReport] = Field(default_factory=list)
