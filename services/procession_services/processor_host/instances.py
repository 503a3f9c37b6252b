"""Processor instances of one process, built once for an id with its options and shared by all runs."""

from collections import OrderedDict
from typing import Any, Final, Generic, TypeVar

import orjson

from procession.calls import Link
from procession.errors import BrokenComponentError, ProcessorError
from procession.processor import Processor
from procession.registry import Registry
from procession_schemas.agent import ProcessorRef
from procession_services.runtime.building import built

_KEPT: Final = 1024
_KEPT_BYTES: Final = 8 * 1024 * 1024
"""Of JSON, ids and options: requests bring options of their own, and long ones are kept several times over."""
_T = TypeVar("_T")


class _Table(Generic[_T]):
    """What was made of a key; the least recently used go when there are too many, or their keys too long together."""

    def __init__(self) -> None:
        self._made: OrderedDict[bytes, _T] = OrderedDict()
        self._bytes = 0

    def get(self, name: bytes) -> _T | None:
        """What was made of this key, if it is still here."""
        if name in self._made:
            self._made.move_to_end(name)
        return self._made.get(name)

    def keep(self, name: bytes, made: _T) -> _T:
        """Keeps what was made of this key; of two that were made meanwhile the first."""
        if name in self._made:
            return self._made[name]
        self._made[name] = made
        self._bytes += len(name)
        while len(self._made) > _KEPT or (self._bytes > _KEPT_BYTES and len(self._made) > 1):
            oldest, _ = self._made.popitem(last=False)
            self._bytes -= len(oldest)
        return made


class Instances:
    """Builds and keeps instances, within limits."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._built = _Table[Processor[Any]]()
        self._arrays = _Table[list[Link]]()

    async def links(self, refs: list[ProcessorRef], places: list[int] | None = None) -> list[Link]:
        """The processors of an array that have a hook; without their places in it they are its first.

        Raises:
            UnknownComponentError: An id is not registered in this process.
            InvalidOptionsError: Options do not fit.
            ProcessorError: A constructor raised.
        """
        name = _key([places, [[ref.id, ref.as_, ref.options, ref.on_error, ref.timeout] for ref in refs]])
        if (known := self._arrays.get(name)) is not None:
            return known
        links = [
            Link(await self._instance(ref, len(name)), ref.instance, place, ref.on_error, ref.timeout)
            for place, ref in zip(places or range(len(refs)), refs, strict=True)
        ]
        return self._arrays.keep(name, links)

    async def _instance(self, ref: ProcessorRef, size: int) -> Processor[Any]:
        """The instance of a processor in an array that is `size` bytes long."""
        name = _key([ref.id, ref.instance, ref.options])
        if (known := self._built.get(name)) is not None:
            return known
        return self._built.keep(name, await built(lambda: self._made(ref), size))

    def _made(self, ref: ProcessorRef) -> Processor[Any]:
        try:
            return self.registry.processor(ref.id).build(ref.options)
        except BrokenComponentError as error:
            raise ProcessorError(
                str(error), processor_id=ref.instance, hook="", code="COMPONENT_FAILED"
            ) from error


def _key(of: list[Any]) -> bytes:
    return orjson.dumps(of, option=orjson.OPT_SORT_KEYS)
