"""Processor instances of one process, built once for an id with its options and shared by all runs."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import orjson

from procession.calls import Link
from procession.errors import BrokenComponentError, ProcessorError
from procession.processor import Processor
from procession.registry import Registry
from procession_schemas.agent import ProcessorRef

_KEPT: Final = 1024
_KEPT_BYTES: Final = 8 * 1024 * 1024
"""Of JSON, ids and options: requests bring options of their own, and long ones are kept several times over."""
_T = TypeVar("_T")


class _Table(Generic[_T]):
    """What was made of a key; the least recently used go when there are too many, or their keys too long together."""

    def __init__(self) -> None:
        self._made: OrderedDict[bytes, _T] = OrderedDict()
        self._bytes = 0

    def get(self, key: list[Any], make: Callable[[], _T]) -> _T:
        """What was made of this key, or is made now."""
        name = orjson.dumps(key, option=orjson.OPT_SORT_KEYS)
        if name in self._made:
            self._made.move_to_end(name)
            return self._made[name]
        made = self._made[name] = make()
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

    def links(self, refs: list[ProcessorRef], places: list[int] | None = None) -> list[Link]:
        """The processors of an array that have a hook; without their places in it they are its first.

        Raises:
            UnknownComponentError: An id is not registered in this process.
            InvalidOptionsError: Options do not fit.
            ProcessorError: A constructor raised.
        """
        told = [[ref.id, ref.as_, ref.options, ref.on_error, ref.timeout] for ref in refs]
        return self._arrays.get([places, *told], lambda: self._links(refs, places or range(len(refs))))

    def _links(self, refs: list[ProcessorRef], places: Sequence[int]) -> list[Link]:
        return [
            Link(self._instance(ref), ref.instance, place, ref.on_error, ref.timeout)
            for place, ref in zip(places, refs, strict=True)
        ]

    def _instance(self, ref: ProcessorRef) -> Processor[Any]:
        key = [ref.id, ref.instance, ref.options]
        return self._built.get(key, lambda: self._made(ref))

    def _made(self, ref: ProcessorRef) -> Processor[Any]:
        try:
            return self.registry.processor(ref.id).build(ref.options)
        except BrokenComponentError as error:
            raise ProcessorError(
                str(error), processor_id=ref.instance, hook="", code="COMPONENT_FAILED"
            ) from error
