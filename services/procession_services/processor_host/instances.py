"""Processor instances of one process, built once for an id with its options and shared by all runs."""

from typing import Any, Final

import msgspec

from procession.calls import Link
from procession.errors import BrokenComponentError, ProcessorError
from procession.processor import Processor
from procession.registry import Registry
from procession_schemas.agent import ProcessorRef
from procession_services.runtime.building import built
from procession_services.runtime.kept import Kept

_key: Final = msgspec.json.Encoder(order="deterministic").encode


class Instances:
    """Builds and keeps instances, within limits."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._built = Kept[bytes, Processor[Any]]()
        self._arrays = Kept[bytes, list[Link]]()

    async def links(self, refs: list[ProcessorRef], places: list[int] | None = None) -> list[Link]:
        """The processors of an array that have a hook; without their places in it they are its first.

        Raises:
            UnknownComponentError: An id is not registered in this process.
            InvalidOptionsError: Options do not fit.
            ProcessorError: A constructor raised.
        """
        name = _key([places, refs])
        if (known := self._arrays.get(name)) is not None:
            return known
        links = [
            Link(await self._instance(ref, len(name)), ref.instance, place, ref.on_error, ref.timeout)
            for place, ref in zip(places or range(len(refs)), refs, strict=True)
        ]
        return self._arrays.keep(name, links, len(name))

    async def _instance(self, ref: ProcessorRef, size: int) -> Processor[Any]:
        """The instance of a processor in an array that is `size` bytes long."""
        name = _key([ref.id, ref.instance, ref.options])
        if (known := self._built.get(name)) is not None:
            return known
        return self._built.keep(name, await built(lambda: self._made(ref), size), len(name))

    def _made(self, ref: ProcessorRef) -> Processor[Any]:
        try:
            return self.registry.processor(ref.id).build(ref.options)
        except BrokenComponentError as error:
            raise ProcessorError(
                str(error), processor_id=ref.instance, hook="", code="COMPONENT_FAILED"
            ) from error
