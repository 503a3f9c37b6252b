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
    ("text", "wrong"),
    [
        ("- tenant", "must be a mapping of settings"),
        ("tenant: [", "cannot be read"),
        ("{workspaces: /srv}", "workspaces counts in the environment only: set PROCESSION_WORKSPACES"),
        ("{health_file: /tmp/x}", "health_file counts in the environment only"),
    ],
)
def test_a_file_that_cannot_count_is_told(file, text, wrong):
    file.write_text(text)
    [line] = told(file)
    assert line.startswith(f"{file}: ")
    assert wrong in line


def test_a_file_that_is_not_there_is_told(file):
    [line] = told(file)
    assert "No such file" in line
