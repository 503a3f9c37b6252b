"""Files that are read anew."""

import os

import pytest

from procession_services.runtime.problems import ConfigurationError, Problem
from procession_services.runtime.reload import Watched


def numbers(path):
    try:
        return [int(line) for line in path.read_text().splitlines()]
    except (ValueError, OSError) as error:
        raise ConfigurationError([Problem(str(path), "", str(error))]) from error


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "numbers"
    path.write_text("1")
    return path


@pytest.fixture
def watched(file):
    return Watched("numbers", file, numbers, [])


def test_a_change_counts_when_it_has_stood_still(file, watched):
    assert not watched.look()
    before = watched.digest
    file.write_text("1\n2")
    assert not watched.look()  # it may still be written
    file.write_text("1\n2\n3")
    assert not watched.look()
    assert watched.look()
    assert watched.value == [1, 2, 3]
    assert watched.digest != before
    assert not watched.look()


def test_a_file_in_the_place_of_another_is_noticed(file, watched):
    """As editors and mounted directories of Kubernetes do it, also with the times of the old one."""
    times = file.stat()
    new = file.with_name("new")
    new.write_text("2")
    os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
    new.replace(file)
    assert [watched.look(), watched.look()] == [False, True]
    assert watched.value == [2]


def test_a_wrong_file_changes_nothing_and_is_told_until_it_is_mended(file, watched):
    digest = watched.digest
    file.write_text("one")
    assert [watched.look(), watched.look(), watched.look()] == [False, True, False]
    assert (watched.value, watched.digest) == ([1], digest)
    assert "invalid literal" in watched.problems[0].message
    file.write_text("1")  # what counts anyway
    assert [watched.look(), watched.look()] == [False, True]
    assert (watched.value, watched.problems) == ([1], [])


def test_whatever_the_check_of_a_plugin_raises_refuses_the_file(file):
    def broken(path):
        if path.read_text() != "1":
            raise RuntimeError("oh")

    watched = Watched("numbers", file, broken, None)
    file.write_text("2")
    watched.reload()
    assert "RuntimeError: oh" in watched.problems[0].message


def test_what_is_wrong_from_the_beginning_is_raised(file):
    file.write_text("one")
    with pytest.raises(ConfigurationError):
        Watched("numbers", file, numbers, [])


def test_without_a_file_the_default_counts():
    watched = Watched("numbers", None, numbers, [7])
    assert not watched.look()
    watched.reload()
    assert (watched.value, watched.digest, watched.problems) == ([7], "", [])


def test_a_mounted_file_that_was_replaced_outside_is_told(file, watched):
    with file.open("rb") as mounted:
        watched.path = type(file)(f"/proc/self/fd/{mounted.fileno()}")
        assert watched.problems == []
        file.unlink()
        assert "mount its directory" in watched.problems[0].message
