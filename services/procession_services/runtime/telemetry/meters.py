"""The Prometheus series, all in one place.

Labels come from configuration: services, processors, hooks, models, tools. Requests may bring agents of their own, with
any names in them, so of each label only the first `_NAMES` values are told apart; the others are `other`.
"""

from collections.abc import Collection
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

__all__ = ["Meters"]

_NAMES: Final = 200
_QUICK: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LONG: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Meters:
    """The series of one process; `more` are labels of runs that were asked for: `tenant`, `agent`."""

    def __init__(self, more: Collection[str] = ()) -> None:
        self.registry = registry = CollectorRegistry()
        self._names: dict[str, set[str]] = {}
        self._more = tuple(sorted({*more}))
        ProcessCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"procession_{name}", text, labels, registry=registry)

        def seconds(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"procession_{name}_seconds", text, labels, registry=registry, buckets=buckets)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"procession_{name}", text, labels, registry=registry)

        self.accepted = counter("runs_accepted", "Runs accepted.", *self._more)
        self.by_tenant = "tenant" in self._more
        tenant = ["tenant"] if self.by_tenant else []
        self.rejected = counter(
            "requests_rejected", "Requests that were refused because of a limit.", "limit", *tenant
        )
        self.at_work = gauge("runs_running", "Runs that hold a place.", *tenant)
        self.queued = gauge("runs_waiting", "Accepted runs that wait for a place.", *tenant)
        self.wait_seconds = seconds(
            "run_wait", "From acceptance to getting a place, for runs that waited.", _LONG, *tenant
        )
        self.runs = counter("runs", "Runs that ended, or began to wait for a person.", "status", *self._more)
        self.run_seconds = seconds("run", "From acceptance to the end.", _LONG, "status", *self._more)
        self.retries = counter("run_retries", "Retries of steps.", *self._more)
        self.in_flight = gauge("commands_in_flight", "Commands that are being handled.", "service")
        self.command_seconds = seconds("command", "One command.", _LONG, "service", "outcome")
        self.chunks = counter("chunks", "Chunks that were numbered for clients.", "service")
        hook = ("processor", "hook")
        self.calls = counter("processor_calls", "Hook calls.", *hook)
        self.busy = counter("processor_seconds", "Seconds spent in hooks.", *hook)
        self.errors = counter("processor_errors", "Hook failures.", *hook)
        self.tripwires = counter("tripwires", "Aborts by processors.", *hook)
        self.warnings = counter("processor_warnings", "Warnings of processors.", *hook)
        self.model_calls = counter("model_calls", "Model calls.", "model", "outcome")
        self.model_seconds = seconds("model", "One model call.", _LONG, "model")
        self.first_chunk = seconds("model_first_chunk", "Until the first chunk of an answer.", _LONG, "model")
        self.tokens = counter("model_tokens", "Tokens of model calls.", "model", "type")
        self.dollars = counter(
            "model_cost_dollars", "Cost of model calls in US dollars, as far as prices are known.", "model"
        )
        self.tool_calls = counter("tool_calls", "Tool calls.", "tool", "outcome")
        self.tool_seconds = seconds("tool", "One tool call.", _QUICK, "tool")
        self.failovers = counter("stream_failovers", "Streams that another replica took over.")
        self.redeliveries = counter("redeliveries", "Messages that were delivered again.", "consumer")
        self.dead = counter("dead_letters", "Messages that went to DEAD.", "consumer")
        self.refused = gauge(
            "configuration_refused", "1: the file is wrong, and its previous version stays in effect.", "file"
        )
        where = ("stream", "consumer")
        self.waiting = gauge("consumer_lag", "Messages not yet delivered.", *where)
        self.unacknowledged = gauge(
            "consumer_unacknowledged", "Messages delivered, but not yet acknowledged.", *where
        )

    def name(self, label: str, value: str) -> str:
        """The value, or `other` when there are too many of them."""
        known = self._names.setdefault(label, set())
        if value not in known:
            if len(known) >= _NAMES:
                return "other"
            known.add(value)
        return value

    def tenant_labels(self, tenant: str) -> dict[str, str]:
        """The label of a tenant, if that was asked for."""
        return {"tenant": self.name("tenant", tenant)} if self.by_tenant else {}

    def run_labels(self, tenant: str, agent: str) -> dict[str, str]:
        """The labels of a run that were asked for."""
        values = {"tenant": tenant, "agent": agent}
        return {label: self.name(label, values[label]) for label in self._more}
