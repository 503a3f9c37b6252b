"""The tools service: runs the tool calls of a response (core.md 17.4 to 17.6)."""
