"""The agents of the benchmarks, one for each mix of processors and tools; a request brings its model.

The orchestrator loads this file like anybody's (`PROCESSION_AGENTS`).
"""

from typing import Any

from procession_schemas.agent import Agent

__all__ = ["INSTRUCTIONS", "agent_name", "agents"]

INSTRUCTIONS = "You are a helpful assistant."
_INPUTS = ("unicode-normalizer", "bench-input-as-is", "bench-step-number")
_OUTPUTS = ("bench-pass-through", "bench-word-count", "bench-content-filter")
_OUTPUT_COUNTS = (0, 1, 3, 10)


def agent_name(
    outputs: int, *, inputs: bool = True, tools: bool = False, stamped: bool = False, memory: bool = False
) -> str:
    """The name of the agent with that many output processors, with or without input processors, tool and memory.

    The one that is stamped has three output processors, of which the first says when it got a chunk.
    """
    if stamped:
        return "bench-stamped"
    parts = ("" if inputs else "-bare", "-tools" if tools else "", "-memory" if memory else "")
    return f"bench-{outputs}{''.join(parts)}"


def _agent(outputs: int, *, inputs: bool = True, tools: bool = False, memory: bool = False) -> Agent:
    passing: list[Any] = [{"id": _OUTPUTS[0], "as": f"pass-{number}"} for number in range(outputs)]
    return Agent.model_validate(
        {
            "name": agent_name(outputs, inputs=inputs, tools=tools, memory=memory),
            "model": "openai/mock:chunks=1",
            "instructions": INSTRUCTIONS,
            "inputProcessors": list(_INPUTS) if inputs else [],
            "outputProcessors": list(_OUTPUTS) if outputs == len(_OUTPUTS) else passing,
            "tools": ["bench-echo"] if tools else [],
            "memory": {"lastMessages": 10} if memory else None,
            "maxSteps": 30,
        }
    )


agents = [
    _agent(len(_OUTPUTS), memory=True),
    *(
        _agent(outputs, inputs=inputs, tools=tools)
        for outputs in _OUTPUT_COUNTS
        for inputs in (True, False)
        for tools in (False, True)
    ),
]
agents.append(
    Agent.model_validate(
        {
            "name": agent_name(3, stamped=True),
            "model": "openai/mock:chunks=1",
            "instructions": INSTRUCTIONS,
            "inputProcessors": list(_INPUTS),
            "outputProcessors": ["bench-stamp", *_OUTPUTS[1:]],
        }
    )
)
