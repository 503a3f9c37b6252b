"""The SDK of Procession: what authors of processors and tools, and clients, import.

    from procession import Options, Processor, InputArgs        # write a processor
    from procession import Procession                           # talk to a running system

The client is loaded on first use, so that a processor does not pull in a broker's library.
"""

import importlib
from typing import TYPE_CHECKING, Any

from procession.args import (
    Abort,
    AbortSignal,
    APIError,
    APIErrorArgs,
    APIErrorResult,
    HookArgs,
    InputArgs,
    InputResult,
    InputReturn,
    InputStepArgs,
    InputStepResult,
    InputStepReturn,
    LLMRequestArgs,
    LLMRequestResult,
    LLMResponseArgs,
    MessagesReturn,
    ModelInfo,
    OutputResult,
    OutputResultArgs,
    OutputStepArgs,
    OutputStreamArgs,
    RequestContext,
    State,
    StreamReturn,
    ToolResultArgs,
    Violation,
    Writer,
)
from procession.errors import (
    BrokenComponentError,
    InvalidOptionsError,
    PluginError,
    ProcessionError,
    ProcessorError,
    TripWire,
    UnknownComponentError,
)
from procession.hold_back import (
    HoldOverflowError,
    Match,
    Scan,
    ScanError,
    Scanner,
    StreamMode,
    TextHold,
    hold_flush,
    hold_stream,
)
from procession.message_list import MessageList
from procession.messages import map_text, text_of
from procession.parts import InvalidMessageError
from procession.processor import Hook, Options, Processor
from procession.registry import Registry
from procession.scanners import RegexRule, RegexScanner, WordScanner
from procession.services import ModelAnswer, ModelCallError, ModelRequest, Services
from procession.signals import InvalidSignalError, Signal
from procession.state_signals import SentState, StateSignal, StateSignalArgs, StateSignalProcessor
from procession.tools import Tool, ToolContext, tool
from procession_schemas.agent import Agent, ModelEntry, ProcessorRef, StructuredOutput, ToolRef
from procession_schemas.chunks import Chunk
from procession_schemas.memory import MemoryConfig
from procession_schemas.messages import Message, Part, StepResult, SystemMessage
from procession_schemas.run import Failure, RunRequest, RunResult, Tripwire

if TYPE_CHECKING:
    from procession.client import (
        ChunksLostError,
        NotAcceptedError,
        NotConnectedError,
        NotWaitingError,
        Procession,
        RequestTooLargeError,
        ResumeDataError,
        RunConflictError,
        RunFailedError,
        RunHandle,
        UnknownRunError,
    )

__all__ = [
    "APIError",
    "APIErrorArgs",
    "APIErrorResult",
    "Abort",
    "AbortSignal",
    "Agent",
    "BrokenComponentError",
    "Chunk",
    "ChunksLostError",
    "Failure",
    "HoldOverflowError",
    "Hook",
    "HookArgs",
    "InputArgs",
    "InputResult",
    "InputReturn",
    "InputStepArgs",
    "InputStepResult",
    "InputStepReturn",
    "InvalidMessageError",
    "InvalidOptionsError",
    "InvalidSignalError",
    "LLMRequestArgs",
    "LLMRequestResult",
    "LLMResponseArgs",
    "Match",
    "MemoryConfig",
    "Message",
    "MessageList",
    "MessagesReturn",
    "ModelAnswer",
    "ModelCallError",
    "ModelEntry",
    "ModelInfo",
    "ModelRequest",
    "NotAcceptedError",
    "NotConnectedError",
    "NotWaitingError",
    "Options",
    "OutputResult",
    "OutputResultArgs",
    "OutputStepArgs",
    "OutputStreamArgs",
    "Part",
    "PluginError",
    "Procession",
    "ProcessionError",
    "Processor",
    "ProcessorError",
    "ProcessorRef",
    "RegexRule",
    "RegexScanner",
    "Registry",
    "RequestContext",
    "RequestTooLargeError",
    "ResumeDataError",
    "RunConflictError",
    "RunFailedError",
    "RunHandle",
    "RunRequest",
    "RunResult",
    "Scan",
    "ScanError",
    "Scanner",
    "SentState",
    "Services",
    "Signal",
    "State",
    "StateSignal",
    "StateSignalArgs",
    "StateSignalProcessor",
    "StepResult",
    "StreamMode",
    "StreamReturn",
    "StructuredOutput",
    "SystemMessage",
    "TextHold",
    "Tool",
    "ToolContext",
    "ToolRef",
    "ToolResultArgs",
    "TripWire",
    "Tripwire",
    "UnknownComponentError",
    "UnknownRunError",
    "Violation",
    "WordScanner",
    "Writer",
    "hold_flush",
    "hold_stream",
    "map_text",
    "text_of",
    "tool",
]

_CLIENT = frozenset(
    {
        "ChunksLostError", "NotAcceptedError", "NotConnectedError", "NotWaitingError", "Procession",
        "RequestTooLargeError", "ResumeDataError", "RunConflictError", "RunFailedError", "RunHandle", "UnknownRunError",
    }
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _CLIENT:
        return getattr(importlib.import_module("procession.client"), name)
    raise AttributeError(f"module 'procession' has no attribute {name!r}")
