"""Installs the examples: `PYTHONPATH=. PROCESSION_PLUGINS=examples.plugin procession up` from the checkout."""

from typing import Any, Final

from examples.processors.content_filter import ContentFilter, blocked_words_of_request
from examples.processors.dynamic_model import DynamicModel
from examples.processors.error_recovery import ErrorRecovery
from examples.processors.guardrails import ContentBlocker, InputValidator
from examples.processors.lowercase import Lowercase
from examples.processors.moderation_collector import ModerationCollector, ModerationNotice
from examples.processors.prompt_cache import PromptCache
from examples.processors.quality_guardrail import QualityGuardrail
from examples.processors.reasoning_transformer import ReasoningTransformer
from examples.processors.result_trimmer import ResultTrimmer
from examples.processors.word_counter import WordCounter
from procession import Processor, Registry

PROCESSORS: Final[tuple[type[Processor[Any]], ...]] = (
    ContentBlocker,
    ContentFilter,
    DynamicModel,
    ErrorRecovery,
    InputValidator,
    Lowercase,
    ModerationCollector,
    ModerationNotice,
    PromptCache,
    QualityGuardrail,
    ReasoningTransformer,
    ResultTrimmer,
    WordCounter,
)


def register(registry: Registry) -> None:
    """Called once by every service, before it takes work."""
    for processor in PROCESSORS:
        registry.add_processor(processor)
    registry.factories["blocked-words"] = blocked_words_of_request
