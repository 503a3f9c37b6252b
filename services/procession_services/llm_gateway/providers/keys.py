"""Calls to places that a request names, which no key of the operator may reach."""

from typing import Final

NO_KEY: Final = "none"
WITHHOLDABLE: Final = frozenset(
    {
        "anthropic", "cerebras", "cohere_chat", "dashscope", "deepinfra", "deepseek",
        "fireworks_ai", "gemini", "groq", "hosted_vllm", "huggingface", "litellm_proxy", "llamafile", "lm_studio",
        "mistral", "moonshot", "nebius", "novita", "nvidia_nim", "ollama", "ollama_chat", "openai", "openrouter",
        "perplexity", "sambanova", "together_ai", "volcengine", "xai",
    }
)  # fmt: skip
"""Providers to which LiteLLM sends the key of the call, and nothing else of ours, where there is one."""


def is_withholdable(model: str) -> bool:
    """Whether a call of `provider/name` with `NO_KEY` takes nothing of ours along."""
    return model.partition("/")[0] in WITHHOLDABLE


__all__ = ["NO_KEY", "WITHHOLDABLE", "is_withholdable"]
