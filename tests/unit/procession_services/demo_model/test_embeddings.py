import base64
import math
import struct
from typing import Any

import httpx
import pytest

from procession_services.demo_model.embeddings import DIMENSIONS, embed


def cosine(one: str, other: str) -> float:
    return sum(a * b for a, b in zip(embed(one), embed(other), strict=True))


def test_vectors_are_unit_vectors_and_always_the_same() -> None:
    vector = embed("The quick brown fox")
    assert len(vector) == DIMENSIONS
    assert math.isclose(math.hypot(*vector), 1)
    assert vector == embed("the QUICK brown fox")
    assert [round(value, 6) for value in embed("a", 4)] == [0.287348, 0.0, 0.0, 0.957826]
    assert math.hypot(*embed("")) == 1


def test_similar_texts_lie_closer_than_others() -> None:
    near = cosine("my favourite colour is green", "what is my favourite colour?")
    far = cosine("my favourite colour is green", "trains to Oslo leave hourly")
    assert near > far + 0.3


async def test_vectors_come_over_http_in_both_formats(http: httpx.AsyncClient) -> None:
    body = {"model": "any", "input": ["one text", "another"], "dimensions": 16}
    plain = (await http.post("/v1/embeddings", json=body)).json()
    assert [item["index"] for item in plain["data"]] == [0, 1]
    assert plain["data"][0]["embedding"] == embed("one text", 16)
    assert plain["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    packed = (await http.post("/v1/embeddings", json={**body, "encoding_format": "base64"})).json()
    values = struct.unpack("<16f", base64.b64decode(packed["data"][1]["embedding"]))
    assert values == pytest.approx(embed("another", 16), abs=1e-6)


async def test_text_and_tokens_are_accepted(http: httpx.AsyncClient) -> None:
    for given, count in (("text", 1), ([1, 2, 3], 1), ([[1, 2], [3]], 2)):
        answer = (await http.post("/v1/embeddings", json={"model": "m", "input": given})).json()
        assert len(answer["data"]) == count


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "input: expected"),
        ({"input": []}, "input: expected"),
        ({"input": ["a", 1]}, "mixed"),
        ({"input": "a", "dimensions": -1}, "dimensions"),
        ({"input": "a", "dimensions": 10**9}, "dimensions"),
    ],
)
async def test_a_wrong_request_is_refused(http: httpx.AsyncClient, body: Any, message: str) -> None:
    response = await http.post("/v1/embeddings", json=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
