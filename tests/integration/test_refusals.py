"""Every request that cannot run gets one clear answer that names the field, and nothing hangs."""

import asyncio
import json
from typing import Any

import nats
import pytest
import pytest_asyncio

from procession_schemas import subjects
from tests.support.hooked import processor
from tests.support.system import finished

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

AGENT = {"name": "test", "model": "openai/demo"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ask(system):
    """Publishes a body as it is; returns all events and chunks of the run until its end."""
    connection = await nats.connect(system.servers.nats_url)

    async def publish(body, *, run="", agent="test", headers=None):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        ack = None
        run = run or (body.get("runId") if isinstance(body, dict) else "") or ""
        if not run:  # the acknowledgement tells the id
            ack = await connection.jetstream().publish(
                subjects.run(system.client.tenant, agent), raw, headers=headers
            )
            run = f"run-{ack.seq}"
        handle_subject = subjects.event(system.client.tenant, run, ">")
        events = await connection.subscribe(handle_subject)
        chunks = await connection.subscribe(subjects.chunk(system.client.tenant, run))
        await connection.flush()
        if ack is None:
            await connection.jetstream().publish(
                subjects.run(system.client.tenant, agent), raw, headers=headers
            )
        told: list[Any] = []
        stored = await connection.jetstream().subscribe(handle_subject, ordered_consumer=True)
        async with asyncio.timeout(10):
            while not told or told[-1]["type"] != "run.finished":
                told.append(json.loads((await stored.next_msg(timeout=10)).data))
        await stored.unsubscribe()
        await events.unsubscribe()
        await chunks.unsubscribe()
        return told

    yield publish
    await connection.close()


async def test_a_request_whose_id_is_too_long_has_its_end_where_the_acknowledgement_tells(ask):
    told = await ask(json.dumps({"input": "x", "runId": "r" * 129}).encode())
    assert (told[-1]["type"], told[-1]["result"]["error"]["field"]) == ("run.finished", "runId")


CASES: dict[str, Any] = {
    "agent": ({"input": "x"}, "UNKNOWN_AGENT", "agent", "nobody"),
    "processor": (
        {"agent": {**AGENT, "inputProcessors": ["say-hello"]}},
        "UNKNOWN_COMPONENT",
        "inputProcessors.0.id",
        "say-hello",
    ),
    "output processor": (
        {"agent": {**AGENT, "outputProcessors": ["upper", "x"]}},
        "UNKNOWN_COMPONENT",
        "outputProcessors.1.id",
        "'x'",
    ),
    "error processor": (
        {"agent": {**AGENT, "errorProcessors": ["x"]}},
        "UNKNOWN_COMPONENT",
        "errorProcessors.0.id",
        "'x'",
    ),
    "processor of a request": (
        {"agent": AGENT, "inputProcessors": ["x"]},
        "UNKNOWN_COMPONENT",
        "inputProcessors.0.id",
        "'x'",
    ),
    "factory": (
        {"agent": {**AGENT, "inputProcessors": {"factory": "x"}}},
        "UNKNOWN_COMPONENT",
        "inputProcessors.factory",
        "'x'",
    ),
    "failing factory": (
        {
            "agent": {**AGENT, "outputProcessors": {"factory": "by-tier"}},
            "requestContext": {"tier": "unknown"},
        },
        "FACTORY_FAILED",
        "outputProcessors.factory",
        "no such tier",
    ),
    "processor option": (
        {"agent": {**AGENT, "inputProcessors": [{"id": "say", "options": {"word": "x", "loud": True}}]}},
        "INVALID_OPTIONS",
        "inputProcessors.0.options.loud",
        "loud",
    ),
    "wrong processor option": (
        {"agent": {**AGENT, "inputProcessors": [{"id": "say", "options": {"word": 3}}]}},
        "INVALID_OPTIONS",
        "inputProcessors.0.options.word",
        "word",
    ),
    "missing processor option": (
        {"agent": {**AGENT, "inputProcessors": ["say"]}},
        "INVALID_OPTIONS",
        "inputProcessors.0.options.word",
        "word",
    ),
    "option": ({"agent": AGENT, "inputProcesors": []}, "INVALID_REQUEST", "inputProcesors", "inputProcesors"),
    "processor without id": (
        {"agent": AGENT, "outputProcessors": [{"idd": "x"}]},
        "INVALID_REQUEST",
        "outputProcessors.0.id",
        "idd",
    ),
    "message of no kind": ({"agent": AGENT, "input": ["x", 3]}, "INVALID_REQUEST", "input.1", "input.1"),
    "agent option": ({"agent": {**AGENT, "tols": []}}, "INVALID_REQUEST", "agent.tols", "tols"),
    "wrong type": ({"agent": AGENT, "maxSteps": "many"}, "INVALID_REQUEST", "maxSteps", "integer"),
    "no input": ({"agent": AGENT, "input": None}, "INVALID_REQUEST", "input", "input"),
    "wrong message": (
        {"agent": AGENT, "input": [{"role": "user", "content": 3}]},
        "INVALID_MESSAGE_CONTENT",
        "input.0.content",
        "input.0.content is of type int",
    ),
    "tool": ({"agent": {**AGENT, "tools": ["echo", "hammer"]}}, "UNKNOWN_COMPONENT", "tools.1.id", "hammer"),
    "tool option": (
        {"agent": {**AGENT, "tools": [{"id": "echo", "options": {"x": 1}}]}},
        "INVALID_OPTIONS",
        "tools.0.options.x",
        "x",
    ),
    "two tools of a name": (
        {"agent": {**AGENT, "tools": ["echo", "echo"]}},
        "INVALID_REQUEST",
        "tools.1.id",
        "echo",
    ),
    "no model": ({"agent": {"name": "test"}}, "INVALID_REQUEST", "model", "model"),
    "unknown model": (
        {"agent": {**AGENT, "model": "nobody/nothing"}},
        "UNKNOWN_MODEL",
        "model",
        "nobody/nothing",
    ),
    "stop condition": (
        {"agent": {**AGENT, "stopWhen": ["tired"]}},
        "UNKNOWN_COMPONENT",
        "stopWhen.0.id",
        "tired",
    ),
    "memory without resource": (
        {"agent": {**AGENT, "memory": {"thread": "t"}}},
        "AGENT_MEMORY_MISSING_RESOURCE_ID",
        "memory.resource",
        "resource",
    ),
    "failing processor": (
        {"agent": {**AGENT, "inputProcessors": ["broken"]}},
        "PROCESSOR_FAILED",
        None,
        "out of order",
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_wrong_request_gets_one_error_that_names_the_field(ask, name):
    body, code, field, said = CASES[name]
    body = {"input": "Hello", **body}
    agent = "nobody" if name == "agent" else "test"
    events = await ask({key: value for key, value in body.items() if value is not None}, agent=agent)
    assert [event["type"] for event in events].count("run.finished") == 1
    result = events[-1]["result"]
    assert (result["status"], result["error"]["code"]) == ("failed", code)
    assert result["error"].get("field") == field
    assert said in result["error"]["message"]


async def test_an_unknown_model_of_a_step_names_who_chose_it(system):
    """R-ER-3, D-30: the request is not wrong, so no field of it is named."""
    chooser = {"id": "prepare-step", "as": "chooser", "options": {"rules": [{"model": "nobody/nothing"}]}}
    result, _ = await system.run({"chunks": ["x"]}, agent={"inputProcessors": [chooser]})
    error = result.error
    assert (error.code, error.field) == ("PROCESSOR_RETURNED_UNSUPPORTED_MODEL", None)
    assert (error.processor_id, error.hook) == ("chooser", "processInputStep")


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"model_settings": {"headers": {"x": "y\n"}}}, "PROCESSOR_RETURNED_INVALID_VALUE", "`headers`"),
        ({"provider_options": {"openai": 5}}, "MODEL_FAILED", "providerOptions.openai must be an object"),
        ({"provider_options": {"openai": {"model": "x"}}}, "MODEL_FAILED", "may not set model"),
        ({"tool_choice": {"type": "tool", "toolName": "x"}}, "MODEL_FAILED", "toolChoice demands 'x'"),
        ({"structured_output": {"schema": {"type": 5}}}, "MODEL_FAILED", "schema of the answer is unusable"),
        ({"structured_output": {"schema": {}, "model": "openai/x"}}, "UNSUPPORTED", "structuredOutput.model"),
    ],
)
async def test_a_setting_of_a_step_that_cannot_be_used_names_who_set_it(system, settings, code, said):
    """D-30; neither who set something else, nor where the agent did."""
    array = [
        processor("a", process_input_step=lambda _: {"provider_options": {"x": {}}, "model_settings": {}}),
        processor("p", process_input_step=lambda _: settings),
        processor("z", process_input_step=lambda _: {"active_tools": ["echo"]}),
    ]
    agent = {"inputProcessors": array, "tools": ["echo"]}
    error = (await system.run({"chunks": ["{}"]}, agent=agent))[0].error
    assert (error.code, error.processor_id, error.hook) == (code, "p", "processInputStep")
    assert said in error.message


