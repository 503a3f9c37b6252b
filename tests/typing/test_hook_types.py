"""What a type checker tells authors of processors: right hooks pass, wrong ones are errors."""

import re
import textwrap
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]

RIGHT = """
from procession import *
from pydantic import Field


class Words(Options):
    limit: int = Field(default=1, description="Words.")


class Right(Processor[Words]):
    id = "right"
    on_error = "fail"
    process_data_parts = True

    def process_input(self, args: InputArgs) -> list[Message]:
        return [map_text(message, str.lower) for message in args.messages[: self.options.limit]]

    async def process_input_step(self, args: InputStepArgs) -> InputStepResult:
        return {"model": args.model, "tool_choice": "none", "messages": args.messages}

    def process_llm_request(self, args: LLMRequestArgs) -> LLMRequestResult | None:
        return {"prompt": args.prompt} if args.step_number else None

    async def process_llm_response(self, args: LLMResponseArgs) -> None:
        args.state["chunks"] = len(args.chunks)

    async def process_api_error(self, args: APIErrorArgs) -> APIErrorResult | None:
        return {"retry": args.error.status_code == 500}

    def process_output_stream(self, args: OutputStreamArgs) -> StreamReturn:
        part: Chunk = {**args.part, "payload": {"text": "x"}}
        return [part, args.part] if part["type"] == "text-delta" else None

    async def process_output_step(self, args: OutputStepArgs) -> MessageList:
        if args.text:
            args.abort("no", retry=True, metadata=1)
        return args.message_list

    def process_tool_result(self, args: ToolResultArgs) -> MessagesReturn:
        return args.messages

    async def process_output_result(self, args: OutputResultArgs) -> MessagesReturn:
        await args.writer.custom({"type": "data-x"})
        return None

    async def on_violation(self, violation: Violation) -> None:
        print(violation.processor_id, violation.message, violation.detail)


built: Right = Right.build({"limit": 2})
limit: int = built.options.limit
"""

HEAD = "from procession import *\n\n\nclass Wrong(Processor[Options]):\n    id = 'wrong'\n"
WRONG = {
    "arguments of another hook": "def process_input(self, args: OutputStreamArgs) -> None: ...",
    "loose arguments": "def process_input(self, messages: list[Message], abort: Abort) -> None: ...",
    "wrong return value": "def process_input(self, args: InputArgs) -> int: return 1",
    "wrong awaited value": "async def process_output_stream(self, args: OutputStreamArgs) -> str: return 'x'",
    "a generator": "def process_output_stream(self, args: OutputStreamArgs) -> Iterator[Chunk]: yield args.part",
    "a misspelt key": "def process_input_step(self, args: InputStepArgs) -> InputStepResult: return {'toolChoice': 1}",
    "half an object": "def process_input(self, args: InputArgs) -> InputResult: return {'messages': args.messages}",
    "an argument that is not there": "def process_input(self, args: InputArgs) -> None: args.writer",
    "an argument that may be none": (
        "async def process_input_step(self, args: InputStepArgs) -> None: await args.writer.custom({})"
    ),
    "an unknown policy": "on_error = 'ignore'",
    "a wrong id": "id = 5",
}
UNREACHABLE = """
class Stops(Processor[Options]):
    id = "stops"

    def process_input(self, args: InputArgs) -> list[Message]:
        args.abort("always")
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """The errors of each file, from one run of mypy."""
    folder = tmp_path_factory.mktemp("typing")
    (folder / "right.py").write_text(RIGHT + UNREACHABLE)
    for number, member in enumerate(WRONG.values()):
        code = "from collections.abc import Iterator\n" + HEAD + textwrap.indent(member, "    ") + "\n"
        (folder / f"wrong_{number}.py").write_text(code)
    sources = [str(path) for path in sorted(folder.glob("*.py"))]
    options = [
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(folder / "cache"),
        "--no-error-summary",
    ]
    told, trouble, _ = api.run([*options, *sources])
    assert not trouble
    found: dict[str, list[str]] = {}
    for name, message in re.findall(r"(\w+)\.py:\d+: error: (.*)", told):
        found.setdefault(name, []).append(message)
    return found


@pytest.mark.slow
def test_right_hooks_pass(errors):
    assert errors.get("right", []) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(WRONG)), ids=list(WRONG))
def test_wrong_hooks_are_errors(errors, number):
    assert errors.get(f"wrong_{number}")
