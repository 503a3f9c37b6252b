"""So much of each tenant's work at once."""

import gc

from procession_services.runtime.gates import Gates


async def test_one_tenant_does_not_hold_up_another() -> None:
    gates = Gates(1)
    async with gates.of("a"):
        assert gates.of("a").locked()
        assert not gates.of("b").locked()
    assert not gates.of("a").locked()


async def test_the_gate_of_a_tenant_without_work_is_forgotten() -> None:
    gates = Gates(1)
    async with gates.of("a"):
        pass
    gc.collect()
    assert not gates._gates
