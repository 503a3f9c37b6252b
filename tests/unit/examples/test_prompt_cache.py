from examples.processors.prompt_cache import PromptCache
from procession.testing import ProcessorKit, check_processor


async def ask(cache, question):
    """A run: what answered it, and the kit."""
    kit = ProcessorKit(cache)
    kit.message_list.add({"id": "q", "role": "user", "content": question}, "input")
    asked = await kit.llm_request()
    if asked.response:
        await kit.llm_response(asked.response["chunks"], from_cache=True)
    else:
        await kit.llm_response([f"answer to {question}"])
    return asked.response, kit


def text(response):
    return "".join(c["payload"]["text"] for c in response["chunks"] if c["type"] == "text-delta")


async def test_the_same_prompt_is_answered_once():
    cache = PromptCache.build()
    assert (await ask(cache, "one"))[0] is None
    assert (await ask(cache, "two"))[0] is None
    response, kit = await ask(cache, "one")
    assert text(response) == "answer to one"
    assert kit.messages[-1]["content"]["parts"] == [{"type": "text", "text": "answer to one"}]


async def test_a_replay_is_not_stored_again_and_old_answers_go():
    cache = PromptCache.build({"entries": 1})
    await ask(cache, "one")
    await ask(cache, "one")
    await ask(cache, "two")
    assert (await ask(cache, "one"))[0] is None


async def test_conformance():
    await check_processor(PromptCache)
