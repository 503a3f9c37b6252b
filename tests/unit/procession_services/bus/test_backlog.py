"""What is told to somebody whose request for stored chunks is none; the rest is in tests/integration."""

from typing import Any, cast

import orjson
import pytest
from nats.js import JetStreamContext

from procession_schemas import subjects
from procession_services.bus.backlog import backlog


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
    ],
)
async def test_a_request_that_is_none_finds_nothing_and_is_told_why(
    body: bytes, code: str, field: str | None
) -> None:
    unasked = cast("JetStreamContext", None)
    told: dict[str, Any] = orjson.loads(
        await backlog(unasked, subjects.api("orchestrator", "acme", "backlog"), body)
    )
    assert (told["last"], told["batches"]) == (0, [])
    assert (told["error"]["code"], told["error"].get("field")) == (code, field)
