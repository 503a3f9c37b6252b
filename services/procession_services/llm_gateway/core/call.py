"""One call to a model, as the gateway hands it to a provider."""

from typing import Any

from msgspec import Struct


class ModelCall(Struct, frozen=True):
    """Everything a provider needs for one streamed answer, in the contract's words.

    Attributes:
        model: `provider/name`, as LiteLLM spells it.
        prompt: The prompt of core.md 6.1: entries of role system, user, assistant and tool, whose content is
            a string or a list of parts.
        tools: Tool name -> `{"description", "parameters"}`; the key is the name the model sees (R-TL-5).
        tool_choice: `auto`, `none`, `required` or `{"type": "tool", "toolName": ...}` (R-TL-1).
        active_tools: Names the model may see; None shows all, an empty list none (R-TL-3).
        model_settings: `temperature`, `maxOutputTokens`, `topP`, `topK`, `presencePenalty`,
            `frequencyPenalty`, `stopSequences`, `seed`, `maxRetries`, `headers`, `timeout` (R-MS-1).
            `timeout` is in milliseconds: a number for the whole answer, or `{"totalMs", "stepMs",
            "firstChunkMs", "chunkMs"}`.
        provider_options: Provider -> options; only the entry of the call's own provider counts (R-MS-2).
        response_format: JSON Schema of a structured answer, or None for free text.
        headers: Extra HTTP headers; they win over those in `model_settings` (R-MS-5).
        api_base: Base URL, where it is not the provider's default.
        api_key: Key; None leaves it to the environment variable that LiteLLM reads for the provider.
        include_raw_chunks: Also give every provider event as a `raw` chunk.
    """

    model: str
    prompt: list[dict[str, Any]]
    tools: dict[str, dict[str, Any]] = {}
    tool_choice: Any = "auto"
    active_tools: list[str] | None = None
    model_settings: dict[str, Any] = {}
    provider_options: dict[str, Any] = {}
    response_format: dict[str, Any] | None = None
    headers: dict[str, str] = {}
    api_base: str | None = None
    api_key: str | None = None
    include_raw_chunks: bool = False

    @property
    def provider(self) -> str:
        """The provider's name: what stands before the first slash of `model`."""
        return self.model.partition("/")[0]

    def __repr__(self) -> str:
        """All but the key, which is not to get into a log."""
        told = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "api_key")
        return f"ModelCall({', '.join(told)})"


def unknown_model(model: str, kind: str = "model") -> str:
    """What is said of a model that cannot be called."""
    known = "write it as 'provider/name' with a provider that LiteLLM knows"
    return f"unknown {kind} {model!r}: {known}; a URL belongs in apiBase"
