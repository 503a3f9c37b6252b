"""The orchestrator: takes requests, and what people and the clock say to runs, and ends runs that are lost."""
