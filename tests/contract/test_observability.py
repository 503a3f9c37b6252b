"""The files of infra/observability name series and services that there are."""

import json
import re

import yaml

from procession_services.runtime.settings import Settings
from procession_services.runtime.telemetry.meters import Meters
from procession_services.supervisor import SERVICES
from tests.contract.write_golden import ROOT

FOLDER = ROOT / "infra/observability"
ENDINGS = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}


def series():
    found: dict[str, list[str]] = {}
    for metric in Meters().registry.collect():
        names = list(metric.samples[0].labels) if metric.samples else []
        found |= {metric.name + ending: names for ending in ENDINGS[metric.type]}
    return found


def expressions():
    board = json.loads((FOLDER / "grafana/procession.json").read_text())
    yield from (target["expr"] for panel in board["panels"] for target in panel.get("targets", []))
    alerts = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    yield from (rule["expr"] for group in alerts["groups"] for rule in group["rules"])


def test_dashboard_and_alerts_ask_for_series_that_there_are():
    asked = {name for each in expressions() for name in re.findall(r"procession_\w+", each)}
    assert len(asked) > 20
    assert asked <= series().keys()


def test_every_series_is_on_the_dashboard():
    asked = " ".join(expressions())
    unseen = {metric.name for metric in Meters().registry.collect() if metric.name not in asked}
    assert {name for name in unseen if name.startswith("procession_")} == {
        "procession_runs_accepted",
        "procession_consumer_unacknowledged",
    }


def test_every_service_is_scraped_and_observed():
    services = {name.replace("_", "-") for name in SERVICES}
    scrape = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"][0]["dns_sd_configs"][
        0
    ]
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    assert set(scrape["names"]) == services
    assert services <= compose["services"].keys()
    environment = compose["x-observed"]["environment"]
    assert str(scrape["port"]) == environment["PROCESSION_METRICS_PORT"]
    settings = {
        name.removeprefix("PROCESSION_").lower() for name in environment if name.startswith("PROCESSION_")
    }
    assert settings <= Settings.model_fields.keys()
