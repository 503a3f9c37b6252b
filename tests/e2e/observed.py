"""Metrics and traces: Prometheus with the project's own configuration, and who stands in for the collector."""

import asyncio
import json
import re
from typing import Any, Final
from urllib.parse import urlencode

import yaml

from tests.e2e.load import Figures
from tests.e2e.stack import COMPOSED, ROOT, Stack

__all__ = ["observed"]

_SECONDS: Final = 60.0
_HAPPENED: Final = (
    "procession_runs_total", "procession_run_seconds_count", "procession_command_seconds_count",
    "procession_consumer_lag", "procession_processor_calls_total", "procession_model_calls_total",
    "procession_model_tokens_total", "procession_tool_calls_total", "procession_chunks_total",
)  # fmt: skip
"""Series that a few runs of every kind leave behind."""
_TRACED: Final = {"input_processors", "llm_gateway", "output_processors", "tools"}
"""The services that have spans in a run with a tool."""
_SPANS: Final = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:4318").read().decode())
"""


async def observed(stack: Stack, figures: Figures) -> None:
    """Every replica is scraped, rules are in force, the dashboard's questions are understood; traces are whole."""
    async with asyncio.timeout(_SECONDS):
        while not any(services >= _TRACED for services in await _traced(stack)):  # noqa: ASYNC110
            await asyncio.sleep(2)
    checked = await stack.compose(
        "exec", "-T", "prometheus", "promtool", "check", "config", "/etc/prometheus/prometheus.yaml"
    )
    figures.expect("SUCCESS" in checked, f"promtool: {checked}")
    async with asyncio.timeout(_SECONDS):
        while await _up(stack) != set(COMPOSED) or set(_HAPPENED) - await _names(stack):  # noqa: ASYNC110
            await asyncio.sleep(1)
    rules = (await _asked(stack, "rules"))["groups"][0]["rules"]
    told = yaml.safe_load((ROOT / "infra/observability/alerts.yaml").read_text())
    wanted = [rule["alert"] for group in told["groups"] for rule in group["rules"]]
    healthy = [rule["name"] for rule in rules if rule["health"] != "err"]
    figures.expect(healthy == wanted, f"rules {rules}")
    board = json.loads((ROOT / "infra/observability/grafana/procession.json").read_text())
    for expression in (target["expr"] for panel in board["panels"] for target in panel.get("targets", [])):
        asked = re.sub(r"\$__\w+", "5m", expression)
        try:
            await _asked(stack, "query", query=asked)
        except RuntimeError as error:
            figures.wrong.append(f"the dashboard asks {asked}: {error}")


async def _traced(stack: Stack) -> list[set[str]]:
    """The services that each run's trace has spans of."""
    services: dict[str, set[str]] = {}
    for span in json.loads(await stack.python("collector", _SPANS)):
        services.setdefault(span["trace"], set()).add(span["service"])
    return list(services.values())


async def _up(stack: Stack) -> set[str]:
    told = await _asked(stack, "query", query="up == 1")
    return {each["metric"]["service_name"] for each in told["result"]}


async def _names(stack: Stack) -> set[str]:
    told = await _asked(stack, "query", query='count by (__name__) ({__name__=~"procession_.*"})')
    return {each["metric"]["__name__"] for each in told["result"]}


async def _asked(stack: Stack, path: str, **query: str) -> Any:
    url = f"http://127.0.0.1:9090/api/v1/{path}?{urlencode(query)}"
    told = await stack.compose("exec", "-T", "prometheus", "wget", "-qO-", url)
    return json.loads(told)["data"]
