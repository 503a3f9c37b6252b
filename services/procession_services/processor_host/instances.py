"""Processor instances of one process, built once for an id with its options and shared by all runs."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import orjson

from procession.calls import Link
from procession.errors import BrokenComponentError, ProcessorError
from procession.processor import Processor
from procession.registry import Registry
from procession_schemas.agent import ProcessorRef

_LIMIT = 1024
_T = TypeVar("_T")


class Instances:
    """Builds and keeps instances; the least recently used go when there are too many."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._built: OrderedDict[bytes, Processor[Any]] = OrderedDict()
        self._arrays: OrderedDict[bytes, list[Link]] = OrderedDict()

    def links(self, refs: list[ProcessorRef], places: list[int] | None = None) -> list[Link]:
        """The processors of an array that have a hook; without their places in it they are its first.

        Raises:
            UnknownComponentError: An id is not registered in this process.
            InvalidOptionsError: Options do not fit.
            ProcessorError: A constructor raised.
        """
        told = [[ref.id, ref.as_, ref.options, ref.on_error, ref.timeout] for ref in refs]
        return _kept(self._arrays, [places, *told], lambda: self._links(refs, places or range(len(refs))))

    def _links(self, refs: list[ProcessorRef], places: Sequence[int]) -> list[Link]:
        return [
            Link(self._instance(ref), ref.instance, place, ref.on_error, ref.timeout)
            for place, ref in zip(places, refs, strict=True)
        ]

    def _instance(self, ref: ProcessorRef) -> Processor[Any]:
        key = [ref.id, ref.instance, ref.options]
        return _kept(self._built, key, lambda: self._made(ref))

    def _made(self, ref: ProcessorRef) -> Processor[Any]:
        try:
            return self.registry.processor(ref.id).build(ref.options)
        except BrokenComponentError as error:
            raise ProcessorError(
                str(error), processor_id=ref.instance, hook="", code="COMPONENT_FAILED"
            ) from error


def _kept(table: OrderedDict[bytes, _T], key: list[Any], make: Callable[[], _T]) -> _T:
    name = orjson.dumps(key, option=orjson.OPT_SORT_KEYS)
    if name in table:
        table.move_to_end(name)
        return table[name]
    made = table[name] = make()
    if len(table) > _LIMIT:
        table.popitem(last=False)
    return made
