"""What has become of a run, as its events tell; they may come twice, late, and in any order."""

from typing import Any

from procession_schemas.events import RequestRejected
from procession_schemas.run import Failure, RunResult

__all__ = ["Outcome"]


class Outcome:
    """Takes events of one run, and what a person decides, and knows what follows from both; pure.

    Attributes:
        accepted: Whether the request has become a run.
        disputed: Whether the run under the id may still be that of another request.
        request: The place of the request in the stream of requests, which a rejection names.
        streams: Whether the run sends chunks.
        result: That of the finished run, or of one that waits for a person.
        fence: What the run says from its last suspension on has at least this fence; -1 before the first.
        awaited: An end of the chunks counts only from this fence on: older ones are of before the run waited, or of
            somebody who has lost it.
        end: The number behind that of the last chunk, where the run has ended, or waits, and said so.
        rounds: How often it has gone on after it had waited.
    """

    def __init__(self, *, streams: bool, fingerprint: str | None) -> None:
        self.accepted = False
        self.disputed = fingerprint is not None
        self.request: int | None = None
        self.streams = streams
        self.result: RunResult | None = None
        self.fence = self.awaited = -1
        self.end: int | None = None
        self.rounds = 0
        self._fingerprint = fingerprint
        self._suspension: RunResult | None = None
        self._decided: set[str] = set()
        self._cancelled = False
        self._rejections: dict[int | None, RequestRejected] = {}

    @property
    def final(self) -> bool:
        """Tells whether the run has ended."""
        return self.result is not None and self._suspension is None

    @property
    def waits(self) -> bool:
        """Tells whether the run waits for a person."""
        return self._suspension is not None

    @property
    def asked(self) -> dict[str, dict[str, Any]]:
        """The calls for which the run waits, when it last said so, by id."""
        payload = self._suspension.suspend_payload if self._suspension else None
        return {call["toolCallId"]: call for call in (payload or {}).get("calls", ())}

    @property
    def refused(self) -> Failure | None:
        """Why our request has not become a run."""
        unnumbered = None if self.accepted else self._rejections.get(None)
        rejection = self._rejections.get(self.request, unnumbered)
        return rejection.error if rejection else None

    def hear(self, event: dict[str, Any]) -> bool:
        """Takes an event; False where it changes nothing."""
        match event.get("type"):
            case "run.accepted" if self.is_about_ours(event):
                self.accepted, self.disputed = True, False
                self.streams &= event.get("stream", True)
            case "run.finished" if self.is_about_ours(event):
                self._go_on()
                self.awaited = max(self.awaited, event.get("fence", -1))
                self.result, self.end = RunResult.model_validate(event["result"]), event.get("endSeq")
            case "run.suspended":
                self._suspend(event)
            case "run.resumed" if event["fence"] >= self.fence:
                self.fence = event["fence"]
                self._go_on()
            case "request.rejected":
                rejection = RequestRejected.model_validate(event)
                if self.request is None or rejection.sequence in (None, self.request):
                    self._rejections[rejection.sequence] = rejection
            case _:
                return False
        return True

    def is_about_ours(self, event: dict[str, Any]) -> bool:
        """Tells whether the request that the event is about is the same as ours; not every one says which."""
        return self._fingerprint is None or event.get("fingerprint") in (None, self._fingerprint)

    def refuse(self, rejection: RequestRejected) -> None:
        """Takes a rejection for one of our request, whichever it names."""
        self._rejections[self.request] = rejection

    def decide(self, call: str, fence: int) -> None:
        """Notes that a decision about a call was sent, for the suspension of that fence."""
        if self.fence == fence and call in self.asked:  # it has said nothing since
            self._decided.add(call)
            self.result = None
            if self._decided.issuperset(self.asked):
                self._go_on()

    def cancel(self) -> None:
        """Notes that the run was told to end, and will wait no more."""
        self._cancelled = True
        self._go_on()

    def _suspend(self, event: dict[str, Any]) -> None:
        """Notes that the run waits, unless it has gone on since, or all decisions were sent from here."""
        fence = event.get("fence", 0)
        if self.final or fence < self.fence or (fence == self.fence and self._suspension is None):
            return
        if fence > self.fence:
            self.fence, self._decided = fence, set()
        self.result = self._suspension = RunResult.model_validate(event["result"])
        self.end = event.get("endSeq")
        if self._cancelled or self._decided.issuperset(self.asked):
            self._go_on()

    def _go_on(self) -> None:
        """Leaves the suspension behind, where there is one."""
        self.awaited = self.fence
        if self._suspension is not None:
            self.result = self._suspension = self.end = None
            self.rounds += 1
