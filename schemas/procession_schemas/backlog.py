"""The stored chunks of a run, for clients that come back, and whether the run is known."""

from pydantic import Field, field_validator

from procession_schemas import subjects
from procession_schemas.base import WireModel
from procession_schemas.chunks import ChunkBatch
from procession_schemas.run import Failure


class BacklogRequest(WireModel):
    """Asks for stored chunk batches of a run, from a number in the stream on; or only whether the run is `known`."""

    run: str
    after: int = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="Sequence number in the stream CHUNKS, not the number of a chunk: `last` of the previous answer; "
        "0: from the start.",
    )
    known: bool = Field(
        default=False, description="True: only say whether the run is known, without batches."
    )
    request: int | None = Field(
        default=None,
        ge=0,
        lt=2**63,
        description="With `known`: the sequence number of the run's request in RUNS.",
    )

    @field_validator("run")
    @classmethod
    def _is_token(cls, run: str) -> str:
        return subjects.token(run, "run id")


class BacklogReply(WireModel):
    """Some of the stored batches, oldest first; or whether the run is known."""

    last: int = Field(
        description="Sequence number in the stream of the last batch, to be sent as the next `after`; 0: no more."
    )
    batches: list[ChunkBatch]
    known: bool | None = Field(
        default=None,
        description="False: there is no such run, or NATS and Redis have lost it, so it will never end.",
    )
    request: int | None = Field(
        default=None,
        description="Sequence number of the run's request in RUNS while it is stored there, as until it is accepted.",
    )
    error: Failure | None = Field(default=None, description="Why the request is not valid.")
