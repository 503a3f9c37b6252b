"""Stream leases: how a service sends chunks through one replica of the output processors (docs/adr/0007).

Plain dicts on core NATS, since several are sent for every piece of an answer. The sender asks any replica (queue
group) for a lease, or the one it had before. Frames then go to the inbox that the reply names, and the replica answers
to the sender's own inbox. Messages of an earlier attempt of a lease are ignored.
"""

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from procession_schemas.base import JsonObject


class LeaseRequest(TypedDict):
    """Asks a replica to take one stream.

    `command` is the sender's WorkCommand. Its operations are those that the replica runs once the stream has ended
    well; the first one is that of the model whose answer this is. If tools or hooks write the stream (`kind` `side`),
    it has no operations. `context` is the run's context as the sender has it. A context that is too long for a message
    is in Redis under `contextKey`; if it is gone there, the committed context counts.

    `resume`: another replica had this stream before. The same chunks are made again, and those that clients already
    have from attempt `after` or a later one are held back. With `anew` they are taken back and sent again, because they
    depend on time. The same happens if Redis is no longer in the life `life`, in which the stream began: it may have
    forgotten what models told the processors.

    `chunks`, `e` and `g` are the first frame; it has all raw chunks so far if they fit into the message. `whole`: there
    are no others, so the reply may wait a moment and include the first answer.

    `fence` is that of the chunk batches. `reset`: the first batch replaces all chunks from this number on. `cancelled`:
    the run was already cancelled when this was sent. `logs`: the sender can log what the processors of the stream have
    received. `asText`: the sender accepts the remaining context as text.

    Deprecated: `messages` and all fields below it, from before leases carried the context; nothing reads them.
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
    """Raw chunks `c` of session `s`, lease attempt `l`; `n` is the number of the first; with `e` they are the last.

    `g`: the stream has ended well, so the replica continues with the operations of the lease. Answers go to the NATS
    reply subject. Deprecated, and read by nothing: `k`, `p`, `x` and `lent`.
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
    """The outcome of a stream: everything that the output chain changed, for the sender to commit.

    If the replica continued with the operations of the lease: `lent` is their WorkResult, `usage` that of the answer,
    and `context` the context after them. It is missing if the run is over; a sender that asked for it `asText` gets it
    as JSON text in `contextText`. `log` is an entry for the log of stream parts, which the sender adds when it stores
    the context.

    Otherwise: `response` has the facts of the answer, `parts` its part of the assistant message, `messages` the
    conversation if a stream hook changed it, `rewritten` the tool results as hooks rewrote them. `logged`: the stream
    counts. `tripwire` or `error`: a processor ended the stream early. For a stream that could not even be opened, these
    fields are missing. `finished` is deprecated; nothing reads it.
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
    """What a replica reports about lease attempt `l`.

    `a`: number of raw chunks that are processed. `done`: the outcome of the stream; if it is too long for a message, it
    is in Redis under `doneKey`.

    `unknown`: the replica has no such session, so the sender has to take another lease. With `away`, the replica has
    given the session back because something that it needs, such as Redis, does not answer; `away` says what. `again`:
    chunks from that number on were lost on the way. `r`: number of chunks that the replica has; it waits for more. `t`:
    from here on, what becomes of the chunks also depends on time.

    If an answer has a reply subject, a sender that no longer holds that lease sends any message there.
    """

    l: int  # noqa: E741 - its name on the wire


class LeaseReply(_Told):
    """The replica that took the stream, or offers to take one, and where to send its frames.

    `taken`: how many of the request's `chunks` it took. For a `whole` stream the reply may also be the first answer,
    and then has the fields of one. With `unknown`, no replica has taken the stream.
    """

    replica: str
    inbox: str
    taken: NotRequired[int]
    l: NotRequired[int]  # noqa: E741 - its name on the wire


__all__ = ["Frame", "FrameAnswer", "LeaseReply", "LeaseRequest", "StreamOutcome"]
