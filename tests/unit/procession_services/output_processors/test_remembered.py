import asyncio

import pytest
from redis.exceptions import RedisError

from procession.services import ModelAnswer, ModelCallError, ModelRequest
from procession.testing import DictStore, ScriptedModels
from procession_services.output_processors import remembered
from procession_services.output_processors.remembered import RememberedModels


def request(text: str = "Is it fine?", **more) -> ModelRequest:
    return ModelRequest(model="openai/judge", prompt=[{"role": "user", "content": text}], **more)


async def ask(models: RememberedModels, *requests: ModelRequest) -> list[str]:
    return [(await models.generate(each, tenant="t")).text for each in requests]


async def test_a_stream_that_has_moved_has_the_answers_of_before():
    store, models = DictStore(), ScriptedModels(["yes", "no", "perhaps"])
    first = RememberedModels(models, store, "s1", moved=False)
    assert await ask(first, request("a"), request("b")) == ["yes", "no"]
    next_ = RememberedModels(models, store, "s1", moved=True)
    assert await ask(next_, request("a"), request("b"), request("c")) == ["yes", "no", "perhaps"]
    assert [each.prompt[0]["content"] for each in models.requests] == ["a", "b", "c"]


async def test_the_whole_answer_is_kept():
    answer = ModelAnswer(
        text="{}", finish_reason="length", usage={"totalTokens": 3}, cost=0.5, chunks=[{"type": "text-delta"}]
    )
    store = DictStore()
    await RememberedModels(ScriptedModels([answer]), store, "s1", moved=False).generate(request(), tenant="t")
    moved = RememberedModels(ScriptedModels(), store, "s1", moved=True)
    assert await moved.generate(request(), tenant="t") == answer


async def test_equal_questions_are_told_apart_by_their_order():
    store, models = DictStore(), ScriptedModels(["1", "2", "3"])
    assert await ask(RememberedModels(models, store, "s1", moved=False), *[request()] * 2) == ["1", "2"]
    assert await ask(RememberedModels(models, store, "s1", moved=True), *[request()] * 3) == ["1", "2", "3"]


@pytest.mark.parametrize(
    "other",
    [
        request(schema={"type": "object"}),
        request(model_settings={"temperature": 0}),
        request(provider_options={"openai": {}}),
        request(json_prompt_injection=True),
        request("Another text\ud800"),
    ],
)
async def test_other_questions_are_asked(other):
    store, models = DictStore(), ScriptedModels(["1", "2"])
    await ask(RememberedModels(models, store, "s1", moved=False), request())
    assert await ask(RememberedModels(models, store, "s1", moved=True), other) == ["2"]


async def test_the_time_that_an_answer_may_take_makes_no_other_question():
    store, models = DictStore(), ScriptedModels(["1", "2"])
    await ask(RememberedModels(models, store, "s1", moved=False), request(timeout=3))
    assert await ask(RememberedModels(models, store, "s1", moved=True), request(timeout=2)) == ["1"]


async def test_a_failure_stays_one():
    store, models = DictStore(), ScriptedModels([ModelCallError("overloaded"), "yes"])
    for moved in (False, True):
        with pytest.raises(ModelCallError, match="overloaded"):
            await ask(RememberedModels(models, store, "s1", moved=moved), request())
    assert len(models.requests) == 1


async def test_streams_have_answers_of_their_own():
    store, models = DictStore(), ScriptedModels(["1", "2", "3"])
    assert await ask(RememberedModels(models, store, "s1", moved=False), request()) == ["1"]
    assert await ask(RememberedModels(models, store, "s2", moved=True), request()) == ["2"]


async def test_of_two_replicas_that_have_asked_both_take_the_answer_that_was_first():
    store = DictStore()
    old = RememberedModels(ScriptedModels(["old"]), store, "s1", moved=False)
    new = RememberedModels(ScriptedModels(["new"]), store, "s1", moved=True)
    assert await ask(new, request()) == ["new"]
    assert await ask(old, request()) == ["new"]


class Away(DictStore):
    async def get(self, key):
        raise RedisError(key)

    async def put(self, key, value, **_how):
        raise RedisError(key)


class Silent(DictStore):
    async def put(self, key, value, **_how):
        await asyncio.Event().wait()


async def test_without_redis_the_model_is_asked():
    models = ScriptedModels(["1", "2"])
    assert await ask(RememberedModels(models, Away(), "s1", moved=False), request()) == ["1"]
    assert await ask(RememberedModels(models, Away(), "s1", moved=True), request()) == ["2"]


async def test_a_redis_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(remembered, "_PATIENCE_SECONDS", 0.01)
    models = RememberedModels(ScriptedModels(["1"]), Silent(), "s1", moved=False)
    assert await ask(models, request()) == ["1"]
