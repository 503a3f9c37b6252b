"""What the models of a run say of themselves."""

import pytest

from procession_schemas.run import Failure, HookReport


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        ({"name": "KeyError", "message": "'city'"}, "KeyError: 'city'"),
        ({"name": "KeyError", "message": "'city'", "processor_id": "p"}, "KeyError: 'city' (p)"),
        ({"name": "ValueError", "message": "ValueError"}, "ValueError"),
        ({"name": "Error", "message": "no"}, "no"),
        ({"message": "no", "hook": "processInput", "processor_id": "p"}, "no (processInput of p)"),
        ({"code": "MODEL_FAILED", "name": "APICallError", "message": "no"}, "no"),
    ],
)
def test_an_error_is_told_with_the_class_of_what_a_processor_raised(failure, told):
    assert Failure(**{"code": "PROCESSOR_FAILED", **failure}).told() == told


def test_every_tally_of_a_hook_is_added():
    told = HookReport.__struct_fields__[2:]
    total = HookReport(processor="p", hook="h", **dict.fromkeys(told, 1))
    total.add(HookReport(processor="p", hook="h", **dict.fromkeys(told, 2)))
    assert total == HookReport(processor="p", hook="h", **dict.fromkeys(told, 3))
