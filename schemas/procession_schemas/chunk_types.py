"""The fields of every type of chunk (R-CH-1, core.md 11.2), for type checkers and for JSON Schema.

Nothing here is used at run time: a chunk is a plain dict, and functions take and return
`procession_schemas.chunks.Chunk`. Cast one to `CoreChunk` to have it narrowed: after `chunk["type"] == "text-delta"` a
type checker knows `payload["text"]`. The runtime sets `runId` and `from`; they are missing while processors have a
chunk, and `data-*` chunks never have them.
"""

from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from procession_schemas.base import JsonObject
from procession_schemas.chunk_payloads import (
    ApprovalPayload,
    BlockPayload,
    CallDeltaPayload,
    CallInputEndPayload,
    CallInputStartPayload,
    DeniedPayload,
    ErrorPayload,
    FilePayload,
    FinishPayload,
    ReasoningPayload,
    RedactedPayload,
    ResetPayload,
    ResponseMetadataPayload,
    SignaturePayload,
    SourcePayload,
    StartPayload,
    StepStartPayload,
    SuspendedPayload,
    TextPayload,
    ToolCallPayload,
    ToolErrorPayload,
    ToolOutputPayload,
    ToolResultPayload,
    TripwirePayload,
)
from procession_schemas.chunks import ChunkOrigin

Identity = TypedDict(  # a class cannot have a field called `from`
    "Identity",
    {"runId": NotRequired[str], "from": NotRequired[ChunkOrigin], "metadata": NotRequired[JsonObject]},
)
"""What the runtime adds to a chunk on its way to the client."""


class StartChunk(Identity):
    """The first chunk of a run."""

    type: Literal["start"]
    payload: StartPayload


class StepStartChunk(Identity):
    """Comes before the chunks of an attempt."""

    type: Literal["step-start"]
    payload: StepStartPayload


class ResponseMetadataChunk(Identity):
    """What the provider says about its response; only processors see it."""

    type: Literal["response-metadata"]
    payload: ResponseMetadataPayload


class BlockChunk(Identity):
    """A block of text or reasoning begins or ends."""

    type: Literal["text-start", "text-end", "reasoning-start", "reasoning-end"]
    payload: BlockPayload


class TextDeltaChunk(Identity):
    """A piece of the answer."""

    type: Literal["text-delta"]
    payload: TextPayload


class ReasoningDeltaChunk(Identity):
    """A piece of reasoning."""

    type: Literal["reasoning-delta"]
    payload: ReasoningPayload


class ReasoningSignatureChunk(Identity):
    """The provider's signature of a reasoning block."""

    type: Literal["reasoning-signature"]
    payload: SignaturePayload


class RedactedReasoningChunk(Identity):
    """Reasoning that is not shown."""

    type: Literal["redacted-reasoning"]
    payload: RedactedPayload


class ToolCallInputStartChunk(Identity):
    """A tool call whose arguments are streamed begins."""

    type: Literal["tool-call-input-streaming-start"]
    payload: CallInputStartPayload


class ToolCallDeltaChunk(Identity):
    """A piece of its arguments."""

    type: Literal["tool-call-delta"]
    payload: CallDeltaPayload


class ToolCallInputEndChunk(Identity):
    """The end of its arguments."""

    type: Literal["tool-call-input-streaming-end"]
    payload: CallInputEndPayload


class ToolCallChunk(Identity):
    """A complete tool call, once per call id; a processor that drops it, or aborts on it, stops the tool (D-20)."""

    type: Literal["tool-call"]
    payload: ToolCallPayload


class ToolResultChunk(Identity):
    """A tool call succeeded."""

    type: Literal["tool-result"]
    payload: ToolResultPayload


class ToolErrorChunk(Identity):
    """A tool call failed."""

    type: Literal["tool-error"]
    payload: ToolErrorPayload


class ToolOutputChunk(Identity):
    """A running tool wrote something; `from` is `USER`."""

    type: Literal["tool-output"]
    payload: ToolOutputPayload


class ToolApprovalChunk(Identity):
    """The run waits until a person approves a tool call."""

    type: Literal["tool-call-approval"]
    payload: ApprovalPayload


class ToolSuspendedChunk(Identity):
    """The run waits until a person sends the data that a tool asks for."""

    type: Literal["tool-call-suspended"]
    payload: SuspendedPayload


class ToolDeniedChunk(Identity):
    """A person declined a tool call."""

    type: Literal["tool-output-denied"]
    payload: DeniedPayload


class SourceChunk(Identity):
    """A source that the model cites."""

    type: Literal["source"]
    payload: SourcePayload


class FileChunk(Identity):
    """A generated file."""

    type: Literal["file"]
    payload: FilePayload


class RawChunk(Identity):
    """An event of the provider, unchanged; only with `includeRawChunks`."""

    type: Literal["raw"]
    payload: JsonObject


class ObjectChunk(Identity):
    """The structured output, so far or complete (`object-result`); `metadata.fallback` marks the fallback value."""

    type: Literal["object", "object-result"]
    object: Any


class FinishChunk(Identity):
    """The end of an attempt, or of the run."""

    type: Literal["step-finish", "finish"]
    payload: FinishPayload


class ErrorChunk(Identity):
    """A failure; it ends the stream, except that after a failed model call `step-finish` and `finish` may follow."""

    type: Literal["error"]
    payload: ErrorPayload


class AbortChunk(Identity):
    """The run was cancelled; the payload is empty."""

    type: Literal["abort"]
    payload: JsonObject


class TripwireChunk(Identity):
    """A processor blocked the run; nothing follows."""

    type: Literal["tripwire"]
    payload: TripwirePayload


class ResetChunk(Identity):
    """Made by a client from the `reset` mark of a batch; it is never sent."""

    type: Literal["reset"]
    payload: ResetPayload


class DataChunk(TypedDict):
    """A custom chunk of a processor or tool; delivered unchanged (R-WR-3), and stored unless `transient`."""

    type: Annotated[str, Field(pattern="^data-")]
    data: Any
    id: NotRequired[str]
    transient: NotRequired[bool]


CoreChunk = Annotated[
    StartChunk | StepStartChunk | ResponseMetadataChunk | BlockChunk | TextDeltaChunk | ReasoningDeltaChunk
    | ReasoningSignatureChunk | RedactedReasoningChunk | ToolCallInputStartChunk | ToolCallDeltaChunk
    | ToolCallInputEndChunk | ToolCallChunk | ToolResultChunk | ToolErrorChunk | ToolOutputChunk | ToolApprovalChunk
    | ToolSuspendedChunk | ToolDeniedChunk | SourceChunk | FileChunk | RawChunk | ObjectChunk | FinishChunk | ErrorChunk
    | AbortChunk | TripwireChunk | ResetChunk,
    Field(discriminator="type"),
]  # fmt: skip
"""A chunk of a type that the runtime owns."""

AnyChunk = CoreChunk | DataChunk
"""Any chunk."""

MADE_BY_CLIENTS: Final = frozenset({"reset"})
"""Types that readers make and the wire never carries."""
