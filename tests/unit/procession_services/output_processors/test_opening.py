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
from procession_services.processor_host.outbox import Outbox
from procession_services.runs.numbering import fence_of
from procession_services.runtime.redis_client import connect
from procession_services.runtime.store import RunStore

pytestmark = pytest.mark.integration
FENCE = fence_of(1)


@pytest.fixture
async def store(servers: Any) -> Any:
    async with connect(servers.redis_url) as redis:
        await redis.ping()
        yield RunStore(redis, ttl=60, finished_ttl=30, told_ttl=90)


@pytest.fixture
async def taken_over(servers: Any, store: RunStore) -> Any:
    """What a replica sends of a stream that it has got with that lease, when CHUNKS has those batches of the run."""
    run = f"r-{secrets.token_hex(6)}"
    subject = subjects.chunk("t", run)
    bus = await Bus.connect(servers.nats_url, "test")

    async def take_over(stored: list[dict[str, Any]], **lease: Any) -> tuple[Outbox, list[dict[str, Any]]]:
        for number, batch in enumerate(stored):
            body = json.dumps({"run": run, "fence": FENCE, **batch}).encode()
            await bus.publish_stored(subject, body, message_id=f"{run}:{number}")
        command = WorkCommand(
            run=run, tenant="t", agent="a", seq=1, service="s", version=0, out_seq=0, message_id="m", ops=[]
        )
        host: Any = SimpleNamespace(bus=bus, store=store)
        nobody: Any = None
        outbox = await Opener(host, nobody, nobody)._outbox({"fence": FENCE, "attempt": 2, **lease}, command)
        for text in "abc":
            outbox.put({"type": "text-delta", "payload": {"text": text}})
        await outbox.flush(end=True)
        await outbox.kept()
        bodies = [json.loads(body) async for _, body in bus.stored.messages("CHUNKS", subject)]
        return outbox, bodies[len(stored) :]

    yield take_over
    await bus.close()


def brief(batch: dict[str, Any]) -> tuple[Any, ...]:
    texts = "".join(chunk["payload"]["text"] for chunk in batch["chunks"])
    return batch["fence"] - FENCE, batch["seq"], texts, batch.get("reset")


@pytest.mark.parametrize(("timed", "held_back"), [({}, True), ({"timed": True}, False)])
async def test_chunks_that_nobody_can_make_again_are_taken_back(
    taken_over: Any, timed: dict[str, bool], held_back: bool
) -> None:
    """Also where the sender was not told, because NATS was away just then."""
    shown = {"seq": 0, "chunks": [{"type": "start"}], **timed}
    outbox, (mark, _) = await taken_over([shown], outSeq=0, resume=True)
    assert outbox.timed is not held_back
    assert (mark["fence"], mark["reset"]) == (FENCE + 2, 1 if held_back else 0)


A, B = ({"type": "text-delta", "payload": {"text": text}} for text in "ab")


@pytest.mark.parametrize(
    ("stored", "lease", "sent"),
    [
        ([], {}, [(0, 5, "abc", 3)]),  # nobody had it before
        ([{"seq": 5, "chunks": [A, B]}], {}, [(2, 7, "", 7), (2, 7, "c", None)]),
        ([{"seq": 5, "chunks": [A]}], {}, [(2, 6, "", 6), (2, 6, "bc", None)]),
        (
            [{"seq": 4, "chunks": [A]}],
            {},
            [(2, 5, "", 5), (2, 5, "abc", 3)],
        ),  # of what came before the stream
        ([], {}, [(2, 5, "", 5), (2, 5, "abc", 3)]),
        ([{"seq": 5, "chunks": [A, B]}], {"after": 1}, [(2, 5, "", 5), (2, 5, "abc", 3)]),  # was in vain
        ([{"seq": 5, "chunks": [A], "fence": FENCE + 1}], {"after": 1}, [(2, 6, "", 6), (2, 6, "bc", None)]),
    ],
)
async def test_what_clients_have_of_a_stream_is_held_back_and_what_it_replaces_said_once(
    taken_over: Any, stored: list[dict[str, Any]], lease: dict[str, Any], sent: list[Any]
) -> None:
    resumed = {"resume": True} if sent[0][0] else {}
    _, batches = await taken_over(stored, outSeq=5, reset=3, **resumed, **lease)
    assert [brief(batch) for batch in batches] == sent


@pytest.mark.parametrize(("ago", "anew"), [(0, False), (1, True)])
async def test_a_stream_that_has_outlived_redis_is_made_anew(
    taken_over: Any, store: RunStore, ago: int, anew: bool
) -> None:
    """What models told its processors may be forgotten, and they may say something else."""
    shown = {"seq": 5, "chunks": [A, B]}
    outbox, batches = await taken_over([shown], outSeq=5, resume=True, life=store.life - ago)
    assert outbox.timed is anew
    assert "".join(text for _, _, text, _ in map(brief, batches)) == ("abc" if anew else "c")


async def test_a_stream_of_which_clients_may_have_missed_some_is_made_anew(taken_over: Any) -> None:
    shown = {"seq": 5, "chunks": [A, B]}
    outbox, batches = await taken_over([shown], outSeq=5, resume=True, anew=True)
    place = 5 + 2 * (1 << 20)
    assert outbox.timed
    assert [brief(batch) for batch in batches] == [(2, place, "", 5), (2, place, "abc", 5)]
    assert all(batch["timed"] for batch in batches)
