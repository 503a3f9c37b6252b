"""Input processors: processInput, processInputStep, processLLMRequest, processLLMResponse."""
