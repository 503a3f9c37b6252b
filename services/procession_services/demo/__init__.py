"""The demonstration: one agent, four small processors to learn from, and `procession demo`."""
