"""The LLM gateway: provider calls through LiteLLM, provider events to chunks."""
