"""What `procession check --deploy` is told about models."""

from typing import Any

import pytest

from procession_schemas.admin import ServiceStatus
from procession_services.llm_gateway.models import ModelsAnswers
from procession_services.processor_host.admin import Admin


@pytest.mark.parametrize(
    ("body", "wrong"),
    [(b"", "is not JSON"), (b"{}", "models: Field required"), (b'{"models": 3}', "models: Input should be")],
)
async def test_a_question_that_is_none_is_told_what_is_wrong(body, wrong):
    nobody: Any = None
    answers = ModelsAnswers(Admin(nobody, "llm_gateway", "r"), nobody, nobody)
    (finding,) = ServiceStatus.model_validate_json(await answers.answer("", body)).findings
    assert wrong in finding.message
