from examples.processors.lowercase import Lowercase
from procession.testing import ProcessorKit, check_processor
from tests.unit.examples.vectors import flat, messages_of, vectors


@vectors("lowercase-")
async def test_recorded(vector):
    out = await ProcessorKit(Lowercase).input(messages_of(vector))
    assert flat(out.messages) == vector["expected"]["messages"]


async def test_it_changes_every_message_and_no_system_message():
    kit = ProcessorKit(Lowercase, instructions="Be KIND")
    kit.message_list.add({"role": "user", "content": "OLD"}, "memory")
    out = await kit.input(["NEW"])
    assert out.texts == ["old", "new"]
    assert out.system == [{"role": "system", "content": "Be KIND"}]


async def test_conformance():
    await check_processor(Lowercase)
