"""Threads and messages in Redis.

The threads of one resource, below `procession:<tenant>:memory:<resource>`:

- `:updated`, a sorted set of thread ids by the time of the last change; what is not in it does not exist;
- `:created`, `:titles` and `:metadata`, hashes from thread id to time, title and JSON;
- `:note` and `:observations`, the working memory of the resource, and what was observed of it.

The messages of one thread, below `...:thread:<thread>`:

- `:order`, a sorted set of message numbers by `createdAt`; numbers have equal width, so among equal times the
  message that came first is first;
- `:numbers`, a hash from message id to number, and `:last`, the last number given;
- `:messages`, a hash from number to body. `createdAt` is not in the body: its only home is the order;
- `:note` and `:observations`, those of the thread.

Times are milliseconds. Ids are free text and percent-encoded in keys, so no two threads meet in one key.
Every operation is one script: one round trip that happens as a whole.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote

import orjson
from redis.asyncio import Redis

from procession_schemas.messages import Message
from procession_services.memory.core.times import to_iso, to_millis
from procession_services.memory.ports import MessageStore, NoteKind, Page, Thread
from procession_services.runtime import clock

# KEYS of every script begin with updated, created, titles, metadata, note.
_LIBRARY = """
local updated, created, titles, metadata, note = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local order, numbers, last, messages, own_note, seen = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local function record(thread)
  local at = redis.call('ZSCORE', updated, thread)
  if not at then return false end
  local more = redis.call('HGET', metadata, thread) or ''
  return {thread, at, redis.call('HGET', created, thread), redis.call('HGET', titles, thread) or '', more}
end
local function rename(thread, title)
  if title == '' then redis.call('HDEL', titles, thread) else redis.call('HSET', titles, thread, title) end
end
local function create(thread, now, title)
  redis.call('ZADD', updated, now, thread)
  redis.call('HSET', created, thread, now)
  rename(thread, title)