async def test_a_setting_of_the_agent_that_cannot_be_used_names_no_processor(system):
    agent = {
        "providerOptions": {"openai": {"model": "x"}},
        "inputProcessors": [processor("p", process_input_step=lambda _: {"tool_choice": "none"})],
    }
    error = (await system.run({"chunks": ["x"]}, agent=agent))[0].error
    assert (error.code, error.processor_id, error.hook) == ("MODEL_FAILED", None, None)


@pytest.mark.parametrize("body", [b"{", b"", b"\xff\xfe", b"[1]", b"null", b'"text"'])
async def test_a_malformed_body_gets_an_answer(ask, body):
    (event,) = await ask(body)
    assert event["result"]["status"] == "failed"
    assert event["result"]["error"]["code"] in {"INVALID_JSON", "INVALID_REQUEST"}


async def test_an_overlong_body_gets_an_answer_under_the_id_that_it_asks_for(ask):
    (event,) = await ask({"runId": "long-one", "input": "x" * 1_100_000, "agent": AGENT})
    assert event["result"]["error"]["code"] == "REQUEST_TOO_LARGE"
    assert "1048576" in event["result"]["error"]["message"]


async def test_the_publisher_finds_its_run_by_its_message_id(ask):
    (event,) = await ask({"input": None}, run="my-message", headers={"Nats-Msg-Id": "my-message"})
    assert (event["runId"], event["result"]["error"]["field"]) == ("my-message", "input")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_is_told_at_once(system, stream):
    options = {"agent": {"inputProcessors": ["nobody-wrote-it"]}, "stream": stream}
    result, chunks = await system.run({"chunks": ["x"]}, **options)
    assert (result.status, result.error.code) == ("failed", "UNKNOWN_COMPONENT")
    assert [chunk["type"] for chunk in chunks] == ["error"] * stream


async def test_a_wrong_control_message_harms_nobody(system, ask):
    gate = system.gate()
    processors = [gate.processor("processInput")]
    handle = await system.start({"chunks": ["fine"]}, agent={"inputProcessors": processors})
    await gate.reached()
    connection = await nats.connect(system.servers.nats_url)
    for body in (
        b"{",
        b'{"type": "explode"}',
        b'{"type": "resume"}',
        b'{"type": "resume", "toolCallId": "c9"}',
    ):
        subject = subjects.control(system.client.tenant, handle.run_id)
        await connection.jetstream().publish(subject, body)
    await connection.close()
    await gate.open()
    result, _ = await finished(handle)
    assert result.text == "fine"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"resource": NaN}', b'{"resource": "\\ud800"}']
)
async def test_a_request_about_threads_that_is_none_is_answered(system, body):
    connection = await nats.connect(system.servers.nats_url)
    subject = subjects.api("memory", system.client.tenant, "threads")
    answer = await connection.request(subject, body, timeout=10)
    assert json.loads(answer.data)["error"]["code"] in ("INVALID_JSON", "INVALID_REQUEST")
    await connection.close()
