"""What Python executes is counted in each of our processes, for a run, a further chunk and a further step."""

import pytest

from benchmarks import bytecodes, counting

pytestmark = [pytest.mark.integration, pytest.mark.slow]


async def test_bytecodes_are_counted_in_every_process_of_ours(monkeypatch):
    monkeypatch.setenv(counting.DIRECTORY, "")  # which `measure` sets

    told = await bytecodes.measure(runs=2, together=True)

    assert told.keys() == {"together", "client"}
    run, chunk, step = told["together"]
    (send,) = [name for name in run if name.endswith(" StreamChain.send")]
    assert 100 < chunk[send] < run[send] < sum(run.values())
    (call,) = [name for name in step if name.endswith(" run_tools")]
    assert 10 < step[call] < sum(step.values())
    assert call not in run
    for counts in told["client"]:
        assert any(name.endswith(" ChunkOrder.add") for name in counts)


async def test_each_counts_once_where_only_different_ones_are_asked_for(monkeypatch):
    monkeypatch.setenv(counting.DIRECTORY, "")

    told = await bytecodes.measure(runs=2, together=True, different=True)

    run, chunk, _step = told["together"]
    (send,) = [name for name in run if name.endswith(" StreamChain.send")]
    assert 50 < run[send] < 300
    assert chunk[send] * 100 < 50, "further chunks execute what the first ones did"
