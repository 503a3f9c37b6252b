"""What a replica that takes a stream over holds back."""

import json
import secrets
from types import SimpleNamespace
from typing import Any

import pytest

from procession_schemas import subjects
from procession_schemas.work import WorkCommand
from procession_services.bus import Bus
from procession_services.output_processors.opening import Opener
from procession_services.processor_host.outbox import fence_of

pytestmark = pytest.mark.integration
FENCE = fence_of(1)


@pytest.mark.parametrize(("timed", "held_back"), [({}, True), ({"timed": True}, False)])
async def test_chunks_that_nobody_can_make_again_are_taken_back(
    servers: Any, timed: dict[str, bool], held_back: bool
) -> None:
    """Also where the sender was not told, because NATS was away just then."""
    run = f"r-{secrets.token_hex(6)}"
    bus = await Bus.connect(servers.nats_url, "test")
    try:
        shown = {"run": run, "seq": 0, "fence": FENCE, "chunks": [{"type": "start"}], **timed}
        subject = subjects.chunk("t", run)
        await bus.publish_stored(subject, json.dumps(shown).encode(), message_id=run)
        host: Any = SimpleNamespace(bus=bus, store=None)
        nobody: Any = None
        command = WorkCommand(
            run=run, tenant="t", agent="a", seq=1, service="s", version=0, out_seq=0, message_id="m", ops=[]
        )
        lease = {"outSeq": 0, "fence": FENCE, "resume": True, "attempt": 2}
        outbox = await Opener(host, nobody, nobody)._outbox(lease, command)
        await bus.flush()
        assert outbox.catching_up is held_back
        mark = json.loads(await bus.stored.last_body("CHUNKS", subject) or b"")
        assert (mark["fence"], mark["reset"]) == (FENCE + 2, 1 if held_back else 0)
    finally:
        await bus.close()
