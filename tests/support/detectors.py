"""A kit for processors that ask a model."""

from typing import Any

from procession.processor import Hook
from procession.testing import ProcessorKit, ScriptedModels, environment
from procession_schemas.run import HookReport


class ScriptedKit(ProcessorKit):
    """A kit whose models give these replies; `models.requests` are the questions, `logs` the lines logged."""

    def __init__(self, processor: Any, replies: Any, options: Any = None, **more: Any) -> None:
        self.models = ScriptedModels(replies)
        self.logs: list[str] = []
        super().__init__(
            processor, options, environment=environment(self.models, log=self.logs.append), **more
        )

    def report(self, hook: Hook) -> HookReport:
        """The tally of a hook."""
        (found,) = [each for (_, name), each in self.calls.reports.items() if name == hook.value]
        return found
