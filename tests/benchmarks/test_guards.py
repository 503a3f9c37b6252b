"""The measurement of guardrails beside the model runs from one end to the other."""

import pytest

from benchmarks.guards import QUICK, measure

pytestmark = [pytest.mark.integration, pytest.mark.slow]


async def test_every_way_is_measured():
    told = await measure(QUICK)
    assert told["problems"] == []
    (row,) = told["guards"]
    assert (row["guard_ms"], row["model_ms"]) == QUICK.pairs[0]
    for way in ("without", "before", "beside"):
        assert row[f"{way}_first_text_ms"]["min"] > 0
