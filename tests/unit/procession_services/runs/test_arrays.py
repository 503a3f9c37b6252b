"""Arrays of processors that a factory makes, and how they join the plan of the run."""

import sys

import pytest

from procession.args import RequestContext
from procession.processor import Hook, Options, Processor
from procession.registry import Registry
from procession_schemas.agent import FactoryRef, ProcessorRef
from procession_schemas.validation import RefusedError
from procession_services.runs.arrays import DEFAULT_BUDGET, MOST, called, place, with_arrays
from tests.support.raising import RAISED, raising
from tests.unit.procession_services.runs.driving import make_plan, placed


class Holder(Processor[Options]):
    id = "holder"


def order(array):
    return [each.ref.id for each in array]


def making(made):
    registry = Registry()

    async def factory(context, options):
        return made(context, options)

    registry.factories["made"] = factory
    return registry


def test_an_array_has_as_many_processors_as_can_call_each_other():
    registry = Registry()
    registry.add_processor(Holder)
    refs = [ProcessorRef(id="holder", as_=f"h{number}") for number in range(MOST + 1)]
    assert len(place("output", refs[:-1], registry)) == MOST
    with pytest.raises(RefusedError, match="257 processors; an array may have at most 256") as refused:
        place("output", refs, registry)
    assert refused.value.failure.field == "outputProcessors"


async def test_a_factory_gets_context_and_options_and_may_name_ids():
    registry = making(lambda context, options: [context["tier"], {"id": options["then"], "as": "second"}])
    factory = FactoryRef(factory="made", options={"then": "b"})
    made = await called(factory, registry, RequestContext(tier="a"), "output")
    assert [(each.id, each.instance) for each in made] == [("a", "a"), ("b", "second")]


@pytest.mark.parametrize(
    ("made", "code", "field"),
    [
        (lambda *_: 1 / 0, "FACTORY_FAILED", "errorProcessors.factory"),
        (lambda *_: 5, "FACTORY_FAILED", "errorProcessors.factory"),
        (lambda *_: "retry-once", "FACTORY_FAILED", "errorProcessors.factory"),
        (lambda *_: sys.exit(1), "FACTORY_FAILED", "errorProcessors.factory"),
        (lambda *_: Holder.build({"x": 1}), "FACTORY_FAILED", "errorProcessors.factory"),
        (lambda *_: [{"idd": "a"}], "INVALID_REQUEST", "errorProcessors.id"),
    ],
)
async def test_what_is_no_array_is_refused(made, code, field):
    with pytest.raises(RefusedError) as caught:
        await called(FactoryRef(factory="made"), making(made), RequestContext(), "error")
    assert (caught.value.failure.code, caught.value.failure.field) == (code, field)


@pytest.mark.parametrize("what", RAISED)
async def test_whatever_a_factory_raises_is_its_failure(what):
    with pytest.raises(RefusedError) as caught:
        await called(FactoryRef(factory="made"), making(raising(what)), RequestContext(), "error")
    assert caught.value.failure.code == "FACTORY_FAILED"


def test_made_arrays_come_before_what_memory_added():
    plan = make_plan(
        output=[placed("mem-history", Hook.OUTPUT_RESULT)], factories={"output": FactoryRef(factory="x")}
    )
    made = with_arrays(plan, {"output": [placed("out", Hook.OUTPUT_STREAM)]})
    assert (order(made.output), made.factories, order(plan.output)) == (
        ["out", "mem-history"],
        {},
        ["mem-history"],
    )
    assert [ref.id for ref in made.chain] == ["out"]


def test_memory_leaves_to_them_what_they_have():
    """R-WIRE-5."""
    plan = make_plan(
        output=[placed("mem-history", Hook.OUTPUT_RESULT), placed("mem-recall", Hook.OUTPUT_RESULT)]
    )
    made = with_arrays(plan, {"output": [placed("mem-history", Hook.OUTPUT_RESULT)]})
    assert order(made.output) == ["mem-history", "mem-recall"]


@pytest.mark.parametrize(
    ("budget", "errors", "wanted"), [(None, 1, DEFAULT_BUDGET), (None, 0, None), (2, 1, 2)]
)
def test_error_processors_have_a_budget_where_nothing_is_said(budget, errors, wanted):
    """A-2."""
    array = [placed("err", Hook.API_ERROR)] * errors
    assert with_arrays(make_plan(budget=budget), {"error": array}).budget == wanted


def test_a_made_processor_that_wants_data_chunks_gets_them():
    wants = placed("out", Hook.OUTPUT_STREAM).but(data_parts=True)
    assert with_arrays(make_plan(), {"output": [wants]}).data_parts
    assert not with_arrays(make_plan(), {"output": [placed("out", Hook.OUTPUT_STREAM)]}).data_parts
