"""Functions of authors that make the arrays of a run."""

import asyncio
from typing import Final

from procession.args import RequestContext
from procession.registry import Registry
from procession_schemas.agent import FactoryRef, ProcessorRef
from procession_schemas.validation import RefusedError
from procession_services.runs.arrays import called

__all__ = ["called_in_time"]

_SECONDS: Final = 10.0


async def called_in_time(
    factory: FactoryRef, registry: Registry, context: RequestContext, kind: str
) -> list[ProcessorRef]:
    """What a factory makes of a request; an orchestrator that calls one may keep requests of others waiting.

    Raises:
        RefusedError: It took too long, or as `called`.
    """
    try:
        async with asyncio.timeout(_SECONDS):
            return await called(factory, registry, context, kind)
    except TimeoutError:
        text = f"factory {factory.factory}: returned nothing within {_SECONDS:g} seconds"
        raise RefusedError("FACTORY_FAILED", text, f"{kind}Processors.factory") from None
