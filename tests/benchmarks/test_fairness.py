"""The measurement of one tenant beside another one's flood runs from one end to the other."""

import pytest

from benchmarks.fairness import QUICK, measure

pytestmark = [pytest.mark.integration, pytest.mark.slow]


async def test_a_flood_is_answered_and_the_other_tenant_is_measured():
    told = await measure(QUICK)
    assert told["problems"] == []
    assert told["flood"]["finished"] == QUICK.flood
    assert told["alone"]["runs"] == QUICK.alone
    assert told["alone"]["first_text_ms"]["min"] > 0
