import pytest

from examples.processors.result_trimmer import ResultTrimmer
from procession.testing import ProcessorKit, check_processor


@pytest.mark.parametrize(
    ("result", "kept"),
    [("12345", "12345"), ("123456", "12345…"), ({"long": "123456"}, {"long": "123456"}), (7, 7)],
)
async def test_only_long_texts_are_cut(result, kept):
    kit = ProcessorKit(ResultTrimmer, {"limit": 5})
    out = await kit.tool_result("lookup", result)
    assert out.result == kept
    [part] = out.messages[-1]["content"]["parts"]
    assert part["toolInvocation"]["state"] == "result"
    assert part["toolInvocation"]["result"] == kept


async def test_conformance():
    await check_processor(ResultTrimmer)
