"""Stream leases: how a service sends chunks through one replica of the output processors (docs/adr/0007).

Plain dicts on core NATS, since several go by for every piece of an answer. The sender asks any replica for a lease
(queue group), or the one it had before; frames then go to the inbox that the reply names, and what the replica says
of them comes to the sender's own inbox. What belongs to an earlier attempt of a lease changes nothing.
"""

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from procession_schemas.base import JsonObject


class LeaseRequest(TypedDict):
    """Asks a replica to take one stream.

    `kind` is `model` for a model's answer, `side` for what tools and hooks write. `command` is the sender's
    WorkCommand without its operations, `messages` the conversation as the sender has it; one that is too long for a
    message lies in Redis under `messagesKey`, and without both the committed one counts. `stream` numbers the streams
    of the run. `resume`: another replica had this stream, so what clients have is held back (`after`: the
    attempt that made it); with `anew` it is taken back and sent again, since time had a say in it; `chunks` are the
    first frame, all raw chunks so far where the message can take them. `fence` is that of the chunk batches. `last`:
    an answer without tool calls ends the run. `prelude` is what senders of before 0.2 gave in place of `messages`;
    nobody reads it.
    """

    session: str
    kind: Literal["model", "side"]
    attempt: int
    acks: str
    command: JsonObject
    messages: NotRequired[JsonObject]
    messagesKey: NotRequired[str]
    prelude: NotRequired[list[JsonObject]]
    tracingContext: NotRequired[JsonObject]
    stream: NotRequired[int]
    processors: list[JsonObject]
    states: dict[str, JsonObject]
    requestContext: JsonObject
    stepNumber: int
    retryCount: int
    outSeq: int
    fence: NotRequired[int]
    resume: NotRequired[bool]
    after: NotRequired[int]
    anew: NotRequired[bool]
    chunks: NotRequired[list[JsonObject]]
    last: NotRequired[bool]
    keepChunks: NotRequired[bool]
    objects: NotRequired[bool]


class LeaseReply(TypedDict):
    """Who took the stream, or offers to take one, and where its frames go; `taken` of the request's `chunks`."""

    replica: str
    inbox: str
    taken: NotRequired[int]


class Lent(TypedDict):
    """Operations that end a run, for the replica to run (docs/adr/0013), and the context that they start from.

    A context that is too long for a message lies in Redis under `contextKey`.
    """

    ops: list[JsonObject]
    context: NotRequired[JsonObject]
    contextKey: NotRequired[str]


class Frame(TypedDict):
    """Raw chunks `c` of session `s`, lease attempt `l`; `n` numbers the first; with `e` they are the last.

    Numbers count raw chunks from 0 for every attempt and part. `k`: the session stays open for another part, whose
    frames have a `p` one higher; `x`: there is none after all. `lent` comes in the place of chunks. The NATS reply
    subject is where answers go.
    """

    s: str
    l: int  # noqa: E741 - its name on the wire
    n: int
    c: list[JsonObject]
    e: NotRequired[bool]
    k: NotRequired[bool]
    p: NotRequired[int]
    x: NotRequired[bool]
    lent: NotRequired[Lent]


class StreamOutcome(TypedDict):
    """What came of a stream: everything that the output chain changed, for the sender to commit.

    `response` are the facts of the answer, `parts` its part of the assistant message, `messages` the conversation if
    a stream hook changed it, `rewritten` what became of tool results, `logged` that the stream counts. `tripwire` or
    `error` say that a processor ended the stream early; the fields from `response` on are missing when the stream
    could not even be opened. Of lent operations there are only `lent`, their WorkResult, and the `context` that they
    left, None where the run is over.
    """

    replica: str
    outSeq: int
    fence: NotRequired[int]
    logged: NotRequired[bool]
    kind: NotRequired[Literal["model", "side"]]
    states: NotRequired[dict[str, JsonObject]]
    requestContext: NotRequired[JsonObject]
    reports: NotRequired[list[JsonObject]]
    parts: NotRequired[list[JsonObject]]
    rewritten: NotRequired[dict[str, JsonObject]]
    response: NotRequired[JsonObject]
    finished: NotRequired[bool]
    messages: NotRequired[JsonObject | None]
    tripwire: NotRequired[JsonObject]
    error: NotRequired[JsonObject]
    lent: NotRequired[JsonObject]
    context: NotRequired[JsonObject | None]


class FrameAnswer(TypedDict):
    """What a replica says of lease attempt `l`: raw chunks processed so far (`a`), and at the end what came of it.

    An outcome that is too long for a message lies in Redis under `doneKey`.
    `unknown`: the replica has no such session, so the sender has to take another lease. `again`: chunks from that
    number on were lost on the way. `t`: from here on the time has a say in what is made of the chunks. An answer with a
    reply subject wants to be told there, by any message, when the sender no longer holds that lease.
    """

    l: int  # noqa: E741 - its name on the wire
    a: NotRequired[int]
    done: NotRequired[StreamOutcome]
    doneKey: NotRequired[str]
    unknown: NotRequired[Literal[True]]
    again: NotRequired[int]
    t: NotRequired[Literal[True]]


__all__ = ["Frame", "FrameAnswer", "LeaseReply", "LeaseRequest", "StreamOutcome"]
