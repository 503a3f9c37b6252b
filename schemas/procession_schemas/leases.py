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

    `command` is the sender's WorkCommand. Its operations are those that the replica runs when the stream has ended
    well; the first one is that of the model whose answer this is. It has none where tools or hooks write (`kind`
    `side`). `context` is the run's context as the sender has it. One that is too long for a message lies in Redis under
    `contextKey`; where that is gone, the committed context counts.

    `resume`: another replica had this stream before. The same chunks are made again, and those that clients have, made
    by attempt `after` or a later one, are held back. With `anew` they are taken back and sent again, because they
    depend on time. So they are where Redis has begun another life than `life`, the one in which the stream began: it
    may have forgotten what models told the processors.

    `chunks`, `e` and `g` are the first frame; it has all raw chunks so far if the message can take them. `whole`: there
    are no others, so the reply may wait a moment for the first answer, and bring it along.

    `fence` is that of the chunk batches. `reset`: the first batch replaces all chunks from this number on. `cancelled`:
    the run had been cancelled when this was asked. `logs`: the sender can log what the processors of the stream have
    received. `asText`: the sender takes the context that is left as text.

    Deprecated: `messages` and all fields below it. Leases had them before they carried the context; nobody reads them.
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

    Where the replica went on with the operations of the lease: `lent` is their WorkResult, `usage` that of the answer,
    and `context` what they left. It is missing where the run is over; a sender that asked `asText` gets it as JSON text
    in `contextText`. `log` is an entry for the log of stream parts, which the sender adds when it stores the context.

    Otherwise: `response` has the facts of the answer, `parts` its part of the assistant message, `messages` the
    conversation if a stream hook changed it, `rewritten` what became of tool results. `logged`: the stream counts.
    `tripwire` or `error`: a processor ended the stream early. A stream that could not even be opened has no field from
    `response` on. `finished` is deprecated; nobody reads it.
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
    """What a replica says of lease attempt `l`.

    `a`: so many raw chunks are processed. `done`: what came of the stream; where that is too long for a message, it
    lies in Redis under `doneKey`.

    `unknown`: the replica has no such session, so the sender has to take another lease. With `away` it has given the
    session back, since something that it needs (Redis, for one) is away; `away` says what. `again`: chunks from that
    number on were lost on the way. `r`: the replica has so many chunks, and waits for more. `t`: from here on, what is
    made of the chunks depends on time, too.

    Where an answer has a reply subject, the sender sends any message there if it no longer holds that lease.
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
