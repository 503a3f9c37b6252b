"""Output processors: processOutputStream, processToolResult, processOutputStep, processOutputResult."""
