"""How a process gets into NATS and Redis."""

import pytest

from procession.addresses import address
from procession_services.runtime.access import Access
from procession_services.runtime.settings import Settings, SettingsError


@pytest.fixture
def access(tmp_path):
    for name in ("nats", "redis"):
        (tmp_path / name).write_text(f"{name}-password\n")
    return Access.of(
        Settings(
            nats_user="tools", nats_password_file=tmp_path / "nats",
            redis_user="tools", redis_password_file=tmp_path / "redis",
        )
    )  # fmt: skip


def test_nothing_is_asked_of_an_open_server():
    assert (Access().nats("nats://x"), Access().redis("redis://x")) == ({}, {})


def test_passwords_come_from_files_and_answers_go_to_the_user_alone(access):
    options = {"user": "tools", "password": "nats-password", "inbox_prefix": b"_INBOX.tools"}
    assert access.nats("nats://x") == options
    assert access.redis("redis://x") == {"username": "tools", "password": "redis-password"}


def test_a_process_of_several_services_has_the_user_of_each(tmp_path):
    for name in ("nats-tools", "redis-tools"):
        (tmp_path / name).write_text(f"of-{name}\n")
    settings = Settings(
        nats_user="{service}", nats_password_file=tmp_path / "nats-{service}",
        redis_user="{service}", redis_password_file=tmp_path / "redis-{service}",
    )  # fmt: skip
    access = Access.of(settings, "tools")
    assert access.nats("nats://x")["user"] == access.redis("redis://x")["username"] == "tools"
    assert (access.nats_password, access.redis_password) == ("of-nats-tools", "of-redis-tools")


def test_a_password_of_redis_without_a_user_is_the_default_ones(tmp_path):
    (tmp_path / "redis").write_text("of-requirepass\n")
    access = Access.of(Settings(redis_password_file=tmp_path / "redis"))
    assert access.redis("redis://x") == {"password": "of-requirepass"}


def test_a_password_of_nats_without_a_user_is_refused(tmp_path):
    (tmp_path / "nats").write_text("nobodys\n")
    with pytest.raises(SettingsError, match="PROCESSION_NATS_USER"):
        Access.of(Settings(nats_password_file=tmp_path / "nats"))


def test_a_file_that_is_no_text_is_told_by_its_variable(tmp_path):
    (tmp_path / "redis").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=r"PROCESSION_REDIS_PASSWORD_FILE: cannot read .*UTF-8"):
        Access.of(Settings(redis_password_file=tmp_path / "redis"))


def test_a_password_is_in_no_text_that_is_logged(access):
    assert "password" not in repr(access)
    assert "password" not in str(access)


def test_a_file_that_is_missing_is_told_by_its_variable(tmp_path):
    with pytest.raises(SettingsError, match=r"PROCESSION_NATS_PASSWORD_FILE: cannot read .*gone"):
        Access.of(Settings(nats_user="tools", nats_password_file=tmp_path / "gone"))


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://user:secret@host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host", "redis://host"),
        ("nats://a:secret@one:4222,nats://token@two", "nats://one:4222,nats://two"),
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
    ],
)
def test_a_url_is_told_without_its_password(url, told):
    assert address(url) == told


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_an_authority_that_cannot_be_used_is_told_by_its_variable(tmp_path, text):
    if text is not None:
        (tmp_path / "ca.pem").write_text(text)
    with pytest.raises(SettingsError, match=r"PROCESSION_TLS_CA: cannot use .*ca\.pem: "):
        Access.of(Settings(tls_ca=tmp_path / "ca.pem"))
