"""The environment first, one file second, and nothing that is not known."""

import pytest

from procession_services.runtime.settings import Settings, SettingsError


@pytest.fixture
def file(tmp_path):
    return tmp_path / "settings.yaml"


def told(file, **overrides):
    with pytest.raises(SettingsError) as raised:
        Settings.load(file, **overrides)
    return str(raised.value).splitlines()


def test_the_environment_comes_before_the_file_and_options_before_both(file, monkeypatch):
    file.write_text("{tenant: from-file, nats_url: nats://file, run_timeout: 5, plugins: [a, b]}")
    monkeypatch.setenv("PROCESSION_TENANT", "from-environment")
    monkeypatch.setenv("PROCESSION_NATS_URL", "nats://environment")
    settings = Settings.load(file, nats_url="nats://option", redis_url=None)
    assert (settings.tenant, settings.nats_url) == ("from-environment", "nats://option")
    assert (settings.run_timeout, settings.plugins) == (5, ("a", "b"))
    assert settings.redis_url == Settings.model_fields["redis_url"].default


def test_the_file_may_be_named_by_the_environment(file, monkeypatch):
    file.write_text("tenant: from-file")
    monkeypatch.setenv("PROCESSION_CONFIG", str(file))
    assert Settings.load().tenant == "from-file"


def test_an_empty_file_sets_nothing(file):
    file.write_text("# nothing yet\n")
    assert Settings.load(file).tenant == "default"


def test_everything_unknown_or_wrong_is_told_at_once_with_where_it_is(file, monkeypatch):
    monkeypatch.setenv("PROCESSION_NAST_URL", "x")
    monkeypatch.setenv("PROCESSION_MAX_DELIVER", "many")
    file.write_text("{tenent: a, run_timeout: -1, 7: seven}")
    unknown, misspelt, number, *wrong = told(file, log_level="LOUD")
    assert unknown == "PROCESSION_NAST_URL is not a setting; did you mean 'PROCESSION_NATS_URL'?"
    assert misspelt == f"{file}: tenent is not a setting; did you mean 'tenant'?"
    assert number.startswith(f"{file}: 7 is not a setting")
    assert sorted(wrong) == [
        f"{file}: run_timeout: Input should be greater than 0, not -1",
        "PROCESSION_LOG_LEVEL: Input should be 'DEBUG', 'INFO', 'WARNING', 'ERROR' or 'CRITICAL', not 'LOUD'",
        "PROCESSION_MAX_DELIVER: Input should be a valid integer, unable to parse string as an integer, not 'many'",
    ]


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("nats_url", "nats://127.0.0.1:99999", "'nats://127.0.0.1:99999'"),
        ("nats_url", "nats://a,http://b", "'nats://a,http://b'"),
        ("nats_url", "nats://[::1", "'nats://[::1'"),
        ("nats_url", "", "''"),
        ("redis_url", "127.0.0.1:6379", "'127.0.0.1:6379'"),
        ("redis_url", "redis://", "'redis://'"),
    ],
)
def test_an_address_that_cannot_be_one_is_told_without_its_password(file, name, value, shown):
    file.write_text("")
    default = Settings.model_fields[name].default
    assert told(file, **{name: value}) == [
        f"PROCESSION_{name.upper()}: should be like {default}, not {shown}"
    ]


def test_nor_with_one_that_is_not_percent_encoded(file):
    file.write_text("")
    [wrong] = told(file, nats_url="nats://ann:sec/ret@127.0.0.1")
    like = "should be like nats://127.0.0.1:4222, with user and password percent-encoded"
    assert wrong == f"PROCESSION_NATS_URL: {like}, not 'nats://...@127.0.0.1'"


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("chroma_url", "chroma:8000", "should be like http://chroma:8000, not 'chroma:8000'"),
        ("chroma_url", "chroma", "should be like http://chroma:8000, not 'chroma'"),
        ("chroma_url", "http://", "should be like http://chroma:8000, not 'http://'"),
        ("chroma_url", "http://chroma:port", "should be like http://chroma:8000, not 'http://chroma:port'"),
        ("chroma_url", "http://proxy/chroma", "should be like http://chroma:8000, not 'http://proxy/chroma'"),
        (
            "chroma_url",
            "http://ann:secret@chroma",
            "should be like http://chroma:8000, not 'http://...@chroma'",
        ),
        (
            "embedder",
            "small",
            "should be auto, onnx, lexical, or provider/model as in openai/text-embedding-3-small, not 'small'",
        ),
    ],
)
def test_what_would_only_show_in_answers_without_recall_is_told(file, name, value, wrong):
    file.write_text("")
    assert told(file, **{name: value}) == [f"PROCESSION_{name.upper()}: {wrong}"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chroma_url", "https://chroma"),
        ("chroma_url", "http://127.0.0.1:8000/"),
        ("redis_url", "redis://host"),
        ("redis_url", "redis://host/?socket_timeout=1"),
        ("embedder", "openai/text-embedding-3-small"),
        ("embedder", "lexical"),
        ("nats_url", "localhost"),
        ("nats_url", "nats://a:4222, tls://ann:secret@b"),
        ("redis_url", "rediss://ann:a,b@host/1"),
        ("redis_url", "unix:///run/redis.sock"),
    ],
)
def test_an_address_is_taken_in_all_its_forms(name, value):
    assert getattr(Settings(**{name: value}), name) == value


