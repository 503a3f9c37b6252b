"""What is told to the outside of the work: traces and metrics, both off unless configured.

Everybody asks `observer()` and tells it what happens. The one that is there at first observes nothing, costs next to
nothing, and loads nothing; `configured` puts `live.LiveObserver` in its place where a setting asks for it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol

import msgspec

from procession_schemas.run import HookReport, RunResult
from procession_schemas.work import WorkCommand, WorkResult
from procession_services.runtime.settings import Settings, SettingsError

__all__ = ["ModelWatch", "Observer", "StreamSession", "Trace", "configured", "installed", "observer"]

_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def _ignore(*_told: Any) -> None:
    """Takes what nobody wants to know."""


_NOTHING: Final[AbstractContextManager[Any]] = nullcontext(_ignore)
"""The span of whoever does not observe; it can be entered again and again."""


class Trace(msgspec.Struct, frozen=True):
    """Where a run is in its trace.

    Attributes:
        traceparent: W3C trace context of the run's own span, the parent of all that is done for it; None without one.
        parent: Hexadecimal id of the caller's span, where the request named one.
    """

    traceparent: str | None = None
    parent: str | None = None


class ModelWatch(Protocol):
    """One call of a model, watched."""

    def chunks(self, batch: list[Any]) -> None:
        """Takes a batch of the answer's chunks."""

    def end(self, error: BaseException | None = None) -> None:
        """Takes the end of the call; the error's text is left alone."""


class StreamSession(Protocol):
    """What is told of a stream through the output chain."""

    kind: str
    attempt: int
    processed: int

    @property
    def calls(self) -> Any:
        """Its `Calls`, with its tallies."""


class Observer:
    """Observes nothing. Methods that give a context manager are entered around the work that they are told of."""

    enabled = False
    metered = False

    def headers(self) -> dict[str, str] | None:
        """The headers of a message that is sent now; None when there is nothing to say."""
        return None

    def continued(self, _traceparent: str | None) -> AbstractContextManager[Any]:
        """Does what follows as a part of another process's span."""
        return _NOTHING

    def run_begins(self, traceparent: Any) -> Trace:
        """Gives a new run its place in the caller's trace, or in one of its own; it is stored with the run."""
        well_formed = isinstance(traceparent, str) and _TRACEPARENT.fullmatch(traceparent)
        return Trace(traceparent if well_formed else None)

    def run_accepted(self, tenant: str, agent: str) -> None:
        """A run has been accepted."""

    def request_rejected(self, tenant: str, limit: str) -> None:
        """A request was refused because of a limit."""

    def run_waited(self, tenant: str, seconds: float) -> None:
        """A run begins that has waited for a place."""

    def queues(self, running: Mapping[str, int], waiting: Mapping[str, int]) -> None:
        """How many runs of each tenant are at work, and wait for a place."""

    def run_ends(self, tenant: str, result: RunResult, trace: Trace, accepted_at: str) -> None:
        """A run ends, or begins to wait for a person."""

    def command(
        self, _command: WorkCommand, _attempt: int, _traceparent: str | None
    ) -> AbstractContextManager[Callable[[WorkResult], None]]:
        """Around a command; gives a function that takes its result. Without a traceparent it belongs to what runs."""
        return _NOTHING

    def hook(self, _processor: str, _hook: str, _tally: HookReport) -> AbstractContextManager[Any]:
        """Around one call of a hook outside the stream."""
        return _NOTHING

    def tool(
        self, _name: str, _call_id: str, _args: Any
    ) -> AbstractContextManager[Callable[[Mapping[str, Any]], None]]:
        """Around one call of a tool; gives a function that takes its outcome."""
        return _NOTHING

    def stream(self, _session: StreamSession) -> AbstractContextManager[Any]:
        """Around a stream through the output chain."""
        return _NOTHING

    def model(self, _call: Any) -> ModelWatch:
        """Begins to watch one call of a model; `enabled` observers are asked only."""
        raise NotImplementedError

    def cost(self, model: str, dollars: float | None) -> None:
        """What a call of a model has cost."""

    def embedding(self, _model: str) -> AbstractContextManager[Callable[[int | None, float | None], None]]:
        """Around one call of an embedding model; gives a function that takes its tokens and what it has cost."""
        return _NOTHING

    def failover(self) -> None:
        """A stream goes on through another replica."""

    def delivered(self, consumer: str, attempt: int) -> None:
        """A message came to a consumer, for the `attempt`th time."""

    def dead_letter(self, consumer: str) -> None:
        """A message was delivered too often."""

    def configured_by(self, file: str, *, refused: bool) -> None:
        """A file of the configuration was read anew: it counts, or is refused."""

    def lag(self, stream: str, consumer: str, waiting: int, unacknowledged: int) -> None:
        """How many messages a consumer has before it, and in hand."""


class _Current:
    """The observer of this process."""

    observer: Observer = Observer()


def observer() -> Observer:
    """The observer of this process."""
    return _Current.observer


@contextmanager
def installed(one: Observer) -> Iterator[None]:
    """Lets this one observe for the length of the block."""
    before, _Current.observer = _Current.observer, one
    try:
        yield
    finally:
        _Current.observer = before


@contextmanager
def configured(service: str, settings: Settings) -> Iterator[None]:
    """Observes a service as its settings say; a second service in one process is observed by what is there.

    Raises:
        SettingsError: The packages are missing, or the port of the metrics is taken.
    """
    if _Current.observer.enabled or (settings.telemetry == "off" and settings.metrics_port is None):
        yield
        return
    try:
        from procession_services.runtime.telemetry import live  # noqa: PLC0415 - only where it is wanted
    except ImportError as error:
        text = f"telemetry needs packages that are not installed ({error.name}): pip install 'procession[telemetry]'"
        raise SettingsError(text) from error
    with live.observing(service, settings) as one, installed(one):
        yield
