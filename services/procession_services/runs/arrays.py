"""Arrays of processors: the functions that make them, and which service runs which hook (core.md 17)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pydantic import ValidationError

from procession.args import RequestContext
from procession.authors import by_author, said
from procession.errors import (
    BrokenComponentError,
    InvalidOptionsError,
    ProcessionError,
    UnknownComponentError,
)
from procession.placing import misplaced, runs_beside, unhosted
from procession.processor import INPUT_HOOKS, OUTPUT_HOOKS, Hook, Processor, Traits
from procession.registry import Registry
from procession_schemas.agent import FactoryRef, ProcessorRef
from procession_schemas.validation import RefusedError
from procession_services.runs.state import Placed, Plan

__all__ = [
    "DEFAULT_BUDGET", "HOSTS", "MOST", "called", "place", "refused", "sees_data", "usable", "with_arrays",
]  # fmt: skip

DEFAULT_BUDGET: Final = 10
"""Retries where error processors are configured and nothing is said (A-2)."""
MOST: Final = 256
"""Processors of an array: each is a call within a call for every chunk, of which Python allows a thousand."""
HOSTS: Final = {"input": "input_processors", "output": "output_processors", "error": "error_recovery"}
_HOOKS: Final = {"input": INPUT_HOOKS, "output": OUTPUT_HOOKS, "error": (Hook.API_ERROR,)}


async def called(
    factory: FactoryRef, registry: Registry, context: RequestContext, kind: str
) -> list[ProcessorRef]:
    """What a factory makes of a request: it is called once for each (R-CF-2).

    Raises:
        RefusedError: There is no factory of that name, it failed, or what it returned is not an array.
    """
    field = f"{kind}Processors"
    name = f"factory {factory.factory}"
    try:
        with by_author(name, ""):
            made = await registry.make_array(factory.factory, context, factory.options)
        return [ProcessorRef.checked({"id": m} if isinstance(m, str) else m) for m in made]
    except UnknownComponentError as error:
        raise RefusedError("UNKNOWN_COMPONENT", str(error), f"{field}.factory") from error
    except ValidationError as error:
        raise RefusedError.because(error, field) from error
    except ProcessionError as error:  # a factory is a user's code: its failure is the requester's answer
        told = str(error) if isinstance(error, BrokenComponentError) else f"{name}: {said(error)}"
        raise RefusedError("FACTORY_FAILED", told, f"{field}.factory") from error


@contextmanager
def refused(field: str) -> Iterator[None]:
    """Makes it a RefusedError that the component which `field` names is unknown, or broken, or its options are."""
    try:
        yield
    except UnknownComponentError as error:
        raise RefusedError("UNKNOWN_COMPONENT", str(error), field) from error
    except BrokenComponentError as error:
        raise RefusedError("COMPONENT_FAILED", str(error), field) from error
    except InvalidOptionsError as error:
        where = f"{field.removesuffix('.id')}.options.{next(iter(error.fields), '')}".rstrip(".")
        raise RefusedError("INVALID_OPTIONS", str(error), where) from error


def place(kind: str, refs: list[ProcessorRef], registry: Registry) -> list[Placed]:
    """An array as it runs.

    Raises:
        RefusedError: A processor is unknown, has wrong options, or stands where it cannot be; or there are too many.
    """
    if len(refs) > MOST:
        text = f"{len(refs):,} processors; an array may have at most {MOST}"
        raise RefusedError("INVALID_REQUEST", text, f"{kind}Processors")
    return [_placed(kind, ref, registry, f"{kind}Processors.{index}") for index, ref in enumerate(refs)]


def usable(
    kind: str, ref: ProcessorRef, registry: Registry, field: str
) -> tuple[type[Processor[Any]], Traits]:
    """A processor's class, and what it is with these options.

    Raises:
        RefusedError: As `refused`, or its service cannot run it in an array of that kind.
    """
    with refused(field):
        cls = registry.processor(ref.id)
        cls.build(ref.options)
        traits = cls.traits(ref.options)
    if wrong := unhosted(kind, cls, ref, traits):
        raise RefusedError("UNSUPPORTED_HOST", wrong, field)
    return cls, traits


def _placed(kind: str, ref: ProcessorRef, registry: Registry, where: str) -> Placed:
    cls, traits = usable(kind, ref, registry, f"{where}.id")
    if wrong := misplaced(kind, cls, ref, traits):
        raise RefusedError("UNSAFE_PLACE", wrong[1], f"{where}.{wrong[0]}")
    hooks, beside = traits.hooks & frozenset(_HOOKS[kind]), runs_beside(kind, traits)
    return Placed(
        ref=ref,
        hooks=hooks - {Hook.INPUT} if beside else hooks,
        host=cls.host or HOSTS[kind],
        beside=beside,
        data_parts=Hook.OUTPUT_STREAM in hooks and traits.data_parts,
    )


def sees_data(output: list[Placed]) -> bool:
    """Whether a processor of the output chain wants data chunks."""
    return any(placed.data_parts for placed in output)


def with_arrays(plan: Plan, made: dict[str, list[Placed]]) -> Plan:
    """The plan with the arrays that its factories have made; memory leaves to them what they have (R-WIRE-5)."""
    output, error = made.get("output", []), [*made.get("error", []), *plan.error]
    ids = {name for placed in output for name in (placed.ref.id, placed.ref.instance)}
    output += [placed for placed in plan.output if placed.ref.id not in ids]
    told = {name: getattr(plan, name) for name in Plan.__struct_fields__} | {
        "output": output,
        "error": error,
        "budget": DEFAULT_BUDGET if plan.budget is None and error else plan.budget,
        "data_parts": plan.data_parts or sees_data(output),
        "factories": {},
    }
    return Plan(**told)
