"""The files of infra/observability name series and services that there are."""

import json
import re

import yaml

from procession_services.runtime.settings import Settings
from procession_services.runtime.telemetry.meters import Meters
from procession_services.supervisor import SERVICES
from tests.contract.write_golden import ROOT

FOLDER = ROOT / "infra/observability"
PROMETHEUS = "/etc/prometheus/prometheus.yaml"
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
    assert set(re.findall(r'absent\(up{service_name="([\w-]+)"}\)', " ".join(expressions()))) == services
    environment = compose["x-observed"]["environment"]
    assert str(scrape["port"]) == environment["PROCESSION_METRICS_PORT"]
    settings = {
        name.removeprefix("PROCESSION_").lower() for name in environment if name.startswith("PROCESSION_")
    }
    assert settings <= Settings.model_fields.keys()


def read(name):
    return yaml.safe_load((FOLDER / name).read_text())


def test_the_collector_uses_what_it_declares_and_is_where_services_look_for_it():
    collector, compose = read("collector.yaml"), read("compose.yaml")
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) == collector[kind].keys()
    endpoint = compose["x-observed"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]
    port = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2]
    assert f"http://collector:{port}" in endpoint
    backend, _, grpc = collector["exporters"]["otlp/traces"]["endpoint"].partition(":")
    assert backend in compose["services"]
    assert grpc == "4317", "where Jaeger takes traces"


def test_files_of_the_tools_are_mounted_where_their_configuration_names_them():
    compose = read("compose.yaml")["services"]
    volumes = [each for service in compose.values() for each in service.get("volumes", ())]
    mounts = [each.split(":") for each in volumes if each.startswith("./")]
    mounted = {inside for _, inside, _ in mounts}
    assert [file for file, _, _ in mounts if not (ROOT / file).is_file()] == []
    assert set(read("prometheus.yaml")["rule_files"]) <= mounted
    command = compose["collector"]["command"]
    assert command[command.index("--config") + 1] in mounted
    assert f"--config.file={PROMETHEUS}" in compose["prometheus"]["command"]
    assert PROMETHEUS in mounted
    (provider,) = read("grafana/dashboards.yaml")["providers"]
    assert compose["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in mounted
    assert any(path.startswith(provider["options"]["path"]) for path in mounted)


def test_the_dashboard_asks_sources_that_there_are():
    sources = {source["uid"]: source for source in read("grafana/datasources.yaml")["datasources"]}
    board = json.loads((FOLDER / "grafana/procession.json").read_text())
    asked = {panel["datasource"]["uid"] for panel in board["panels"] if "datasource" in panel}
    assert asked
    assert asked <= sources.keys()
    hosts = {source["url"].partition("//")[2].partition(":")[0] for source in sources.values()}
    assert hosts <= read("compose.yaml")["services"].keys()
