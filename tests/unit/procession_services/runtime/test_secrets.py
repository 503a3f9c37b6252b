"""Secrets are files of one directory, and nothing outside of it."""

import os

import pytest

from procession_services.runtime.problems import ConfigurationError
from procession_services.runtime.secrets import Secrets, load_keys


def test_a_secret_is_the_file_of_its_name(tmp_path):
    (tmp_path / "masking-key").write_bytes(b"\x00 key \r\n")
    secrets = Secrets(tmp_path)
    assert secrets("masking-key") == b"\x00 key "
    assert secrets("other") is None


def test_no_name_leads_out_of_the_directory(tmp_path):
    (tmp_path / "outside").write_text("x")
    (tmp_path / "in").mkdir()
    secrets = Secrets(tmp_path / "in")
    assert [secrets(name) for name in ("../outside", "/etc/passwd", "", ".", "a/b")] == [None] * 5


def test_without_a_directory_there_are_none():
    assert Secrets(None)("masking-key") is None


def test_keys_of_providers_come_from_a_file_where_the_environment_has_none(tmp_path, monkeypatch):
    file = tmp_path / "providers.env"
    file.write_text("# keys\n\nFIRST_API_KEY=one=1\nSECOND_API_KEY=two\n")
    monkeypatch.setenv("SECOND_API_KEY", "given")
    monkeypatch.delenv("FIRST_API_KEY", raising=False)
    load_keys(file)
    assert (os.environ.pop("FIRST_API_KEY"), os.environ["SECOND_API_KEY"]) == ("one=1", "given")
    load_keys(None)


def test_a_wrong_line_of_keys_is_told_by_its_number_alone(tmp_path):
    file = tmp_path / "providers.env"
    file.write_text("FIRST_API_KEY=one\nsk-secret\n")
    with pytest.raises(ConfigurationError) as raised:
        load_keys(file)
    assert str(raised.value) == f"{file}:2: is not VARIABLE=value"
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        load_keys(tmp_path / "gone")
