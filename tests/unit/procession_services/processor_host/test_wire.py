"""Failures of the configuration have the code of what they are."""

import pytest

from procession.errors import BrokenComponentError, InvalidOptionsError, UnknownComponentError
from procession.messages import InvalidMessageError
from procession_services.processor_host.wire import wire_failure
from procession_services.processors.core.option_codes import CodedOptionsError

WRONG = InvalidOptionsError("classifier: options.classifiers are wrong", {"classifiers": "wrong"})


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownComponentError("there is no x"), "UNKNOWN_COMPONENT"),
        (BrokenComponentError("x cannot be made"), "COMPONENT_FAILED"),
        (WRONG, "INVALID_OPTIONS"),
        (CodedOptionsError("CLASSIFIER_PROCESSOR_MASTRA_NOT_REGISTERED", WRONG), "INVALID_OPTIONS"),
        (InvalidMessageError("is none", "role"), "INVALID_MESSAGE_CONTENT"),
    ],
)
def test_a_failure_has_the_code_of_its_kind(error, code):
    assert (wire_failure(error).code, wire_failure(error).name) == (code, type(error).__name__)
