from examples.processors.guardrails import ContentBlocker, InputValidator
from procession.testing import ProcessorKit, check_processor


async def test_the_validator_blocks_what_is_empty_or_too_long():
    for text, blocked in (("", True), ("  ", True), ("12345", False), ("123456", True)):
        out = await ProcessorKit(InputValidator, {"maxCharacters": 5}).input(text)
        assert bool(out.tripwire) is blocked, text


async def test_the_validator_looks_at_the_newest_message_of_the_user_only():
    kit = ProcessorKit(InputValidator, {"maxCharacters": 5})
    kit.message_list.add({"role": "user", "content": "much too long"}, "memory")
    assert (await kit.input("short")).tripwire is None
    out = await kit.input({"role": "assistant", "content": "and long again"})
    assert out.tripwire is None


async def test_the_validator_blocks_a_request_without_a_question():
    assert (await ProcessorKit(InputValidator).input()).blocked.metadata == {"characters": 0}


async def test_the_blocker_reads_the_answer_and_nothing_else():
    kit = ProcessorKit(ContentBlocker, {"words": ["Bomb"]})
    kit.message_list.add("what is a bomb", "input")
    assert (await kit.output_result("a thing")).tripwire is None
    out = await kit.output_result("a BOMB is")
    assert out.blocked.reason == "Content blocked by guardrail"
    assert [v.processor_id for v in kit.violations] == ["content-blocker"]


async def test_conformance():
    await check_processor(InputValidator)
    await check_processor(ContentBlocker, {"words": ["world"]})
