"""What is stored of a run's chunks, for who comes back, and whether there is anything of the run."""

from pydantic import Field, field_validator

from procession_schemas import subjects
from procession_schemas.base import WireModel
from procession_schemas.chunks import ChunkBatch
from procession_schemas.run import Failure


class BacklogRequest(WireModel):
    """Which stored chunk batches: those of a run, from a number in the stream on; or only whether it is `known`."""

    run: str
    after: int = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="A number of the stream CHUNKS, not of a chunk: `last` of the answer before; 0: all.",
    )
    known: bool = Field(
        default=False, description="True: no batches, but whether there is anything of the run."
    )
    request: int | None = Field(
        default=None, ge=0, lt=2**63, description="With `known`, the place of the run's request in RUNS."
    )

    @field_validator("run")
    @classmethod
    def _is_token(cls, run: str) -> str:
        return subjects.token(run, "run id")


class BacklogReply(WireModel):
    """Some of the stored batches, oldest first; or whether the run is known."""

    last: int = Field(
        description="The number in the stream of the last one, which is the next `after`; 0: no more."
    )
    batches: list[ChunkBatch]
    known: bool | None = Field(
        default=None,
        description="False: there is no such run, or NATS and Redis have lost it, and nothing will come of it.",
    )
    request: int | None = Field(
        default=None,
        description="The place of the run's request in RUNS while it is there, as before it is accepted.",
    )
    error: Failure | None = Field(default=None, description="Why the question is none.")
