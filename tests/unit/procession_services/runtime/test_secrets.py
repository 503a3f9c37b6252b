"""Secrets are files of one directory, and nothing outside of it."""

from procession_services.runtime.secrets import Secrets


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
