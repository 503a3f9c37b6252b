"""Prometheus with the project's own configuration, beside the services: targets, rules, and what the dashboard asks."""

import asyncio
import json
import re
from typing import Any, Final
from urllib.parse import urlencode

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


async def observed(stack: Stack, figures: Figures) -> None:
    """Every replica is scraped, rules are in force, and the dashboard's questions are understood."""
    checked = await stack.compose(
        "exec", "-T", "prometheus", "promtool", "check", "config", "/etc/prometheus/prometheus.yaml"
    )
    figures.expect("SUCCESS" in checked, f"promtool: {checked}")
    async with asyncio.timeout(_SECONDS):
        while await _up(stack) != set(COMPOSED) or set(_HAPPENED) - await _names(stack):  # noqa: ASYNC110
            await asyncio.sleep(1)
    rules = (await _asked(stack, "rules"))["groups"][0]["rules"]
    sick = [rule["name"] for rule in rules if rule["health"] == "err"]
    figures.expect(len(rules) == 4 and not sick, f"rules {rules}")
    board = json.loads((ROOT / "infra/observability/grafana/procession.json").read_text())
    for expression in (target["expr"] for panel in board["panels"] for target in panel.get("targets", [])):
        asked = re.sub(r"\$__\w+", "5m", expression)
        try:
            await _asked(stack, "query", query=asked)
        except RuntimeError as error:
            figures.wrong.append(f"the dashboard asks {asked}: {error}")


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
