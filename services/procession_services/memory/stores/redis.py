"""Threads and messages in Redis.

The threads of one resource, below `procession:<tenant>:memory:<resource>`:

- `:updated`, a sorted set of thread ids by the time of the last change; what is not in it does not exist;
- `:created` and `:titles`, hashes from thread id to time and title.

The messages of one thread, below `...:thread:<thread>`:

- `:order`, a sorted set of message numbers by `createdAt`; numbers have equal width, so among equal times the
  message that came first is first;
- `:numbers`, a hash from message id to number, and `:last`, the last number given;
- `:messages`, a hash from number to body. `createdAt` is not in the body: its only home is the order.

Times are milliseconds. Ids are free text and percent-encoded in keys, so no two threads meet in one key.
Every operation is one script: one round trip that happens as a whole.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import orjson
from redis.asyncio import Redis

from procession_schemas.messages import Message
from procession_services.memory.core.times import to_iso, to_millis
from procession_services.memory.ports import MessageStore, Page, Thread
from procession_services.runtime import clock

# KEYS of every script begin with updated, created, titles.
_LIBRARY = """
local updated, created, titles = KEYS[1], KEYS[2], KEYS[3]
local function record(thread)
  local at = redis.call('ZSCORE', updated, thread)
  if not at then return false end
  return {thread, at, redis.call('HGET', created, thread), redis.call('HGET', titles, thread)}
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
# ARGV: thread, now, title.
_CREATE = """
if redis.call('ZSCORE', updated, ARGV[1]) then return false end
create(ARGV[1], ARGV[2], ARGV[3])
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
# KEYS: ..., order, numbers, last, messages. ARGV: thread.
_DELETE = """
redis.call('HDEL', created, ARGV[1])
redis.call('HDEL', titles, ARGV[1])
redis.call('UNLINK', KEYS[4], KEYS[5], KEYS[6], KEYS[7])
return redis.call('ZREM', updated, ARGV[1])
"""
# KEYS: ..., order, numbers, last, messages. ARGV: thread, now, title, then id, createdAt, body of each.
_SAVE = """
if redis.call('ZSCORE', updated, ARGV[1]) then
  redis.call('ZADD', updated, 'GT', ARGV[2], ARGV[1])
else
  create(ARGV[1], ARGV[2], ARGV[3])
end
local order, numbers, last, messages = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
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
# KEYS: ..., order, numbers, last, messages. ARGV: thread, first and last rank. Gives the total, then of each
# message createdAt and body.
_READ = """
if not redis.call('ZSCORE', updated, ARGV[1]) then return false end
local out = {redis.call('ZCARD', KEYS[4])}
local found = redis.call('ZRANGE', KEYS[4], ARGV[2], ARGV[3], 'WITHSCORES')
for i = 1, #found, 2 do
  out[#out + 1] = found[i + 1]
  out[#out + 1] = redis.call('HGET', KEYS[7], found[i])
end
return out
"""


class RedisMessageStore(MessageStore):
    """A `MessageStore` in Redis (6.2 or newer).

    Args:
        redis: A client that returns bytes.
        now: The clock that `createdAt` and `updatedAt` of threads come from.
    """

    def __init__(self, redis: "Redis", *, now: Callable[[], datetime] = clock.now) -> None:
        self._now = now
        scripts = (_GET, _CREATE, _RENAME, _LIST, _DELETE, _SAVE, _READ)
        registered = [redis.register_script(_LIBRARY + script) for script in scripts]
        self._get, self._create, self._rename, self._list, self._delete, self._save, self._read = registered

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

    async def recent(self, tenant: str, thread: str, resource: str, limit: int) -> list[Message]:
        """Implements `MessageStore.recent`."""
        if limit <= 0:
            return []
        page = await self._range(tenant, thread, resource, -limit, -1)
        return page.items if page else []

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
        self, tenant: str, thread: str, resource: str, *, title: str | None = None
    ) -> Thread | None:
        """Implements `MessageStore.create_thread`."""
        args: list[str | int] = [thread, self._now_millis(), title or ""]
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
    return [f"{base}:updated", f"{base}:created", f"{base}:titles"]


def _message_keys(tenant: str, thread: str, resource: str) -> list[str]:
    base = f"{_base(tenant, resource)}:thread:{quote(thread, safe='')}"
    own = [f"{base}:order", f"{base}:numbers", f"{base}:last", f"{base}:messages"]
    return [*_resource_keys(tenant, resource), *own]


def _body(message: Message, thread: str, resource: str) -> bytes:
    """The message without `createdAt`; thread and resource are those it is saved under, whatever it says."""
    body = {key: value for key, value in message.items() if key != "createdAt"}
    return orjson.dumps({**body, "threadId": thread, "resourceId": resource})


def _message(created_at: bytes, body: bytes) -> Message:
    message: Message = orjson.loads(body)
    message["createdAt"] = to_iso(int(created_at))
    return message


def _thread(resource: str, record: Sequence[bytes | None]) -> Thread:
    id_, updated, created, title = (field.decode() if field else "" for field in record)
    thread: Thread = {
        "id": id_,
        "resource": resource,
        "createdAt": to_iso(int(created)),
        "updatedAt": to_iso(int(updated)),
    }
    if title:
        thread["title"] = title
    return thread
