"""The Redis client of a service: commands of all its callers over one connection, in one write and one read.

redis-py lends a connection for each command and waits for its answer. Here whatever is asked in one turn of the event
loop is written at once, and answers are matched by their order (docs/adr/0020). Commands that nobody waits for ride
with the next write. redis-py still makes the connection (TLS, user, database, retries), names the commands, and reads
what their answers mean; its pipelines, and commands that wait on the server, have connections of their own.
"""

import asyncio
import hashlib
import logging
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, cast

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import DefaultParser
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError, InvalidResponse, NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from procession_services.runtime.access import Access
from procession_services.runtime.clock import new_token
from procession_services.runtime.redis_refusals import NotAllowedError, is_replica, refusal
from procession_services.runtime.tasks import ended

__all__ = ["AWAY", "ONCE", "UNANSWERED", "RedisClient", "Script", "connect", "is_unanswered", "once_key"]

log = logging.getLogger(__name__)
AWAY: Final = (TimeoutError, RedisError)
"""What comes of a Redis that does not answer, or refuses: it is full, or read-only."""
UNANSWERED: Final = (RedisConnectionError, RedisTimeoutError)
"""What comes of one that does not answer, or takes no writes."""
_OPEN: Final = Access()
_ANSWER_SECONDS: Final = 5.0
"""How long an answer may take before the connection is given up."""
_LATER_SECONDS: Final = 0.1
"""How long a command that nobody waits for may lie until something else is written."""
_RETRIES: Final = 12
_RETRIES_NOT_ALLOWED: Final = 5
"""Less than who asks whether a request may begin waits for an answer."""
_QUIET_SECONDS: Final = 10.0
"""How long a refusal is not told again."""
_LIFE: Final = """
local id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local known = redis.call('HMGET', KEYS[1], 'server', 'life')
if known[1] == id then return tonumber(known[2]) end
local life = math.max(tonumber(redis.call('TIME')[1]), tonumber(known[2] or '0') + 1)
redis.call('HSET', KEYS[1], 'server', id, 'life', life)
return life
"""
_LIFE_KEY: Final = "procession:admission:life"
ONCE: Final = """
-- Whether what has this key is done for the first time.
local function first_time(key) return redis.call('SET', key, '', 'NX', 'EX', 60) end
"""
"""Lua, for scripts that add something: a Redis that does it and answers too late is asked again."""
_BACKOFF: Final = ExponentialBackoff(cap=1, base=0.05)
_WAITING: Final = frozenset(
    {"XREAD", "XREADGROUP", "BLPOP", "BRPOP", "BLMOVE", "BZPOPMIN", "BZPOPMAX", "WAIT"}
)
"""Commands that may wait on the server, where they would hold up all that are behind them."""


def connect(url: str, access: Access = _OPEN) -> "RedisClient":
    """A Redis client that retries over restarts of the server."""
    errors: list[type[Exception]] = [RedisConnectionError, RedisTimeoutError, ConnectionError, TimeoutError]
    client = RedisClient.from_url(
        url,
        protocol=2,  # in which nothing comes that was not asked for
        retry=Retry(_BACKOFF, _RETRIES),
        retry_on_error=errors,
        health_check_interval=30,
        socket_timeout=_ANSWER_SECONDS,
        max_connections=512,
        **access.redis(url),
    )
    return cast("RedisClient", client)


def once_key(tenant: str) -> str:
    """A key for what is to be done once (`ONCE`)."""
    return f"procession:{tenant}:once:{new_token(32)}"


def is_unanswered(error: BaseException) -> bool:
    """Whether our own Redis does not answer, or refuses us; one that an author's code asks does not count."""
    if not isinstance(error, (*UNANSWERED, NotAllowedError)):
        return False
    ours = __name__.removesuffix("redis_client")
    frames = traceback.walk_tb(error.__traceback__)
    return any(str(frame.f_globals.get("__name__")).startswith(ours) for frame, _ in frames)


