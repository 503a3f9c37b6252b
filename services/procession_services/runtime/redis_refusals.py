"""What Redis refuses whatever it is asked, until somebody mends it: it takes no writes, or our user may not do it."""

import re
from typing import Final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError

from procession_services.runtime.redis_rights import REMEDY

__all__ = ["NoWritesError", "NotAllowedError", "is_replica", "refusal"]

_FULL, _REPLICA = "command not allowed when used memory", "write against a read only replica"
_NO_WRITES: Final = re.compile(f"{_FULL}|{_REPLICA}|(?:^|-)(?:MISCONF|NOREPLICAS) ")
"""How it says that; redis-py takes some of the words at the beginning away, and scripts put others there."""
_NOT_ALLOWED: Final = re.compile(
    "no permissions to (?:run|access)|the user executing the script can't (?:run|access)", re.IGNORECASE
)
"""The same of our user; each version of Redis has its own words."""


class NoWritesError(RedisConnectionError):
    """Redis takes nobody's writes: it is full, a replica, or cannot write its file."""


class NotAllowedError(NoPermissionError):
    """Our user may not do it."""


def refusal(error: RedisError) -> NoWritesError | NotAllowedError | None:
    """The error that such an answer means; None for any other answer."""
    if _NO_WRITES.search(str(error)):
        return NoWritesError(str(error))
    if _NOT_ALLOWED.search(str(error)):
        return NotAllowedError(f"Redis denies permission ({error}): {REMEDY}")
    return None


def is_replica(error: RedisError) -> bool:
    """Whether it says that it is a replica."""
    return _REPLICA in str(error)
