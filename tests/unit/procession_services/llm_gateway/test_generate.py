"""What a processor's question to a model is answered."""

from typing import Any

import orjson
import pytest

from procession_services.llm_gateway.generate import Generator


class Provider:
    def knows(self, _model):
        return True

    def cost(self, *_of):
        return None

    async def stream(self, _call):
        yield []


class Ledger:
    def add(self, *_booked):
        pass


def generator():
    provider: Any = Provider()
    ledger: Any = Ledger()
    return Generator(provider, ledger, None, max_reply=10_000)


async def answered(retries):
    body = b'{"model": "m/x", "prompt": [], "timeout": 5, "modelSettings": {"maxRetries": %b}}' % retries
    return orjson.loads(await generator().answer("procession.v1.api.llm_gateway.t.generate", body))


@pytest.mark.parametrize("retries", [b'"many"', b"[1]", b"1e400"])
async def test_retries_that_are_no_number_are_told(retries):
    assert (await answered(retries))["error"] == "modelSettings.maxRetries must be a number"


@pytest.mark.parametrize("retries", [b"null", b"2", b'"2"', b"0.5"])
async def test_retries_that_are_a_number_are_taken(retries):
    assert (await answered(retries)).get("error") is None
