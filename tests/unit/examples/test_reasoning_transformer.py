from examples.processors.reasoning_transformer import ReasoningTransformer
from procession.testing import ProcessorKit, check_processor
from tests.unit.examples.vectors import vectors


def answer(*kinds):
    return {
        "role": "assistant",
        "content": {"format": 2, "parts": [{"type": k, "text": k, k: k} for k in kinds]},
    }


@vectors("reasoning-transformer")
async def test_recorded(vector):
    kit = ProcessorKit(ReasoningTransformer)
    kit.message_list.add(answer(*vector["input"]["parts"]), "memory")
    out = await kit.input_step()
    assert [p["type"] for p in out.messages[0]["content"]["parts"]] == vector["expected"]["partTypes"]


async def test_only_the_assistant_reasons():
    kit = ProcessorKit(ReasoningTransformer, {"partType": "inner"})
    kit.message_list.add({**answer("reasoning"), "role": "user"}, "input")
    kit.message_list.add(answer("reasoning"), "memory")
    out = await kit.input_step()
    assert [m["content"]["parts"][0]["type"] for m in out.messages] == ["reasoning", "inner"]


async def test_conformance():
    await check_processor(ReasoningTransformer)