@pytest.mark.parametrize("name", ["api_base", "api_bases"])
def test_an_address_of_a_provider_that_is_none_is_told(file, monkeypatch, name):
    file.write_text("")
    monkeypatch.setenv(f"PROCESSION_{name.upper()}", "api.openai.com/v1")
    [wrong] = told(file)
    assert wrong.startswith(f"PROCESSION_{name.upper()}: should be like https://api.openai.com/v1, not ")
    monkeypatch.setenv(f"PROCESSION_{name.upper()}", "https://api.openai.com/v1")
    Settings.load(file)


def test_what_names_no_database_of_redis_is_told(file):
    file.write_text("")
    [wrong] = told(file, redis_url="redis://ann:secret@host/procession")
    expected = "PROCESSION_REDIS_URL: should end with the number of a database, such as /0, or have no path, "
    assert wrong == f"{expected}not 'redis://...@host/procession'"


def test_every_number_has_an_end(monkeypatch):
    numbers = [name for name, field in Settings.model_fields.items() if field.annotation in (int, float)]
    assert len(numbers) > 10
    for value in ("inf", "nan", "1e18", str(10**20)):
        for name in numbers:
            with monkeypatch.context() as patch:
                patch.setenv(f"PROCESSION_{name.upper()}", value)
                with pytest.raises(SettingsError, match=f"PROCESSION_{name.upper()}: "):
                    Settings.load()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("tenant: a\ntenant: b", ":2: is not YAML: the key 'tenant' appears twice"),
        ("[" * 3_000, ": is not YAML: it is nested too deeply"),
    ],
)
def test_a_file_with_a_key_twice_or_nested_too_deeply_is_told(file, text, wrong):
    file.write_text(text)
    [line] = told(file)
    assert line == f"{file}{wrong}"


@pytest.mark.parametrize("copies", [0, 2, 4, 7])
def test_streams_have_an_odd_number_of_copies(monkeypatch, copies):
    monkeypatch.setenv("PROCESSION_STREAM_REPLICAS", str(copies))
    [line] = told(None)
    assert line.startswith("PROCESSION_STREAM_REPLICAS: should be 1, 3 or 5")


def test_the_beginning_that_all_variables_share_makes_none_of_them_nearer(monkeypatch):
    monkeypatch.setenv("PROCESSION_VERSION", "2")
    assert told(None) == ["PROCESSION_VERSION is not a setting"]


@pytest.mark.parametrize("name", ["replica", "tenant"])
def test_what_is_a_part_of_subjects_is_a_token(file, name):
    file.write_text(f"{name}: a b.c")
    [line] = told(file)
    assert f"{file}: {name}: {name} 'a b.c' must be 1 to 200 letters" in line


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("- tenant", "must be a mapping of settings"),
        ("tenant: [", "is not YAML"),
        ("{workspaces: /srv}", "workspaces can only be set in the environment: set PROCESSION_WORKSPACES"),
        ("{health_file: /tmp/x}", "health_file can only be set in the environment"),
    ],
)
def test_a_file_that_cannot_count_is_told(file, text, wrong):
    file.write_text(text)
    [line] = told(file)
    assert line.startswith(f"{file}:")
    assert wrong in line


def test_a_file_that_is_not_there_is_told(file):
    [line] = told(file)
    assert line == f"{file}: cannot be read: No such file or directory"
