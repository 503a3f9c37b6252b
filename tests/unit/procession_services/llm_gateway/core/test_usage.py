"""Numbers of tokens that cannot be; what else providers report is in `test_adapter`."""

from typing import Any

import pytest

from procession_services.llm_gateway.core.usage import Usage


@pytest.mark.parametrize("absurd", [1e30, 10**9 + 1, -5, "1" * 30])
def test_usage_that_no_answer_can_have_counts_as_none(absurd: Any) -> None:
    usage, details = Usage(), {"completion_tokens_details": {"reasoning_tokens": absurd}}
    usage.add({"prompt_tokens": 5, "completion_tokens": absurd, "total_tokens": absurd, **details})
    assert usage.told() == {"inputTokens": 5, "outputTokens": None, "totalTokens": 5}
    assert usage.is_doubtful


def test_other_numbers_beside_the_usage_may_be_what_they_are() -> None:
    usage = Usage()
    usage.add({"prompt_tokens": 10**9, "began_ns": 10**18, "took": 0.5})
    assert (usage.told()["inputTokens"], usage.is_doubtful) == (10**9, False)