class Script:
    """A Lua script; `RedisClient.run` runs it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


_Asked = tuple[Script, tuple[Any, ...]]
"""A script, and what it gets: the number of its keys, the keys, and the arguments."""


class _Call:
    """A command, until it is answered; its `script` is sent again, with its text, where Redis has forgotten it."""

    __slots__ = ("answer", "failures", "packed", "script")

    def __init__(self, packed: bytes, answer: "asyncio.Future[Any]", script: _Asked | None) -> None:
        self.packed, self.answer, self.script = packed, answer, script
        self.failures = 0


class _Line(asyncio.Protocol):
    """One connection: calls that were sent are answered in their order."""

    def __init__(self, client: "RedisClient", transport: asyncio.Transport, seconds: float) -> None:
        self.calls: deque[_Call] = deque()
        self.gone = asyncio.get_running_loop().create_future()
        self._client, self._transport, self._seconds = client, transport, seconds
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=DefaultParser.parse_error)
        self._error: Exception | None = None
        self._answered = 0
        self._watch: asyncio.TimerHandle | None = None
        transport.set_protocol(self)
        if transport.is_closing():  # it may have told that to redis-py's protocol
            asyncio.get_running_loop().call_soon(self.connection_lost, None)

    def send(self, calls: list[_Call]) -> None:
        """Writes calls at once."""
        self.calls.extend(calls)
        self._transport.write(b"".join([call.packed for call in calls]))
        if self._watch is None:
            self._look_later()

    def close(self, error: Exception | None = None) -> None:
        """Ends the connection now; `error` is why."""
        self._error = self._error or error
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Gives answers to those who wait for them."""
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, RedisConnectionError):  # for one, a server that still loads its data
                self.close(reply)
                return
            self._answered += 1
            call = self.calls.popleft()
            if not isinstance(reply, RedisError):
                if not call.answer.done():  # else who asked has gone
                    call.answer.set_result(reply)
            elif isinstance(reply, NoScriptError) and call.script:
                self._client.send_whole(call)
            elif not call.answer.done():
                self._client.refused(call, reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """Has unanswered calls sent again."""
        if self.gone.done():
            return
        if self._watch is not None:
            self._watch.cancel()
        self.gone.set_result(None)
        why = self._error or RedisConnectionError(str(exc or "Redis has closed the connection"))
        self._client.lost(self, why)

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._watch = loop.call_later(self._seconds, self._look, self._answered)

    def _look(self, answered: int) -> None:
        """Gives the connection up when nothing came since the last look although something is awaited."""
        self._watch = None
        if self.calls and answered == self._answered:
            self.close(RedisTimeoutError(f"Redis did not answer within {self._seconds:g} seconds"))
        elif self.calls:
            self._look_later()


class RedisClient(Redis):
    """A client whose commands share a connection; it belongs to one event loop.

    `life` tells one start of the server from the next: the second in which it began, 0 where the user may not ask
    (INFO). Whoever has an answer knows in which life it was given.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.life = 0
        self._greeting: _Call | None = None
        self._retries = _RETRIES if (retry := self.get_retry()) is None else retry.get_retries()
        self._connection: Any = None
        self._line: _Line | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._calls: list[_Call] = []
        self._later: list[_Call] = []
        self._timer: asyncio.TimerHandle | None = None
        self._refused: list[_Call] = []
        self._again: asyncio.TimerHandle | None = None
        self._unsettled: set[asyncio.Future[Any]] = set()
        self._told = ("", 0.0)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """What redis-py's methods come down to."""
        if args[0] in _WAITING:
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        reply = await self._ask(args)
        read = self.response_callbacks.get(args[0])
        options.pop("keys", None)
        return reply if read is None else read(reply, **options)

    def run(
        self, script: Script, *, keys: Sequence[str] = (), args: Iterable[Any] = ()
    ) -> "asyncio.Future[Any]":
        """Runs a script; what it answers can be awaited."""
        rest = (len(keys), *keys, *args)
        return self._ask(("EVALSHA", script.digest, *rest), (script, rest))

    def later(self, what: str, *command: Any) -> None:
        """Sends a command before the next other one of this client, or after a moment.

        `settled` waits for it; where it fails, the log has `what` and why.
        """
        self._put_off(what, command, None)

    def run_later(self, what: str, script: Script, *, keys: Sequence[str], args: Iterable[Any]) -> None:
        """Runs a script in the same way."""
        rest = (len(keys), *keys, *args)
        self._put_off(what, ("EVALSHA", script.digest, *rest), (script, rest))

    async def settled(self) -> None:
        """Waits until all that was put off before is done."""
        self._flush()
        if self._unsettled:
            await asyncio.wait(set(self._unsettled))

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: FBT001 - redis-py's
        """Closes the connections; who still waits gets a ConnectionError."""
        if self._connecting is not None:
            await ended(self._connecting)
        calls = [*self._later, *self._calls, *self._refused]
        self._later, self._calls, self._refused = [], [], []
        if (line := self._line) is not None:
            self._line = None
            calls += line.calls
            line.close()
            await line.gone
        _fail(calls, RedisConnectionError("the client is closed"))
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)
        await super().aclose(close_connection_pool)

    def send_whole(self, call: _Call) -> None:
        """Sends a script again, with its text."""
        assert call.script is not None
        script, rest = call.script
        call.packed, call.script = _packed(("EVAL", script.text, *rest)), None
        self._put(call)

    def refused(self, call: _Call, error: RedisError) -> None:
        """Passes an error on; where Redis refuses all writes, waits as for one that is away.

        It also waits for a moment where our user lacks a permission: somebody may be changing the users.
        """
        if call is self._greeting or (why := refusal(error)) is None:
            call.answer.set_exception(error)
            return
        most = self._retries
        if isinstance(why, NotAllowedError):
            self._tell(str(why))
            most = min(most, _RETRIES_NOT_ALLOWED)
        why.__cause__ = error
        call.failures += 1
        if call.failures > most:
            call.answer.set_exception(why)
            return
        if is_replica(error) and self._line is not None:  # its address may be another server's by now
            self._line.close(why)
        self._refused.append(call)
        if self._again is None:
            pause = _BACKOFF.compute(call.failures)
            self._again = asyncio.get_running_loop().call_later(pause, self._ask_again)

    def _tell(self, why: str) -> None:
        """Logs what comes again and again, now and then."""
        now = asyncio.get_running_loop().time()
        if why != self._told[0] or now > self._told[1] + _QUIET_SECONDS:
            self._told = why, now
            log.error("%s", why)

    def _ask_again(self) -> None:
        self._again, calls, self._refused = None, self._refused, []
        for call in calls:
            self._put(call)

    def lost(self, line: _Line, error: Exception) -> None:
        """Sends again what was not answered on a connection, a limited number of times."""
        if self._line is not line:
            return
        self._line = None
        if self._greeting is not None:
            self._greeting.answer.cancel()
        calls = [call for call in line.calls if not call.answer.done()]
        for call in calls:
            call.failures += 1
        _fail((call for call in calls if call.failures > self._retries), error)
        self._calls[:0] = [call for call in calls if call.failures <= self._retries]
        self._flush()

    def _greet(self) -> None:
        """Asks first in which life of the server whatever follows is answered."""
        answer = asyncio.get_running_loop().create_future()
        answer.add_done_callback(self._greeted)
        self._greeting = _Call(_packed(("EVAL", _LIFE, 1, _LIFE_KEY)), answer, None)
        self._calls.insert(0, self._greeting)

    def _greeted(self, answer: "asyncio.Future[int]") -> None:
        if not answer.cancelled():
            self.life = 0 if answer.exception() else int(answer.result())

    def _ask(self, command: Sequence[Any], script: _Asked | None = None) -> "asyncio.Future[Any]":
        answer = asyncio.get_running_loop().create_future()
        self._put(_Call(_packed(command), answer, script))
        return answer

    def _put(self, call: _Call) -> None:
        if not self._calls:
            asyncio.get_running_loop().call_soon(self._flush)
        self._take_along()
        self._calls.append(call)

    def _put_off(self, what: str, command: Sequence[Any], script: _Asked | None) -> None:
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._later.append(_Call(_packed(command), answer, script))
        self._unsettled.add(answer)
        answer.add_done_callback(partial(self._settle, what))
        if self._timer is None:
            self._timer = loop.call_later(_LATER_SECONDS, self._flush)

    def _settle(self, what: str, answer: "asyncio.Future[Any]") -> None:
        self._unsettled.discard(answer)
        if not answer.cancelled() and (error := answer.exception()):
            log.warning("%s: %s", what, error)

    def _take_along(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._calls += self._later
            self._later.clear()

    def _flush(self) -> None:
        """Writes all that waits; without a connection, makes one first."""
        self._take_along()
        self._calls = [call for call in self._calls if not call.answer.done()]
        if not self._calls:
            return
        if self._line is not None:
            calls, self._calls = self._calls, []
            self._line.send(calls)
        elif self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        """Makes the connection, for as long as redis-py tries."""
        try:
            if failures := max(call.failures for call in self._calls):
                await asyncio.sleep(_BACKOFF.compute(failures))
            pool: Any = self.connection_pool
            connection = self._connection = self._connection or pool.make_connection()
            await connection.disconnect(nowait=True)
            await connection.connect()
            transport = connection._writer.transport  # noqa: SLF001 - redis-py makes the connection, we read it
            self._line = _Line(self, transport, connection.socket_timeout)
            self._greet()
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            calls, self._calls = self._calls, []
            _fail(calls, error)
        finally:
            self._connecting = None
        self._flush()


def _packed(command: Sequence[Any]) -> bytes:
    name = command[0]
    if " " in name:
        command = (*name.split(), *command[1:])
    try:
        return bytes(hiredis.pack_command(tuple(command)))
    except TypeError as error:
        raise DataError(f"{name}: {error}") from None


def _fail(calls: Iterable[_Call], error: Exception) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(error)
