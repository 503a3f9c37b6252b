"""What `from procession import ...` offers: other people's code depends on it."""

import subprocess
import sys

import pytest

import procession

CLIENT = {
    "ChunksLostError", "NotAcceptedError", "NotConnectedError", "NotWaitingError", "Procession",
    "RequestTooLargeError", "ResumeDataError", "RunConflictError", "RunFailedError", "RunHandle", "UnknownRunError",
}  # fmt: skip
PUBLIC = CLIENT | {
    "Abort", "AbortSignal", "Agent", "APIError", "APIErrorArgs", "APIErrorResult", "BrokenComponentError",
    "Chunk", "Failure",
    "hold_flush", "hold_stream", "HoldOverflowError", "Hook", "HookArgs", "InputArgs", "InputResult",
    "InputReturn", "InputStepArgs", "InputStepResult", "InputStepReturn", "InvalidMessageError",
    "InvalidOptionsError", "InvalidSignalError", "LLMRequestArgs", "LLMRequestResult", "LLMResponseArgs",
    "map_text", "Match", "MemoryConfig", "Message", "MessageList", "MessagesReturn", "ModelAnswer",
    "ModelCallError", "ModelEntry", "ModelInfo", "ModelRequest", "Options", "OutputResult",
    "OutputResultArgs", "OutputStepArgs", "OutputStreamArgs", "Part", "PluginError", "ProcessionError", "Processor",
    "ProcessorError", "ProcessorRef", "RegexRule", "RegexScanner", "Registry", "RequestContext",
    "RunRequest", "RunResult", "Scan", "ScanError", "Scanner", "SentState", "Services", "Signal", "State",
    "StateSignal", "StateSignalArgs", "StateSignalProcessor", "StepResult", "StreamMode", "StreamReturn",
    "StructuredOutput", "SystemMessage", "text_of", "TextHold", "Tool", "tool", "ToolContext", "ToolRef",
    "ToolResultArgs", "TripWire", "Tripwire", "UnknownComponentError", "Violation", "WordScanner", "Writer",
}  # fmt: skip


def test_the_public_names_are_these():
    assert set(procession.__all__) == PUBLIC
    assert procession.__all__ == sorted(procession.__all__)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_each_name_is_there(name):
    assert getattr(procession, name) is not None


def test_another_name_is_not():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        procession.Nonsense  # noqa: B018


def test_a_processor_does_not_pull_in_the_broker():
    code = "import sys, procession, procession.testing; sys.exit('nats' in sys.modules or 'litellm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
