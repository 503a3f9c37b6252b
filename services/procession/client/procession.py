"""The client's front door: starts runs, finds them again, cancels them."""

import secrets
from collections.abc import AsyncIterator
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from procession.client.errors import UnknownRunError
from procession.client.handle import RunHandle
from procession.client.link import Link, UnreachableError
from procession.client.memory import MemoryClient
from procession.json_values import given
from procession_schemas import subjects
from procession_schemas.agent import Agent
from procession_schemas.events import RequestRejected
from procession_schemas.fingerprint import fingerprint
from procession_schemas.run import RunRequest, RunResult
from procession_schemas.validation import explained

Input = str | dict[str, Any] | list[str | dict[str, Any]]
"""What a run is about: a text, a message, or a list of these."""

AnyAgent = str | Agent | dict[str, Any]
"""Name of an agent that the services know, or an agent that travels with the request, as its JSON too."""

_Model = TypeVar("_Model", bound=BaseModel)


class Procession:
    """A connection to the services of one tenant; an asynchronous context manager.

    Args:
        url: Address of the NATS server, or several separated by commas.
        tenant: Token of every subject; letters, digits, `_` and `-`.
        connect_timeout: Seconds to reach a server at first; of several, each has its part of them. A lost connection is
            restored for ever, even when NATS itself has ended it.
        accept_timeout: Seconds within which a request must be stored. Until then it is sent again, as the same run, to
            servers that restart, or elect a leader for the stream; who attaches to a run asks for as long.
        nats_options: Further options of `nats.connect`, such as `user` and `password`, or `tls`.

    Attributes:
        memory: Threads, messages and working memory (`procession.client.memory.MemoryClient`).
    """

    def __init__(
        self,
        url: str = "nats://127.0.0.1:4222",
        *,
        tenant: str = "default",
        connect_timeout: float = 5.0,
        accept_timeout: float = 10.0,
        **nats_options: Any,
    ) -> None:
        self.tenant = subjects.token(tenant, "tenant")
        self._link = Link(url, connect_timeout, accept_timeout, nats_options)
        self.memory = MemoryClient(self._link, self.tenant)

    async def __aenter__(self) -> Self:
        """Connects.

        Raises:
            NotConnectedError: The server does not answer, or does not let us in.
            RuntimeError: It is connected already.
        """
        await self._link.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the connection; runs go on, and readers of this client get NotConnectedError."""
        await self._link.close()

    @property
    def waits_for(self) -> str:
        """What the client is waiting for just now, and why, in words for a person; empty when nothing holds it up.

        Such as `NATS at nats://127.0.0.1:4222 cannot be reached ([Errno 111] Connect call failed): is it running?`
        """
        return self._link.waits_for

    async def start(self, input: Input | RunRequest, *, agent: AnyAgent, **options: Any) -> RunHandle:  # noqa: A002
        """Publishes a run request and returns as soon as it is stored.

        Args:
            input: A text, a message, a list of these, or a whole request, to which `options` are added.
            agent: Name of an agent that the services know, or an agent that travels with the request: an `Agent`, or
                its JSON, as in `{"name": "a", "model": "openai/gpt-4o", "outputProcessors": ["pii-detector"]}`.
            options: Any field of RunRequest, for example `memory={"thread": "t1", "resource": "ann"}`. The
                same `run_id` with the same request is the same run, however often it is sent; its dicts must have
                their keys in the same order, too.

        Raises:
            pydantic.ValidationError: An option, or one of the agent's, is unknown or wrong; the error names it.
            NotJsonError: A number in it has more than 64 bits, or it nests deeper than 100 levels; a TypeError.
            NotAcceptedError: Nothing confirmed within `accept_timeout` that the request is stored: the services are not
                running, or NATS is silent. With a `run_id` of your own, you may send it again as the same run.
            RequestTooLargeError: The server does not take messages of that size.
            LimitExceededError: Too many requests are waiting to be taken up. A limit of the tenant is told later,
                when the run is read.
            NotConnectedError: The client is not connected.
        """
        known = agent if isinstance(agent, str) else _valid(Agent, agent)
        request = _request(input, known, options)
        subject = subjects.run(self.tenant, known if isinstance(known, str) else known.name)
        chosen = request.run_id is not None
        run_id = request.run_id = request.run_id or f"run-{secrets.token_hex(12)}"
        body = _body(request)
        ours = fingerprint(subject, body)
        handle = RunHandle(
            self._link, self.tenant, run_id, streams=request.stream, fingerprint=ours if chosen else None
        )
        try:
            await handle.open()
            # The stream drops the same request; another one under this id must get through, to be rejected.
            sequence, before = await self._stored(run_id, subject, body, f"{run_id}:{ours[:16]}")
            handle.sent(sequence, before=before)
        except BaseException:
            await handle.close()
            raise
        return handle

    async def _stored(self, run_id: str, subject: str, body: bytes, message_id: str) -> tuple[int, bool]:
        """Has the stream store a request; returns its place there, and whether the stream had it already.

        A repeat is sent again, under another message id, in two cases. The request was refused for now: it is gone, but
        the stream remembers its message id for a while. Or a later request with this run id was refused: of refusals
        only the last one can be read, so what became of ours cannot be.
        """
        while True:
            ack = await self._link.publish(subject, body, message_id)
            if not ack.duplicate:
                return ack.seq, False
            try:
                told = await self._link.last_event(self.tenant, run_id, "request.rejected")
            except UnreachableError:
                return ack.seq, True
            event = RequestRejected.model_validate_json(told) if told else None
            if event is None or (event.sequence or 0) < ack.seq:
                return ack.seq, True
            if event.sequence == ack.seq and not event.error.is_retryable:
                return ack.seq, True
            message_id = f"{message_id}:{ack.seq}"

    async def stream(
        self,
        input: Input | RunRequest,  # noqa: A002
        *,
        agent: AnyAgent,
        raise_on_error: bool = False,
        **options: Any,
    ) -> AsyncIterator[dict[str, Any]]:
        """Starts a run and yields its chunks as they come; see `start` and `chunks`.

        Raises:
            RunFailedError: With `raise_on_error`, behind the last chunk.
        """
        handle = await self.start(input, agent=agent, **options)
        try:
            async for chunk in handle:
                yield chunk
            if raise_on_error:
                await handle.result(raise_on_error=True)
        finally:
            await handle.close()

    async def generate(
        self,
        input: Input | RunRequest,  # noqa: A002
        *,
        agent: AnyAgent,
        raise_on_error: bool = False,
        **options: Any,
    ) -> RunResult:
        """Starts a run without chunks and waits for its result; see `start` and `result`.

        Raises:
            RunFailedError: With `raise_on_error`, when the run was blocked, failed or cancelled.
        """
        handle = await self.start(input, agent=agent, **{"stream": False, **options})
        try:
            return await handle.result(raise_on_error=raise_on_error)
        finally:
            await handle.close()

    async def attach(self, run_id: str, *, after: int = 0) -> RunHandle:
        """Gives a handle on a run that somebody started.

        If the request was refused, so that there is no run, reading the handle raises the refusal.

        Args:
            run_id: The run.
            after: How many chunks were read already: the `position` of an earlier handle. With 0, all that is still
                kept is read, even if the beginning has expired; the first `position` tells.

        Raises:
            ValueError: `after` is not an integer from 0 on, or no run can have that id.
            UnknownRunError: Neither an event of the run nor its request is stored; or no service is up to find a
                request that is not accepted yet.
            NotConnectedError: The client is not connected, or the streams do not answer within `accept_timeout`.
        """
        if type(after) is not int or after < 0:
            raise ValueError(
                f"`after` is the number of chunks already read: an integer from 0 on, not {after!r:.60}"
            )
        handle = RunHandle(self._link, self.tenant, run_id, after=after)
        handle.join()
        try:
            await handle.open()
            found = await self._link.patiently(lambda: self._trace(run_id))
        except BaseException:
            await handle.close()
            raise
        match found:
            case bytes():
                handle.learn(found)
            case int():
                handle.sent(found, before=True)
            case None:
                await handle.close()
                what = f"no event of run {run_id} (tenant {self.tenant}) is stored"
                raise UnknownRunError(
                    f"{what}: the id is wrong, or the run is not accepted yet or has expired"
                )
        return handle

    async def _trace(self, run_id: str) -> bytes | int | None:
        """An event of the run; else the place of its request, where nobody has accepted it yet."""
        if event := await self._any_event(run_id):
            return event
        try:
            known, request = await self._link.knows(self.tenant, run_id, None)
        except UnreachableError:
            return None
        if request is not None or not known:
            return request
        return await self._any_event(run_id)  # it was accepted in between

    async def _any_event(self, run_id: str) -> bytes | None:
        for type_ in ("run.accepted", "run.finished", "run.suspended", "request.rejected"):
            if event := await self._link.last_event(self.tenant, run_id, type_):
                return event
        return None

    async def cancel(self, run_id: str) -> None:
        """Cancels a run, whoever started it; raises NotAcceptedError.

        A run that is over stays as it is; a run that begins under this id within a day (`PROCESSION_CONTEXT_TTL`) ends
        at once. One that is requested in the same moment may have called its model by then.
        """
        await RunHandle(self._link, self.tenant, run_id).cancel()


def _body(request: RunRequest) -> bytes:
    """The request as it travels: of one that cannot be read, services do not know the run."""
    fields = request.model_dump(by_alias=True, exclude_unset=True)
    try:
        plain = to_jsonable_python(fields, inf_nan_mode="constants")
    except ValueError:  # pydantic does not say where
        plain = fields
    return given(plain, "request")


def _request(given: Input | RunRequest, agent: str | Agent, options: dict[str, Any]) -> RunRequest:
    fields: dict[str, Any] = {"input": given}
    if isinstance(given, RunRequest):
        fields = given.model_dump(exclude_unset=True)
    if isinstance(agent, Agent):
        fields["agent"] = agent
    return _valid(RunRequest, fields | options)


def _valid(model: type[_Model], fields: Any) -> _Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise explained(error, fields) from None
