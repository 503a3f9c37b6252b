"""Processor instances of one process, built once for an id with its options and shared by all runs."""

from collections import OrderedDict
from typing import Any

import orjson

from procession.calls import Link
from procession.processor import Processor
from procession.registry import Registry
from procession_schemas.agent import ProcessorRef

_LIMIT = 1024


class Instances:
    """Builds and keeps instances; the least recently used go when there are too many."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._built: OrderedDict[bytes, Processor[Any]] = OrderedDict()

    def links(self, refs: list[ProcessorRef], offset: int = 0) -> list[Link]:
        """The processors of an array, in their places.

        Raises:
            UnknownComponentError: An id is not registered in this process.
            InvalidOptionsError: Options do not fit.
        """
        return [
            Link(self._instance(ref), ref.instance, offset + i, ref.on_error, ref.timeout)
            for i, ref in enumerate(refs)
        ]

    def _instance(self, ref: ProcessorRef) -> Processor[Any]:
        key = orjson.dumps([ref.id, ref.instance, ref.options], option=orjson.OPT_SORT_KEYS)
        if key in self._built:
            self._built.move_to_end(key)
            return self._built[key]
        made = self.registry.processor(ref.id).build(ref.options)
        self._built[key] = made
        if len(self._built) > _LIMIT:
            self._built.popitem(last=False)
        return made
