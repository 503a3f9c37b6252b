from examples.processors.error_recovery import ErrorRecovery
from procession import APIErrorArgs, Options, Processor
from procession.testing import ProcessorKit, check_processor
from tests.unit.examples.vectors import vectors


async def failed(count, retries=0, **error):
    kit = ProcessorKit(ErrorRecovery)
    roles = ("user", "assistant")
    kit.message_list.add(
        [{"id": f"m{i}", "role": roles[i % 2], "content": f"{i}"} for i in range(count)], "input"
    )
    kit.context.retry_count = retries
    return await kit.api_error(**error)


@vectors("error-recovery")
async def test_recorded(vector):
    given = vector["input"]
    error = {"message": given["error"]["message"], "name": given["error"]["kind"]}
    out = await failed(given["messageCount"], given["retryCount"], **error)
    assert out.retry == vector["expected"]["retry"]
    assert [m["id"] for m in out.messages] == vector["expected"]["remaining"]


async def test_a_short_conversation_and_another_error_are_left_alone():
    assert not (await failed(4, message="context length exceeded")).retry
    assert not (await failed(6, message="overloaded")).retry


def handler(name, retries=False, raises=False):
    class Handler(Processor[Options]):
        """One of several error processors."""

        id = name

        def process_api_error(self, args: APIErrorArgs):
            args.state["ran"] = True
            if raises:
                raise ValueError(name)
            return {"retry": True} if retries else None

    return Handler


@vectors("error-chain")
async def test_recorded_chain(vector):
    array = [handler("a"), handler("b", raises=True), handler("c", retries=True), handler("d", retries=True)]
    kit = ProcessorKit(array[0], then=array[1:])
    out = await kit.api_error()
    assert [name for name in "abcd" if kit.context.state(name).get("ran")] == vector["expected"]["ran"]
    assert {"retry": out.retry} == vector["expected"]["result"]


async def test_conformance():
    await check_processor(ErrorRecovery)
