"""When a provider refuses to go on from its own turn, a reminder is added and the step is tried again."""

import pytest

from procession import signals
from procession.testing import ProcessorKit, check_processor
from procession_services.processors.prefill_error_handler import PrefillErrorHandler

REFUSAL = "This model does not support assistant message prefill. End with a user message."


async def refused(message, retries=0, **error):
    kit = ProcessorKit(PrefillErrorHandler)
    kit.message_list.add(
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}], "input"
    )
    kit.context.retry_count = retries
    return kit, await kit.api_error(message, **error)


async def test_the_retried_step_ends_with_a_turn_of_the_user():
    kit, out = await refused(REFUSAL)
    assert out.retry
    assert out.messages[-1]["role"] == signals.ROLE
    last = kit.prompt()[-1]
    assert last["role"] == "user"
    assert last["content"][0]["text"].endswith(">continue</system-reminder>")


async def test_the_client_is_told_of_the_reminder():
    _, out = await refused(REFUSAL)
    (chunk,) = out.written
    assert (chunk["type"], chunk["transient"], chunk["data"]["contents"]) == ("data-signal", True, "continue")


async def test_the_body_of_a_refused_request_counts_too():
    _, out = await refused("Bad Request", response_body=f'{{"error": {{"message": "{REFUSAL.upper()}"}}}}')
    assert out.retry


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("rate limited", {}),
        ("broken", {"name": "StreamError", "response_body": REFUSAL}),
        (REFUSAL, {"retries": 1}),
        ("assistant response prefill is incompatible with enable  thinking", {}),
    ],
)
async def test_other_errors_and_later_failures_are_left_alone(message, fields):
    _, out = await refused(message, **fields)
    assert not out.retry
    assert [m["role"] for m in out.messages] == ["user", "assistant"]


async def test_conformance():
    await check_processor(PrefillErrorHandler)
