"""What the models of a run say of themselves."""

import pytest

from procession_schemas.run import Failure


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
