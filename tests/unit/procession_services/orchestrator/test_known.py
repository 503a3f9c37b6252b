"""Where a request is found that nobody has accepted yet; the rest is in tests/integration."""

import json
from typing import Any, cast

import pytest

from procession_schemas import subjects
from procession_services.bus import Bus
from procession_services.orchestrator import known
from procession_services.orchestrator.known import Known
from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.store import RunStore
from tests.support.wire import services_at


class Forgetful:
    """Redis without any run."""

    async def load_state(self, _tenant: str, _run: str) -> None:
        return None


async def never(_tenant: str, _run: str) -> None:
    pytest.fail("there is no run")


async def test_it_has_the_id_that_it_asks_for_or_that_its_message_and_place_give_it(
    servers: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with services_at(servers.nats_url) as services:
        tenant, js = services.tenant, services.nats.jetstream()
        bus = await Bus.connect(servers.nats_url, "test")
        knows = Known(cast("RunStore", Forgetful()), bus, never).knows

        async def ask(agent: str, message_id: str | None = None, **body: Any) -> int:
            subject, headers = (
                subjects.run(tenant, agent),
                {"Nats-Msg-Id": message_id} if message_id else None,
            )
            return (await js.publish(subject, json.dumps(body).encode(), headers=headers)).seq

        assert await knows(tenant, "one", None) == (False, None)
        one, other = await ask("a", f"{tenant}-1", runId="one"), await ask("b", f"{tenant}-2", input="x")
        nameless = await ask("a", runId="a b")
        assert await knows(tenant, "one", None) == (True, one)
        assert await knows(tenant, f"{tenant}-2", None) == (True, other)
        assert await knows(tenant, f"run-{nameless}", None) == (True, nameless)
        assert await knows(tenant, "two", None) == (False, None)
        assert await knows(f"{tenant}-else", "one", None) == (False, None)
        assert await knows(tenant, "one", one) == (True, one)
        assert await knows(tenant, "one", nameless + 1_000_000) == (False, None)
        for bound in ("_REQUESTS", "_BYTES"):
            with monkeypatch.context() as patch:
                patch.setattr(known, bound, 1)
                assert await knows(tenant, "one", None) == (True, one)
                assert await knows(tenant, f"run-{nameless}", None) == (False, None)
        await bus.close()
