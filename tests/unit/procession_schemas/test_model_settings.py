"""Settings of a model call count in either spelling."""

from typing import Any

import pytest
from pydantic import ValidationError

from procession_schemas.agent import Agent
from procession_schemas.model_settings import SETTINGS, setting_of
from procession_schemas.run import RunRequest
from procession_schemas.work import StepConfig
from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.request import litellm_kwargs

SNAKE: dict[str, Any] = {
    "max_output_tokens": 5,
    "top_p": 0.5,
    "stop_sequences": ["x"],
    "max_retries": 2,
    "timeout": {"total_ms": 3, "first_chunk_ms": 1},
    "more": 1,
}
CAMEL: dict[str, Any] = {
    "maxOutputTokens": 5,
    "topP": 0.5,
    "stopSequences": ["x"],
    "maxRetries": 2,
    "timeout": {"totalMs": 3, "firstChunkMs": 1},
    "more": 1,
}


def test_both_spellings_are_one_wherever_settings_stand() -> None:
    assert RunRequest.model_validate({"input": "Hi", "model_settings": SNAKE}).model_settings == CAMEL
    entries = [{"model": "m/x", "modelSettings": SNAKE}]
    agent = Agent.model_validate({"name": "a", "model": entries, "modelSettings": SNAKE})
    assert isinstance(agent.model, list)
    assert agent.model_settings == agent.model[0].model_settings == CAMEL
    assert StepConfig.model_validate({"model": "m/x", "modelSettings": SNAKE}).model_settings == CAMEL


@pytest.mark.parametrize("headers", [5, "x", ["x"], {"x": 5}])
def test_headers_that_are_none_are_told(headers: Any) -> None:
    with pytest.raises(ValidationError, match="`headers` is an object of texts"):
        RunRequest.model_validate({"input": "Hi", "modelSettings": {"headers": headers}})
    for good in (None, {}, {"x": "y"}):
        RunRequest.model_validate({"input": "Hi", "modelSettings": {"headers": good}})


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
