"""How much an answer holds, and what is told to somebody whose request is none; the rest is in tests/integration."""

from typing import Any, cast

import orjson
import pytest
from nats.js import JetStreamContext

from procession_schemas import subjects
from procession_services.bus.backlog import backlog
from procession_services.runtime.embedded import Endpoints
from tests.support.wire import services_at


async def nobody(_tenant: str, _run: str, _request: int | None) -> tuple[bool, int | None]:
    return False, None


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b"", "INVALID_JSON", None),
        (b"{", "INVALID_JSON", None),
        (b"[]", "INVALID_REQUEST", None),
        (b"{}", "INVALID_REQUEST", "run"),
        (b'{"run": 5}', "INVALID_REQUEST", "run"),
        (b'{"run": "a.b"}', "INVALID_REQUEST", "run"),
        (b'{"run": "*"}', "INVALID_REQUEST", "run"),
        (b'{"run": "r", "after": -1}', "INVALID_REQUEST", "after"),
        (b'{"run": "r", "after": NaN}', "INVALID_REQUEST", "after"),
        (b'{"run": "r", "after": 9223372036854775808}', "INVALID_REQUEST", "after"),
        (b'{"run": "r", "known": true, "request": -1}', "INVALID_REQUEST", "request"),
    ],
)
async def test_a_request_that_is_none_finds_nothing_and_is_told_why(
    body: bytes, code: str, field: str | None
) -> None:
    unasked = cast("JetStreamContext", None)
    told: dict[str, Any] = orjson.loads(
        await backlog(unasked, nobody, subjects.api("orchestrator", "acme", "backlog"), body)
    )
    assert (told["last"], told["batches"]) == (0, [])
    assert (told["error"]["code"], told["error"].get("field")) == (code, field)


@pytest.mark.parametrize(
    ("knowledge", "told"), [((False, None), {"known": False}), ((True, 7), {"known": True, "request": 7})]
)
async def test_who_asks_for_it_is_told_whether_a_run_is_known_and_where_its_request_is(
    knowledge: tuple[bool, int | None], told: dict[str, Any]
) -> None:
    async def knows(*asked: Any) -> tuple[bool, int | None]:
        assert asked == ("acme", "r", None)
        return knowledge

    subject = subjects.api("orchestrator", "acme", "backlog")
    answer = await backlog(cast("JetStreamContext", None), knows, subject, b'{"run": "r", "known": true}')
    assert orjson.loads(answer) == {"last": 0, "batches": [], **told}


async def test_an_answer_ends_before_the_batch_with_which_it_would_be_too_long(servers: Endpoints) -> None:
    lengths = [400, 500, 3_000, 2_000, 10, 10]
    async with services_at(servers.nats_url) as services:
        for seq, length in enumerate(lengths):
            await services.chunks("long", seq, "x" * length)
        told, after = list[list[int]](), 0
        while True:
            body = orjson.dumps({"run": "long", "after": after})
            subject = subjects.api("orchestrator", services.tenant, "backlog")
            answer = await backlog(services.nats.jetstream(), nobody, subject, body, longest=2_000)
            page = orjson.loads(answer)
            if not page["last"]:
                break
            after = page["last"]
            told.append([batch["seq"] for batch in page["batches"]])
            assert len(answer) <= 2_000 or len(page["batches"]) == 1
    assert told == [[0, 1], [2], [3], [4, 5]]
