"""`structured-output`: a second model turns the answer into an object (builtins.md 26).

One model call for each finished answer, none while it streams. The answer's text reaches the client as it is; the
object comes before `finish`, in the run's result too.
"""

from typing import Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from procession.args import HookArgs, OutputStepArgs, OutputStreamArgs
from procession.errors import ProcessorError
from procession.processor import Hook, Options, Processor
from procession.prompt import to_prompt
from procession.services import ModelAnswer, ModelCallError, ModelRequest, object_of
from procession.structured import ObjectStream, schema_problem
from procession_schemas.chunks import Chunk
from procession_schemas.memory import MEMORY_KEY
from procession_services.processors.core.own_state import own_by_options
from procession_services.processors.core.structuring import current_answer, questions, system_prompt

_ID: Final = "structured-output"
_TIMEOUT: Final = 60.0
_PARTIALS: Final = 16
"""Partial objects of one answer: they come together, so that more of them would show nothing."""


class StructuredOutputOptions(Options):
    """Options of `structured-output`."""

    schema_: dict[str, Any] = Field(alias="schema", description="JSON Schema of the object.")
    model: str = Field(min_length=1, description="`provider/name` of the model that makes the object.")
    error_strategy: Literal["strict", "warn", "fallback"] = Field(
        default="strict",
        description="When no fitting object comes: ask the agent's model again, go on without, or `fallbackValue`.",
    )
    fallback_value: Any = Field(
        default=None, description="The object in that case; without it the run fails."
    )
    instructions: str | None = Field(default=None, description="System prompt in place of the generated one.")
    json_prompt_injection: bool = Field(
        default=False, description="Put the schema into the prompt, for models without a response format."
    )
    provider_options: dict[str, Any] = Field(default_factory=dict, description="For the model, by provider.")
    use_agent: bool = Field(
        default=False,
        description="In a thread: show the model the whole conversation, not the answer alone (D-65).",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        for name in ("schema", "model"):
            if isinstance(given, dict) and given.get(name, given.get(f"{name}_")) is None:
                code = f"STRUCTURED_OUTPUT_PROCESSOR_{name.upper()}_REQUIRED"
                raise ValueError(f"{code}: `{name}` is required")
        return given

    @field_validator("schema_")
    @classmethod
    def _valid(cls, schema: dict[str, Any]) -> dict[str, Any]:
        if problem := schema_problem(schema):
            place, told = problem
            raise ValueError(f"{'.'.join(place)} {told}".strip())
        return schema


class StructuredOutput(Processor[StructuredOutputOptions]):
    """Asks the model at `finish`, once for each attempt (R-SO-1); judges in the output step (R-SO-5)."""

    id = _ID
    name = "Structured Output"
    description = "Has a second model turn the answer into an object."
    on_error = "fail"

    async def process_output_stream(self, args: OutputStreamArgs) -> Chunk | list[Chunk]:
        """Puts the object's chunks in front of `finish`; every other chunk passes."""
        chunk = args.part
        if chunk["type"] != "finish":
            return chunk
        answer = current_answer(args.stream_parts)
        if answer.structured:
            return chunk
        self._kept(args).pop("failure", None)
        made = await self._structure(args, questions(answer))
        for each in made:
            each["metadata"] = {"from": _ID, **each.get("metadata", {})}
        return [*made, chunk]

    async def _structure(self, args: OutputStreamArgs, question: str) -> list[Chunk]:
        """The `object` chunks and, if all went well, the `object-result`."""
        made: list[Chunk] = []
        try:
            answer = await args.services.generate(self._request(args, question))
            made += _partials(answer)
            value = object_of(answer, self.options.schema_)
        except ModelCallError as error:
            return made + self._failed(args, str(error))
        return [*made, {"type": "object-result", "object": value}]

    def _failed(self, args: OutputStreamArgs, problem: str) -> list[Chunk]:
        options = self.options
        if options.error_strategy == "warn":
            args.services.warn("the answer could not be structured; the run goes on without an object")
            return []
        if options.error_strategy == "fallback" and options.fallback_value is not None:
            return [
                {"type": "object-result", "object": options.fallback_value, "metadata": {"fallback": True}}
            ]
        self._kept(args)["failure"] = {"retryCount": args.retry_count, "problem": problem}
        return []

    def _request(self, args: OutputStreamArgs, question: str) -> ModelRequest:
        options = self.options
        prompt = [{"role": "system", "content": options.instructions or system_prompt(options.schema_)}]
        if options.use_agent and args.request_context.get(MEMORY_KEY):
            prompt += [entry for entry in to_prompt(args.message_list) if entry["role"] != "system"]
        return ModelRequest(
            model=options.model,
            prompt=[*prompt, {"role": "user", "content": question}],
            schema=options.schema_,
            json_prompt_injection=options.json_prompt_injection,
            provider_options=options.provider_options,
            timeout=_TIMEOUT,
        )

    def process_output_step(self, args: OutputStepArgs) -> None:
        """Ends the attempt whose answer could not be structured.

        Raises:
            TripWire: With `strict`, asking for another answer.
            ProcessorError: With `fallback` and no value to fall back on.
        """
        failure = self._kept(args).pop("failure", None)
        if failure is None or failure["retryCount"] != args.retry_count:
            return
        problem = failure["problem"]
        if self.options.error_strategy == "fallback":
            raise ProcessorError(
                problem,
                processor_id=_ID,
                hook=Hook.OUTPUT_STEP.value,
                code="STRUCTURED_OUTPUT_FAILED",
                name="StructuredOutputError",
            )
        args.abort(f"Structuring failed: {problem}", retry=True, metadata={"error": {"error": problem}})

    def _kept(self, args: HookArgs) -> dict[str, Any]:
        return own_by_options(args.state, "structured", self.options)


def _partials(answer: ModelAnswer) -> list[Chunk]:
    """What the answer looked like while it grew; cost is linear in its length."""
    deltas = [c["payload"]["text"] for c in answer.chunks if c["type"] == "text-delta"] or [answer.text]
    size = -(-len(deltas) // _PARTIALS)
    texts = ("".join(deltas[at : at + size]) for at in range(0, len(deltas), size))
    objects = ObjectStream()
    made = [
        each for text in texts for each in objects.before({"type": "text-delta", "payload": {"text": text}})
    ]
    return made + objects.rest()
