"""What a loss of power costs: the pages, the servers' files, compose and the streams of the code say the same."""

import re

import pytest
import yaml
from nats.js.api import RetentionPolicy

from procession_schemas.subjects import STREAMS
from procession_services.bus.streams import stream_configs
from tests.contract.write_golden import ROOT

CONFIGS = {config.name: config for config in stream_configs()}
NATS = (ROOT / "infra/nats.conf").read_text()
REDIS = (ROOT / "infra/redis.conf").read_text()
UNITS = {"s": 1, "minutes": 60, "hour": 3600, "days": 86_400}


def table(page, title):
    """The rows of the first table below a title, by the names in their first cell."""
    section = (ROOT / page).read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    heads, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.split("\n")
        if line.startswith("|")
    ]
    return {name: dict(zip(heads, row, strict=True)) for row in rows for name in row[0].split(", ")}


POWER = table("docs/operations.md", "What a loss of power costs")
ARCHITECTURE = table("docs/architecture.md", "Streams, and what their loss would cost")


def setting(text, name):
    """The one value of a setting in a file of NATS or Redis."""
    (found,) = re.findall(rf'^\s*{name}:?\s+"?([\w/]+)"?\s*$', text, re.MULTILINE)
    return found


def span(text):
    ((number, unit),) = re.findall(r"^(\d+) ?(\w+)$", text)
    return int(number) * UNITS[unit]


def kept(config):
    """How long a stream keeps its messages, as the pages say it."""
    if config.retention == RetentionPolicy.WORK_QUEUE:
        assert not config.max_age
        return "until handled"
    return config.max_age


def told_kept(cell):
    return cell if cell == "until handled" else span(cell)


def test_every_stream_has_a_row():
    assert POWER.keys() == {*STREAMS, "Redis"}
    assert ARCHITECTURE.keys() == {*STREAMS} == CONFIGS.keys()


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_stored_as_the_pages_say(name):
    config, row = CONFIGS[name], POWER[name]
    storage, synced = row["storage"].split(", ")
    assert config.storage == storage
    assert span(synced) == span(setting(NATS, "sync_interval"))
    assert told_kept(row["kept"]) == kept(config)
    assert span(row["repeats are known for"]) == config.duplicate_window
    age, where = ARCHITECTURE[name]["kept"].split("; ")
    assert (told_kept(age), where) == (kept(config), storage)


def test_redis_writes_as_the_page_says():
    assert POWER["Redis"]["storage"] == f"file, `appendfsync {setting(REDIS, 'appendfsync')}`"
    wanted = {"appendonly": "yes", "maxmemory-policy": "noeviction", "save": '""', "dir": "/data"}
    told = dict(line.split(maxsplit=1) for line in REDIS.split("\n") if line and not line.startswith("#"))
    assert wanted.items() <= told.items()


def test_a_cluster_has_as_many_servers_as_streams_have_copies():
    cluster = yaml.safe_load((ROOT / "compose.cluster.yaml").read_text())["services"]
    environment = cluster["orchestrator"]["environment"]
    servers = environment["PROCESSION_NATS_URL"].split(",")
    copies = int(environment["PROCESSION_STREAM_REPLICAS"])
    names = {
        service["environment"]["NATS_NAME"] for name, service in cluster.items() if name.startswith("nats")
    }
    assert copies == len(servers) == len(names) == 3
    assert names == {url.removeprefix("nats://").removesuffix(":4222") for url in servers}
    assert {config.num_replicas for config in stream_configs(copies)} == {copies}
    assert {config.num_replicas for config in CONFIGS.values()} == {1}


def test_containers_get_these_files_and_keep_what_they_store():
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    services = compose["services"]
    for server, file, volume in (("nats", "nats.conf", "nats:/data"), ("redis", "redis.conf", "redis:/data")):
        sources = {each["source"] for each in services[server]["configs"]}
        assert f"infra/{file}" in {
            compose["configs"][source]["file"].removeprefix("./") for source in sources
        }
        assert volume in services[server]["volumes"]
        assert volume.split(":")[0] in compose["volumes"]
    assert setting(NATS, "store_dir") == "/data"
