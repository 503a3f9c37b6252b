"""`pii-detector` on the running system: both stages, and tokens that only the client and the tools see through."""

import json
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from procession_services.processors.core.pii.tokens import ConversationKey
from procession_services.runtime.embedded import Endpoints
from tests.support.system import SERVICES, System, running_system, text_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

KEY = b"a key of thirty-two random bytes"
MAIL = "john.doe@example.com"
THREAD = "thread-of-pii"
CALM = {"chunks": ["All is well."]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(
    servers: Endpoints, tmp_path_factory: pytest.TempPathFactory, monkeypatch_module: pytest.MonkeyPatch
) -> AsyncIterator[System]:
    """All services in this process, with a directory of secrets."""
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    secrets = tmp_path_factory.mktemp("secrets")
    (secrets / "masking-key").write_bytes(KEY + b"\n")
    async with (
        running_system(servers, tmp_path_factory.mktemp("logs")) as system,
        system.inside(*SERVICES, secrets_dir=secrets),
    ):
        yield system


def both(**options):
    return {f"{side}Processors": [{"id": "pii-detector", "options": options}] for side in ("input", "output")}


async def test_the_model_works_on_tokens_and_client_and_tools_get_values(system, caplog):
    caplog.set_level(logging.DEBUG)
    key = ConversationKey(KEY, system.client.tenant, f"thread:{THREAD}:{THREAD}")
    token = f"<{key.tokens('email', MAIL)[0]}>"
    call = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": f"mail {token}"}}]}
    model = system.script(call, {"chunks": [f"Sent to {token[:4]}", f"{token[4:]}", ". Bye"]})
    options = both(redactionMethod="token", restore={"answer": True, "toolArguments": True})
    result, chunks = await system.run(
        agent={"model": model, "tools": ["echo"], **options},
        text=f"Write to {MAIL}",
        request_context={"mastra__threadId": THREAD},
    )
    assert result.text == text_of(chunks) == f"Sent to {MAIL}. Bye"
    assert result.tool_results[0]["output"] == f"echo mail {MAIL}"
    asked = [json.dumps(request) for request in system.requests(model)]
    assert len(asked) == 2
    assert all(MAIL not in request for request in asked)
    assert f"echo mail {token}" in asked[1]
    kept = [
        member
        async for name in system.redis.scan_iter("*:kv:pii-detector:*")
        for member in await system.redis.smembers(name)
    ]
    assert kept
    assert all(b"john" not in member for member in kept)
    assert MAIL not in caplog.text


async def test_nothing_of_a_card_leaves_the_stream(system):
    answer = {"chunks": ["Card 4111 11", "11 1111 1", "111 or 4111 1111 1111 1112"]}
    result, chunks = await system.run(answer, agent=both(redactionMethod="placeholder"))
    assert result.text == text_of(chunks) == "Card [CREDIT-CARD] or 4111 1111 1111 1112"


NAME = {"type": "name", "value": "Alice", "confidence": 0.9, "start": 0, "end": 5}


async def test_the_second_stage_asks_its_model_over_http(system):
    found, nothing = (
        {"chunks": [json.dumps({"categories": [], "detections": each})]} for each in ([NAME], [])
    )
    model = system.script(found, nothing)
    agent = {
        "outputProcessors": [
            {"id": "pii-detector", "options": {"model": model, "redactionMethod": "placeholder"}}
        ]
    }
    result, chunks = await system.run({"chunks": ["Alice is", " here."]}, agent=agent)
    assert result.text == text_of(chunks) == "[NAME] is here."
    report = next(each for each in result.processors if each.hook == "processOutputStream")
    assert report.model_calls == 1


@pytest.mark.parametrize(
    "broken",
    [
        {"chunks": ["no json"]},
        {"error": {"status": 400, "message": "no"}},
        {"chunks": ["{}"], "chunk_delay_ms": 3000},
    ],
    ids=["nonsense", "error", "slow"],
)
async def test_a_second_stage_that_fails_lets_nothing_out_unless_it_may(system, broken):
    """D-1."""
    given = {"redactionMethod": "placeholder", "timeout": 0.5}
    answer = {"chunks": ["Alice: ", MAIL]}
    for strategy, status in (("strict", "blocked"), ("warn", "finished")):
        options = {**given, "model": system.script(broken), "errorStrategy": strategy}
        agent = {"outputProcessors": [{"id": "pii-detector", "options": options}]}
        result, chunks = await system.run(answer, agent=agent)
        assert result.status == status
        assert text_of(chunks) == ("" if status == "blocked" else "Alice: [EMAIL]")


async def test_tokens_without_a_key_end_the_run_before_the_model_is_called(system):
    model = system.script(CALM)
    agent = {"model": model, **both(redactionMethod="token", maskingKey="none")}
    result, _ = await system.run(agent=agent, text=MAIL)
    assert result.status == "failed"
    assert "PROCESSION_SECRETS_DIR" in result.error.message
    assert system.requests(model) == []
