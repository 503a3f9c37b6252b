"""The agents of the demonstration; the orchestrator loads this file like anybody's (`PROCESSION_AGENTS`)."""

import os

from procession_schemas.agent import Agent

agents = [
    Agent.model_validate(
        {
            "name": "demo",
            "description": "Answers a question, with a tool for the weather.",
            "model": os.environ.get("PROCESSION_MODEL", "openai/demo"),
            "instructions": "Answer in a few sentences. Use the tool for questions about the weather.",
            "inputProcessors": ["unicode-normalizer", "question-check"],
            "outputProcessors": ["email-redactor", "word-counter"],
            "errorProcessors": ["retry-once"],
            "tools": ["weather"],
            "maxSteps": 5,
            "maxRetries": 0,
        }
    )
]
