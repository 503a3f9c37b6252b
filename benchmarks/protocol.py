"""What the harness and the clients, ours and the peer's, say to each other: one JSON object per line."""

from typing import Final

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from procession_services.demo_model.synthetic import SyntheticText

INPUT: Final = "Hello there, please answer."
RESOURCE: Final = "ann"
SETTLE_SECONDS: Final = 0.05
START_SECONDS: Final = 1.0
SPREAD: Final = 0.618034
WARM_SECONDS: Final = 1.5
_AFTER_SECONDS: Final = 0.5
_BYTES: Final = 20
_STAMPED_BYTES: Final = 40


class _Line(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class Command(_Line):
    """A measurement: `runs` runs, `concurrency` at a time, or, with `seconds`, a window of paced streams.

    Attributes:
        model: Name of the model, which tells the model server what to answer.
        text: What every run must answer; None when it carries stamps, then the number of `chunks` must fit.
        inputs: Whether there are the three input processors.
        outputs: Number of output processors.
        stamped: Let the first output processor say when it got a chunk.
        raw: Ask the model server directly, without an agent.
        thread: The thread that the runs belong to, with a memory of its last ten messages; None is without memory.
        warm: Runs before those that count.
    """

    model: str
    text: str | None
    chunks: int
    inputs: bool = True
    outputs: int = 3
    tools: bool = False
    stamped: bool = False
    raw: bool = False
    thread: str | None = None
    runs: int = 0
    concurrency: int = 1
    warm: int = 0
    seconds: float = 0.0


class Run(_Line):
    """How one run went; times are milliseconds from its start, `first_ms` to the first chunk of text."""

    wall_ms: float
    first_ms: float | None
    chunks: int
    problem: str | None


class Outcome(_Line):
    """How a command went: its runs, the seconds they took, and of paced streams the lag of each chunk in ms.

    `inner_lags` are those to the first output processor, where chunks are stamped there.
    """

    runs: list[Run]
    seconds: float
    lags: list[float]
    inner_lags: list[float] = []
    problems: list[str]


def load(chunks: int, *, steps: int = 1, **options: object) -> Command:
    """Runs that answer with so many chunks of 20 bytes, after `steps - 1` steps with a tool call each."""
    tools = f",tools={steps - 1}" if steps > 1 else ""
    return Command.model_validate(
        {
            "model": f"mock:chunks={chunks},bytes={_BYTES}{tools}",
            "text": "".join(SyntheticText(chunks, _BYTES, stamped=False)),
            "chunks": chunks,
            "tools": steps > 1,
            **options,
        }
    )


def stream(streams: int, seconds: float, *, chunks_per_second: int = 50) -> Command:
    """Streams with a stamp in each chunk, long enough to cover a window of so many seconds."""
    chunks = round(chunks_per_second * (WARM_SECONDS + seconds + _AFTER_SECONDS))
    delay = 1000 // chunks_per_second
    return Command(
        model=f"mock:chunks={chunks},bytes={_STAMPED_BYTES},delay={delay},ts=1",
        text=None,
        chunks=chunks,
        concurrency=streams,
        seconds=seconds,
    )
