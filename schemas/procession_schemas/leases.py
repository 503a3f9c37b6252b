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

    `command` is the sender's WorkCommand with the operations that the replica runs when the stream has ended well, the
    first of them that of the model whose answer it is; without operations (`kind` `side`) it is what tools and hooks
    write. `context` is that of the run as the sender has it; one that is too long for a message lies in Redis under
    `contextKey`, and where that is gone the committed one counts. `resume`: another replica had this stream, so what
    clients have is held back (`after`: the attempt that made it). It is taken back and sent again with `anew`, since
    time had a say in it, and where Redis has begun another `life` since the stream began, so that it may have
    forgotten what models told its processors. `chunks`, `e` and `g` are the first frame, with all raw chunks so far
    where the message can take them. `whole`: these are all, so the reply may wait a moment for the first answer, and
    bring it along.
    `fence` is that of the chunk batches, the first of which replaces all chunks from `reset` on. `cancelled`: the run
    was, before this was asked. `logs`: the sender can log what the processors of the stream have received. `asText`: it
    takes the context that is left as text.

    Deprecated, from `messages` on: what leases said before they carried the context. Nobody reads it.
    """

    session: str
    kind: Literal["model", "side"]
    attempt: int
    acks: str
    command: JsonObject
    context: NotRequired[JsonObject]
    contextKey: NotRequired[str]
    processors: list[JsonObject]
    outSeq: int
    fence: NotRequired[int]
    reset: NotRequired[int]
    cancelled: NotRequired[bool]
    logs: NotRequired[bool]
    asText: NotRequired[bool]
    resume: NotRequired[bool]
    after: NotRequired[int]
    anew: NotRequired[bool]
    life: NotRequired[int]
    chunks: NotRequired[list[JsonObject]]
    e: NotRequired[bool]
    g: NotRequired[bool]
    whole: NotRequired[bool]
    messages: NotRequired[JsonObject]
    messagesKey: NotRequired[str]
    prelude: NotRequired[list[JsonObject]]
    tracingContext: NotRequired[JsonObject]
    stream: NotRequired[int]
    states: NotRequired[dict[str, JsonObject]]
    requestContext: NotRequired[JsonObject]
    stepNumber: NotRequired[int]
    retryCount: NotRequired[int]
    last: NotRequired[bool]
    keepChunks: NotRequired[bool]
    objects: NotRequired[bool]


class Frame(TypedDict):
    """Raw chunks `c` of session `s`, lease attempt `l`; `n` numbers the first; with `e` they are the last.

    `g`: the stream has ended well, so the replica goes on with the operations of the lease. The NATS reply subject is
    where answers go. Deprecated, and read by nobody: `k`, `p`, `x` and `lent`.
    """

    s: str
    l: int  # noqa: E741 - its name on the wire
    n: int
    c: list[JsonObject]
    e: NotRequired[bool]
    g: NotRequired[bool]
    k: NotRequired[bool]
    p: NotRequired[int]
    x: NotRequired[bool]
    lent: NotRequired[JsonObject]


class StreamOutcome(TypedDict):
    """What came of a stream: everything that the output chain changed, for the sender to commit.

    Where the replica went on: `lent`, the WorkResult of its operations; `usage` of the answer; the `context` that they
    left, missing where the run is over, or its JSON, `contextText`, for a sender that takes it so; and `log`, an entry
    of the log of stream parts, which the sender adds to that as it stores the context. Otherwise `response` are the
    facts of the answer, `parts` its part of the assistant message, `messages` the conversation if a stream hook changed
    it, `rewritten` what became of tool results, `logged` that the stream counts; `tripwire` or `error` say that a
    processor ended the stream early, and the fields from `response` on are missing when the stream could not even be
    opened. `finished` is deprecated; nobody reads it.
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
    messages: NotRequired[JsonObject | None]
    tripwire: NotRequired[JsonObject]
    error: NotRequired[JsonObject]
    lent: NotRequired[JsonObject]
    usage: NotRequired[JsonObject]
    context: NotRequired[JsonObject | None]
    contextText: NotRequired[str]
    log: NotRequired[str]
    finished: NotRequired[bool]


class _Told(TypedDict):
    a: NotRequired[int]
    done: NotRequired[StreamOutcome]
    doneKey: NotRequired[str]
    unknown: NotRequired[Literal[True]]
    away: NotRequired[str]
    again: NotRequired[int]
    r: NotRequired[int]
    t: NotRequired[Literal[True]]


class FrameAnswer(_Told):
    """What a replica says of lease attempt `l`: raw chunks processed so far (`a`), and at the end what came of it.

    An outcome that is too long for a message lies in Redis under `doneKey`.
    `unknown`: the replica has no such session, so the sender has to take another lease. `away` beside it: the replica
    gave the session back, since this was not there, as Redis. `again`: chunks from that number on were lost on the way.
    `r`: the replica waits for more than these first chunks. `t`: from here on the time has a say in what is made of the
    chunks. An answer with a reply subject wants to be told there, by any message, when the sender no longer holds that
    lease.
    """

    l: int  # noqa: E741 - its name on the wire


class LeaseReply(_Told):
    """Who took the stream, or offers to take one, and where its frames go; `taken` of the request's `chunks`.

    To a request with a `whole` stream it may be the first answer as well, and has that one's fields then. With
    `unknown` nobody has taken it.
    """

    replica: str
    inbox: str
    taken: NotRequired[int]
    l: NotRequired[int]  # noqa: E741 - its name on the wire


__all__ = ["Frame", "FrameAnswer", "LeaseReply", "LeaseRequest", "StreamOutcome"]