end
"""
# ARGV: thread.
_GET = """
return record(ARGV[1])
"""
# ARGV: thread, now, title, metadata.
_CREATE = """
if redis.call('ZSCORE', updated, ARGV[1]) then return false end
create(ARGV[1], ARGV[2], ARGV[3])
if ARGV[4] ~= '' then redis.call('HSET', metadata, ARGV[1], ARGV[4]) end
return record(ARGV[1])
"""
# ARGV: thread, title.
_RENAME = """
if redis.call('ZSCORE', updated, ARGV[1]) then rename(ARGV[1], ARGV[2]) end
return record(ARGV[1])
"""
# ARGV: first and last rank. Gives the total, then a record for each thread.
_LIST = """
local out = {redis.call('ZCARD', updated)}
local found = redis.call('ZREVRANGE', updated, ARGV[1], ARGV[2])
for _, thread in ipairs(found) do out[#out + 1] = record(thread) end
return out
"""
# KEYS: those of a thread follow. ARGV: thread.
_DELETE = """
redis.call('HDEL', created, ARGV[1])
redis.call('HDEL', titles, ARGV[1])
redis.call('HDEL', metadata, ARGV[1])
redis.call('UNLINK', order, numbers, last, messages, own_note, seen)
return redis.call('ZREM', updated, ARGV[1])
"""
# KEYS: those of a thread follow. ARGV: thread, now, title, then id, createdAt, body of each.
_SAVE = """
if redis.call('ZSCORE', updated, ARGV[1]) then
  redis.call('ZADD', updated, 'GT', ARGV[2], ARGV[1])
else
  create(ARGV[1], ARGV[2], ARGV[3])
end
for i = 4, #ARGV, 3 do
  local number = redis.call('HGET', numbers, ARGV[i])
  if not number then
    number = string.format('%016d', redis.call('INCR', last))
    redis.call('HSET', numbers, ARGV[i], number)
    redis.call('ZADD', order, ARGV[i + 1], number)
  end
  redis.call('HSET', messages, number, ARGV[i + 2])
end
"""
# KEYS: those of a thread follow. ARGV: thread, first and last rank. Gives the total, then of each message
# createdAt and body.
_READ = """
if not redis.call('ZSCORE', updated, ARGV[1]) then return false end
local out = {redis.call('ZCARD', order)}
local found = redis.call('ZRANGE', order, ARGV[2], ARGV[3], 'WITHSCORES')
for i = 1, #found, 2 do
  out[#out + 1] = found[i + 1]
  out[#out + 1] = redis.call('HGET', messages, found[i])
end
return out
"""
# KEYS: those of a thread follow. ARGV: before, after, then ids. Gives createdAt and body of each message.
_AROUND = """
local out, given = {}, {}
for i = 3, #ARGV do
  local number = redis.call('HGET', numbers, ARGV[i])
  local rank = number and redis.call('ZRANK', order, number)
  if rank then
    local first = math.max(0, rank - tonumber(ARGV[1]))
    local found = redis.call('ZRANGE', order, first, rank + tonumber(ARGV[2]), 'WITHSCORES')
    for k = 1, #found, 2 do
      if not given[found[k]] then
        given[found[k]] = true
        out[#out + 1] = found[k + 1]
        out[#out + 1] = redis.call('HGET', messages, found[k])
      end
    end
  end
end
return out
"""
# KEYS: those of a thread follow. ARGV: time before which messages go ('' for none), how many stay ('' for all).
_TRIM = """
local doomed = {}
if ARGV[1] ~= '' then doomed = redis.call('ZRANGEBYSCORE', order, '-inf', '(' .. ARGV[1]) end
if ARGV[2] ~= '' then
  local excess = redis.call('ZCARD', order) - tonumber(ARGV[2])
  if excess > #doomed then doomed = redis.call('ZRANGE', order, 0, excess - 1) end
end
local gone = {}
for _, number in ipairs(doomed) do
  local id = cjson.decode(redis.call('HGET', messages, number))['id']
  gone[#gone + 1] = id
  redis.call('ZREM', order, number)
  redis.call('HDEL', messages, number)
  redis.call('HDEL', numbers, id)
end
return gone
"""
# KEYS: ..., the note. ARGV: text, '1' where a text is expected, that text, then thread and now where it is a thread's.
_NOTE = """
local home = KEYS[6]
local stored = redis.call('GET', home)
if (stored and ARGV[2] == '0') or (not stored and ARGV[2] == '1') then return 0 end
if stored and stored ~= ARGV[3] then return 0 end
if ARGV[4] and not redis.call('ZSCORE', updated, ARGV[4]) then create(ARGV[4], ARGV[5], '') end
redis.call('SET', home, ARGV[1])
return 1
"""


class RedisMessageStore(MessageStore):
    """A `MessageStore` in Redis (6.2 or newer).

    Args:
        redis: A client that returns bytes.
        now: The clock that `createdAt` and `updatedAt` of threads come from.
    """

    def __init__(self, redis: "Redis", *, now: Callable[[], datetime] = clock.now) -> None:
        self._now = now
        self._redis = redis
        scripts = (_GET, _CREATE, _RENAME, _LIST, _DELETE, _SAVE, _READ, _AROUND, _TRIM, _NOTE)
        registered = [redis.register_script(_LIBRARY + script) for script in scripts]
        self._get, self._create, self._rename, self._list, self._delete, self._save, self._read = registered[
            :7
        ]
        self._around, self._trim, self._note = registered[7:]

    async def save(
        self,
        tenant: str,
        thread: str,
        resource: str,
        messages: Sequence[Message],
        *,
        title: str | None = None,
    ) -> None:
        """Implements `MessageStore.save`."""
        args: list[Any] = [thread, self._now_millis(), title or ""]
        for message in messages:
            args += [message["id"], to_millis(message["createdAt"]), _body(message, thread, resource)]
        await self._save(keys=_message_keys(tenant, thread, resource), args=args)

    async def recent(
        self, tenant: str, thread: str, resource: str, limit: int, *, skip: int = 0
    ) -> list[Message]:
        """Implements `MessageStore.recent`."""
        if limit <= 0:
            return []
        page = await self._range(tenant, thread, resource, -limit - skip, -1 - skip)
        return page.items if page else []

    async def find(self, tenant: str, thread: str, resource: str, ids: Sequence[str]) -> list[Message]:
        """Implements `MessageStore.find`."""
        return await self.around(tenant, resource, [(thread, each) for each in ids], before=0, after=0)

    async def around(
        self, tenant: str, resource: str, hits: Sequence[tuple[str, str]], *, before: int, after: int
    ) -> list[Message]:
        """Implements `MessageStore.around`."""
        threads: dict[str, list[str]] = {}
        for thread, message in hits:
            threads.setdefault(thread, []).append(message)
        found: list[Message] = []
        for thread, ids in threads.items():
            rows = await self._around(
                keys=_message_keys(tenant, thread, resource), args=[before, after, *ids]
            )
            found += [_message(at, body) for at, body in zip(rows[::2], rows[1::2], strict=True)]
        return found

    async def trim(
        self, tenant: str, thread: str, resource: str, *, older_than: str | None, keep: int | None
    ) -> list[str]:
        """Implements `MessageStore.trim`."""
        args = ["" if older_than is None else to_millis(older_than), "" if keep is None else keep]
        gone = await self._trim(keys=_message_keys(tenant, thread, resource), args=args)
        return [each.decode() for each in gone]

    async def every_thread(self, tenant: str) -> AsyncIterator[tuple[str, str]]:
        """Implements `MessageStore.every_thread`."""
        base = f"procession:{quote(tenant, safe='')}:memory:"
        seen = set()
        async for key in self._redis.scan_iter(f"{base}*:updated", count=1000):
            name = key.decode()[len(base) : -len(":updated")]
            if ":" not in name and name not in seen:
                seen.add(name)
                async for thread, _ in self._redis.zscan_iter(key, count=1000):
                    yield unquote(name), thread.decode()

    async def note(
        self, tenant: str, resource: str, thread: str | None, *, kind: NoteKind = "note"
    ) -> str | None:
        """Implements `MessageStore.note`."""
        found: Any = await self._redis.get(_note_key(tenant, resource, thread, kind))
        return None if found is None else found.decode()

    async def replace_note(
        self,
        tenant: str,
        resource: str,
        thread: str | None,
        text: str,
        *,
        expected: str | None,
        kind: NoteKind = "note",
    ) -> bool:
        """Implements `MessageStore.replace_note`."""
        args: list[Any] = [text, int(expected is not None), expected or ""]
        if thread is not None:
            args += [thread, self._now_millis()]
        keys = [*_resource_keys(tenant, resource), _note_key(tenant, resource, thread, kind)]
        return bool(await self._note(keys=keys, args=args))

    async def messages(
        self, tenant: str, thread: str, resource: str, *, page: int, per_page: int
    ) -> Page[Message] | None:
        """Implements `MessageStore.messages`."""
        return await self._range(tenant, thread, resource, page * per_page, (page + 1) * per_page - 1)

    async def threads(self, tenant: str, resource: str, *, page: int, per_page: int) -> Page[Thread]:
        """Implements `MessageStore.threads`."""
        ranks = [page * per_page, (page + 1) * per_page - 1]
        total, *records = await self._list(keys=_resource_keys(tenant, resource), args=ranks)
        return Page([_thread(resource, record) for record in records], total)

    async def get_thread(self, tenant: str, thread: str, resource: str) -> Thread | None:
        """Implements `MessageStore.get_thread`."""
        record = await self._get(keys=_resource_keys(tenant, resource), args=[thread])
        return _thread(resource, record) if record else None

    async def create_thread(
        self,
        tenant: str,
        thread: str,
        resource: str,
        *,
        title: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Thread | None:
        """Implements `MessageStore.create_thread`."""
        more = orjson.dumps(metadata) if metadata else b""
        args: list[str | int | bytes] = [thread, self._now_millis(), title or "", more]
        record = await self._create(keys=_resource_keys(tenant, resource), args=args)
        return _thread(resource, record) if record else None

    async def rename_thread(self, tenant: str, thread: str, resource: str, title: str) -> Thread | None:
        """Implements `MessageStore.rename_thread`."""
        record = await self._rename(keys=_resource_keys(tenant, resource), args=[thread, title])
        return _thread(resource, record) if record else None

    async def delete_thread(self, tenant: str, thread: str, resource: str) -> bool:
        """Implements `MessageStore.delete_thread`."""
        return bool(await self._delete(keys=_message_keys(tenant, thread, resource), args=[thread]))

    def _now_millis(self) -> int:
        return to_millis(clock.iso(self._now()))

    async def _range(
        self, tenant: str, thread: str, resource: str, first: int, last: int
    ) -> Page[Message] | None:
        found = await self._read(keys=_message_keys(tenant, thread, resource), args=[thread, first, last])
        if found is None:
            return None
        total, *rows = found
        return Page([_message(at, body) for at, body in zip(rows[::2], rows[1::2], strict=True)], total)


def _base(tenant: str, resource: str) -> str:
    return f"procession:{quote(tenant, safe='')}:memory:{quote(resource, safe='')}"


def _resource_keys(tenant: str, resource: str) -> list[str]:
    base = _base(tenant, resource)
    return [f"{base}:{name}" for name in ("updated", "created", "titles", "metadata", "note")]


def _message_keys(tenant: str, thread: str, resource: str) -> list[str]:
    base = f"{_base(tenant, resource)}:thread:{quote(thread, safe='')}"
    own = [f"{base}:{name}" for name in ("order", "numbers", "last", "messages", "note", "observations")]
    return [*_resource_keys(tenant, resource), *own]


def _note_key(tenant: str, resource: str, thread: str | None, kind: NoteKind) -> str:
    base = _base(tenant, resource)
    return f"{base}:{kind}" if thread is None else f"{base}:thread:{quote(thread, safe='')}:{kind}"


def _body(message: Message, thread: str, resource: str) -> bytes:
    """The message without `createdAt`; thread and resource are those it is saved under, whatever it says."""
    body = {key: value for key, value in message.items() if key != "createdAt"}
    return orjson.dumps({**body, "threadId": thread, "resourceId": resource})


def _message(created_at: bytes, body: bytes) -> Message:
    message: Message = orjson.loads(body)
    message["createdAt"] = to_iso(int(created_at))
    return message


def _thread(resource: str, record: Sequence[bytes | None]) -> Thread:
    id_, updated, created, title, metadata = (field.decode() if field else "" for field in record)
    thread: Thread = {
        "id": id_,
        "resource": resource,
        "createdAt": to_iso(int(created)),
        "updatedAt": to_iso(int(updated)),
    }
    if title:
        thread["title"] = title
    if metadata:
        thread["metadata"] = orjson.loads(metadata)
    return thread
