"""Settings of a model call count in either spelling."""

from typing import Any

import pytest
from pydantic import ValidationError
from pydantic.alias_generators import to_snake

from procession_schemas.agent import Agent
from procession_schemas.model_settings import SETTINGS, setting_of
from procession_schemas.run import RunRequest
from procession_schemas.validation import explained, misfit
from procession_schemas.work import StepConfig
from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.request import litellm_kwargs
from tests.support.cost import seconds

SNAKE: dict[str, Any] = {
    "max_output_tokens": 5,
    "top_p": 0.5,
    "stop_sequences": ["x"],
    "max_retries": 2,
    "timeout": {"total_ms": 3, "first_chunk_ms": 1},
}
CAMEL: dict[str, Any] = {
    "maxOutputTokens": 5,
    "topP": 0.5,
    "stopSequences": ["x"],
    "maxRetries": 2,
    "timeout": {"totalMs": 3, "firstChunkMs": 1},
}

LIMITS = "totalMs, stepMs, firstChunkMs, chunkMs"


def test_both_spellings_are_one_wherever_settings_stand() -> None:
    assert RunRequest.model_validate({"input": "Hi", "model_settings": SNAKE}).model_settings == CAMEL
    entries = [{"model": "m/x", "modelSettings": SNAKE}]
    agent = Agent.model_validate({"name": "a", "model": entries, "modelSettings": SNAKE})
    assert isinstance(agent.model, list)
    assert agent.model_settings == agent.model[0].model_settings == CAMEL
    assert StepConfig.checked({"model": "m/x", "modelSettings": SNAKE}).model_settings == CAMEL


@pytest.mark.parametrize(
    ("settings", "path", "told"),
    [
        ({"temperatur": 1}, "temperatur", "unknown setting, which is not sent; did you mean 'temperature'?"),
        (
            {"max_tokens": 1},
            "max_tokens",
            "unknown setting, which is not sent; did you mean 'maxOutputTokens'?",
        ),
        (
            {"reasoning_effort": "low"},
            "reasoning_effort",
            "unknown setting, which is not sent; an option of one provider belongs in `providerOptions`",
        ),
        (
            {"timeout": {"total": 5}},
            "timeout.total",
            f"unknown limit; known: {LIMITS}",
        ),
    ],
)
def test_a_request_with_a_setting_that_there_is_not_is_refused_wherever_it_stands(
    settings: dict[str, Any], path: str, told: str
) -> None:
    entries = [{"model": "m/x"}, {"model": "m/y", "modelSettings": settings}]
    bodies: dict[str, dict[str, Any]] = {
        "modelSettings": {"modelSettings": settings},
        "model.1.modelSettings": {"model": entries},
        "agent.modelSettings": {"agent": {"name": "a", "modelSettings": settings}},
        "agent.model.1.modelSettings": {"agent": {"name": "a", "model": entries}},
    }
    for place, fields in bodies.items():
        body = {"input": "Hi", **fields}
        with pytest.raises(ValidationError) as raised:
            RunRequest.model_validate(body)
        failure = misfit(raised.value, body=body)
        assert (failure.field, failure.message) == (f"{place}.{path}", f"{place}.{path}: {told}")
        assert told in str(explained(raised.value))


def test_an_unknown_setting_is_told_where_its_sender_has_written_it() -> None:
    body = {"input": "Hi", "model_settings": {"temperatur": 1}}
    with pytest.raises(ValidationError) as raised:
        RunRequest.model_validate(body)
    assert misfit(raised.value, body=body).field == "model_settings.temperatur"


def test_a_request_with_very_many_unknown_settings_is_judged_soon() -> None:
    settings = {f"temperatur{number}": 1 for number in range(50_000)} | {"x" * 900_000: 1}

    def judged() -> None:
        with pytest.raises(ValidationError) as raised:
            RunRequest.model_validate({"input": "Hi", "modelSettings": settings})
        assert misfit(raised.value).message.endswith("; and more")

    assert seconds(judged) < 0.5


@pytest.mark.parametrize("headers", [5, "x", ["x"], {"x": 5}, {"x y": "z"}, {"x": "y\n"}])
def test_headers_that_are_none_are_told(headers: Any) -> None:
    with pytest.raises(ValidationError, match="`headers` must be an object of strings"):
        RunRequest.model_validate({"input": "Hi", "modelSettings": {"headers": headers}})
    for good in (None, {}, {"x": "y"}):
        RunRequest.model_validate({"input": "Hi", "modelSettings": {"headers": good}})


@pytest.mark.parametrize(
    ("name", "good", "bad", "told"),
    [
        ("temperature", [0, 0.5, None], ["hot", True, [1], {}], "`temperature` must be a number"),
        ("topP", [1, 0.9], ["1"], "`topP` must be a number"),
        ("maxOutputTokens", [5, None], ["5", 5.5, False], "`maxOutputTokens` must be a whole number"),
        ("seed", [-1, 0], ["x"], "`seed` must be a whole number"),
        (
            "stopSequences",
            [["a", "b"], [], "a"],
            [5, [5], {"a": 1}],
            "`stopSequences` must be an array of strings",
        ),
        (
            "timeout",
            [500, 0, 1.5, {}, {"totalMs": 9, "chunkMs": None}],
            ["nope", -1, True, [5], {"totalMs": "9"}, {"chunkMs": -1}],
            "`timeout` must be a number of milliseconds, or an object of such numbers: " + LIMITS,
        ),
    ],
)
def test_a_value_that_cannot_be_meant_is_told_wherever_it_stands(
    name: str, good: list[Any], bad: list[Any], told: str
) -> None:
    for value in good:
        RunRequest.model_validate({"input": "Hi", "modelSettings": {name: value}})
    for value in bad:
        settings = {to_snake(name): value}
        with pytest.raises(ValidationError) as raised:
            RunRequest.model_validate({"input": "Hi", "modelSettings": settings})
        assert misfit(raised.value).message == f"modelSettings: {told}"
        for fields in ({"modelSettings": settings}, {"model": [{"model": "m/x", "modelSettings": settings}]}):
            with pytest.raises(ValidationError, match=name):
                Agent.model_validate({"name": "a", **fields})
        with pytest.raises(ValidationError, match=name):
            StepConfig.checked({"model": "m/x", "modelSettings": settings})


def test_all_values_that_cannot_be_meant_are_told_at_once() -> None:
    with pytest.raises(ValidationError) as raised:
        RunRequest.model_validate({"input": "Hi", "modelSettings": {"temperature": "hot", "timeout": "nope"}})
    assert "`temperature`" in misfit(raised.value).message
    assert "`timeout`" in misfit(raised.value).message


def test_what_providers_call_a_setting_is_known() -> None:
    assert [setting_of(name) for name in ("max_tokens", "stop", "topK", "top_k", "foo")] == [
        *("maxOutputTokens", "stopSequences", "topK", "topK"),
        None,
    ]


def test_every_setting_is_read() -> None:
    values = {**dict.fromkeys(SETTINGS, 1), "headers": {"x": "y"}}
    sent = litellm_kwargs(ModelCall(model="anthropic/x", prompt=[], model_settings=values))
    plain = litellm_kwargs(ModelCall(model="anthropic/x", prompt=[]))
    runtime = {"maxRetries", "timeout"}
    assert len(sent.keys() - plain.keys()) == len(set(SETTINGS) - runtime)
