"""`dynamic-model`: other settings for each step."""

from pydantic import Field

from procession import InputStepArgs, InputStepResult, Options, Processor


class DynamicModelOptions(Options):
    """Options of `dynamic-model`."""

    fast: str = Field(default="openai/gpt-5-mini", description="Model of the first step.")
    strong: str = Field(default="openai/gpt-5.4", description="Model of a step that follows a tool call.")
    tool_steps: int = Field(default=5, ge=0, description="After this many steps the model gets no tools.")


class DynamicModel(Processor[DynamicModelOptions]):
    """Begins with a fast model, thinks about tool results with a strong one, and makes long runs come to an end."""

    id = "dynamic-model"
    description = "Chooses the model by step, and ends long runs."

    def process_input_step(self, args: InputStepArgs) -> InputStepResult:
        """Returns what differs in this step; the next one starts from the agent's settings again."""
        if args.step_number == 0:
            return {"model": self.options.fast}
        if args.steps and args.steps[-1].get("toolCalls"):
            return {"model": self.options.strong}
        if args.step_number > self.options.tool_steps:
            return {"tool_choice": "none"}
        return {}
