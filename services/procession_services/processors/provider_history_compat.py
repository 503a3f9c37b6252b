"""`provider-history-compat`: fits history that one provider wrote to the rules of another (R-PHC).

No model, no cost. Before a call it takes out of the prompt what the provider would refuse; the conversation stays as it
is. After a refusal whose reason it knows, it mends the conversation and asks for the step again, once.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from procession.args import APIErrorArgs, APIErrorResult, LLMRequestArgs, LLMRequestResult
from procession.processor import Options, Processor
from procession_schemas.messages import Message
from procession_services.processors.core.api_errors import texts
from procession_services.processors.core.history_repair import REPAIRS, Repair
from procession_services.processors.core.prompt_compat import PromptCase, fitted

__all__ = ["CompatRule", "ProviderHistoryCompat"]


@dataclass(frozen=True, slots=True)
class CompatRule:
    """A rule of your own, for `ProviderHistoryCompat.additional_rules`.

    Attributes:
        name: For people.
        error_patterns: What a provider says when `fix` can help; searched in its message and its response's body.
        fix: Mends the messages in place; tells whether it changed anything.
        apply_to_prompt: Makes another prompt of the one given with the hook's arguments; None leaves it.
    """

    name: str
    error_patterns: tuple[re.Pattern[str], ...] = ()
    fix: Callable[[list[Message]], bool] | None = None
    apply_to_prompt: Callable[[list[dict[str, Any]], LLMRequestArgs], list[dict[str, Any]] | None] | None = (
        None
    )


class ProviderHistoryCompat(Processor[Options]):
    """Needed in the input array for the prompt, and in the error array for the repairs.

    Override `additional_rules` for providers that it does not know; they come after the built-in ones.
    """

    id = "provider-history-compat"
    name = "Provider History Compat"
    description = "Adapts the history of one provider to the rules of another."

    def additional_rules(self) -> Sequence[CompatRule]:
        """Further rules."""
        return ()

    def process_llm_request(self, args: LLMRequestArgs) -> LLMRequestResult | None:
        """Returns a prompt that the provider takes; nothing where it does so already (R-PHC-2)."""
        prompt = fitted(args.prompt, PromptCase(args.model, args.message_list.get.all.db()))
        for rule in self.additional_rules():
            made = rule.apply_to_prompt(prompt, args) if rule.apply_to_prompt else None
            prompt = prompt if made is None else made
        return None if prompt is args.prompt else {"prompt": prompt}

    def process_api_error(self, args: APIErrorArgs) -> APIErrorResult | None:
        """Mends the conversation where it knows what is wrong with it, at the first failure of a step (R-PHC-3)."""
        if args.retry_count:
            return None
        said, messages = texts(args.error), args.message_list.get.all.db()
        for repair in (*REPAIRS, *self._own_repairs()):
            if repair.fits(said) and repair.fix(messages):
                return {"retry": True}
        return None

    def _own_repairs(self) -> list[Repair]:
        return [Repair(r.name, r.error_patterns, r.fix) for r in self.additional_rules() if r.fix is not None]  # type: ignore[arg-type]  # gets the list
