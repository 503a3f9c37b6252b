"""Checks the rules that every processor has to follow, whatever it does."""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from procession.errors import ProcessorError
from procession.processor import METHODS, Hook, Options, Processor, misshapen, overridden
from procession.testing.kit import ProcessorKit

SAMPLES: Final = ("Hello, world.", "Grüße an alle: 3 < 5, 1 000 €.\n\nBye 👋", "")
_ID: Final = re.compile(r"([a-z][a-z0-9-]*/)?[a-z][a-z0-9]*(-[a-z0-9]+)*")
_NOT_HOOKS: Final = frozenset({*METHODS.values(), "process_data_parts", "processor_index"})


class ConformanceError(AssertionError):
    """A processor breaks the contract; `problems` lists everything."""

    def __init__(self, processor: str, problems: Sequence[str]) -> None:
        super().__init__("\n".join([f"{processor}:", *(f"- {problem}" for problem in problems)]))
        self.problems = list(problems)


async def check_processor(
    processor: type[Processor[Any]],
    options: Mapping[str, Any] | None = None,
    *,
    samples: Sequence[str] = SAMPLES,
    chunk_safe: bool = False,
) -> None:
    """Checks a processor class with these options; a tripwire is an answer like any other.

    Checked are: the id; that the options model refuses what it does not know, is frozen, and describes each option;
    that there are hooks, with the right names and arguments; that each hook runs and returns what it may; that the
    state is JSON after each; and that a second run of the same instance does what the first did.

    Args:
        processor: The class.
        options: Options to make it with.
        samples: Texts that it is tried with, as question and as answer.
        chunk_safe: Also check that an answer comes out alike in one piece and one character at a time.

    Raises:
        ConformanceError: Something is wrong; the message says what.
        InvalidOptionsError: The options do not fit.
        BrokenComponentError: It cannot be asked for its hooks, or names something that is not a hook.
    """
    problems = [*_named(processor), *_options(processor.options_type()), *_hooks(processor)]
    built = processor.build(dict(options or {}))
    hooks = processor.traits(dict(options or {})).hooks
    for sample in samples:
        problems += await _driven(built, hooks, sample)
        problems += await _repeated(built, hooks, sample)
        if chunk_safe and Hook.OUTPUT_STREAM in hooks:
            problems += await _cut(built, sample)
    if problems:
        raise ConformanceError(processor.__name__, list(dict.fromkeys(problems)))


def _named(processor: type[Processor[Any]]) -> Iterator[str]:
    name = getattr(processor, "id", None)
    if not isinstance(name, str) or not _ID.fullmatch(name):
        yield f"id is {name!r}; an id must be lower case with hyphens, such as 'word-counter'"


def _options(model: type[Options]) -> Iterator[str]:
    if model.model_config.get("extra") != "forbid":
        yield f'{model.__name__} accepts unknown options; keep extra="forbid"'
    if not model.model_config.get("frozen"):
        yield f"{model.__name__} can be changed; keep frozen=True, since one instance serves many runs"
    for name, field in model.model_fields.items():
        if not field.description:
            yield f"option {name} has no description; give it Field(description=...)"


def _hooks(processor: type[Processor[Any]]) -> Iterator[str]:
    if not processor.traits({}).hooks:
        yield "it has no hook; override one of " + ", ".join(METHODS.values())
    for name, _ in inspect.getmembers(processor, inspect.isfunction):
        if name.startswith("process") and name not in _NOT_HOOKS:
            near = get_close_matches(name, METHODS.values(), n=1, cutoff=0.5)
            yield f"{name} is not a hook and never runs" + (f"; did you mean {near[0]}?" if near else "")
    yield from misshapen(processor, overridden(processor))


async def _driven(processor: Processor[Any], hooks: frozenset[Hook], sample: str) -> list[str]:
    """Runs every hook once, in the order of a run."""
    kit = ProcessorKit(processor)
    kit.message_list.add(sample, "input")
    steps: dict[Hook, Callable[[], Awaitable[Any]]] = {
        Hook.INPUT: kit.input,
        Hook.INPUT_STEP: kit.input_step,
        Hook.LLM_REQUEST: kit.llm_request,
        Hook.API_ERROR: kit.api_error,
        Hook.OUTPUT_STREAM: lambda: kit.stream([sample]),
        Hook.LLM_RESPONSE: lambda: kit.llm_response([sample]),
        Hook.OUTPUT_STEP: lambda: kit.output_step(sample),
        Hook.TOOL_RESULT: lambda: kit.tool_result("lookup", {"text": sample}),
        Hook.OUTPUT_RESULT: lambda: kit.output_result(sample),
    }
    problems = []
    for hook, step in steps.items():
        if hook in hooks:
            try:
                await step()
            except ProcessorError as error:
                problems.append(f"{METHODS[hook]} fails ({error.name}): {error}")
    return problems


async def _repeated(processor: Processor[Any], hooks: frozenset[Hook], sample: str) -> list[str]:
    """Runs the same request twice; what was kept on the instance shows in the second."""
    if Hook.OUTPUT_STREAM not in hooks:
        return []
    first, second = [await _answer(processor, [sample]) for _ in range(2)]
    if first == second:
        return []
    return [f"a second run gives {second!r} instead of {first!r}; keep state in args.state, not on self"]


async def _cut(processor: Processor[Any], sample: str) -> list[str]:
    """Streams an answer in one piece and in many."""
    whole, cut = await _answer(processor, [sample]), await _answer(processor, list(sample))
    if whole == cut:
        return []
    return [f"{sample!r} becomes {cut!r} when it comes one character at a time, and {whole!r} in one piece"]


async def _answer(processor: Processor[Any], texts: Sequence[str]) -> str:
    """The text of an answer, or why it was blocked."""
    try:
        outcome = await ProcessorKit(processor).stream(texts)
    except ProcessorError as error:
        return f"{error.name}: {error}"
    return f"blocked: {outcome.tripwire.reason}" if outcome.tripwire else outcome.text
