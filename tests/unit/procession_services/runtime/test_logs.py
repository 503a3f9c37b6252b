"""What a log tells of an exception."""

import io
import logging

import pytest
from redis.exceptions import RedisError

from procession_schemas.base import UnfitError
from procession_schemas.work import WorkCommand
from procession_services.runtime.logs import OnceHandler, SafeFormatter


def logged(error: Exception, cause: Exception | None = None) -> str:
    """What is logged of an error that came from another one."""
    log, out = logging.getLogger("of the test"), io.StringIO()
    log.addHandler(handler := logging.StreamHandler(out))
    handler.setFormatter(SafeFormatter("%(message)s"))
    try:
        raised(error, cause)
    except type(error):
        log.exception("it failed")
    log.removeHandler(handler)
    return out.getvalue()


def raised(error: Exception, cause: Exception | None) -> None:
    if cause is None:
        raise error
    try:
        raise cause
    except type(cause):
        raise error from cause


def test_places_and_classes_are_told_and_messages_are_not():
    told = logged(RuntimeError("amber"), LookupError("purple"))
    assert told.startswith("it failed\n  File")
    assert "test_logs.py" in told
    assert told.index("builtins.LookupError") < told.index("builtins.RuntimeError")
    assert "purple" not in told
    assert "amber" not in told


@pytest.mark.parametrize("error", [RedisError("no space left"), ConnectionResetError("by peer")])
def test_what_servers_and_the_system_say_is_told(error):
    assert str(error) in logged(error)


def test_no_name_makes_a_line_that_looks_like_one_of_ours():
    record = logging.LogRecord(
        "n", logging.WARNING, "", 1, "%s failed:\n  why", ("a\nb\r\x1b[2K\x85é",), None
    )
    assert SafeFormatter("> %(message)s").format(record) == "> a\n  b\\r\\x1b[2K\\x85é failed:\n  why"


def test_what_several_say_in_the_same_second_is_written_once():
    now, out = 100.0, io.StringIO()
    log = logging.getLogger("procession_services.of.several")
    log.addHandler(handler := OnceHandler(out, clock=lambda: now))
    for _ in range(7):
        log.warning("%s is away", "NATS")
        log.error("a look failed", exc_info=ConnectionError("refused"))
        now += 0.1
    log.error("a look failed", exc_info=ConnectionError("reset"))
    log.warning("Redis is away")
    now += 0.5
    log.warning("NATS is away")
    log.removeHandler(handler)
    assert [line for line in out.getvalue().splitlines() if "is away" in line or "look" in line] == [
        "NATS is away", "a look failed", "a look failed", "Redis is away", "NATS is away"
    ]  # fmt: skip


def test_what_a_plugin_says_is_written_as_often_as_it_does():
    out = io.StringIO()
    log = logging.getLogger("my_plugin")
    log.addHandler(handler := OnceHandler(out))
    for _ in range(3):
        log.warning("seen")
    log.removeHandler(handler)
    assert out.getvalue().splitlines() == ["seen"] * 3


def test_a_message_that_cannot_be_read_is_not_quoted():
    with pytest.raises(UnfitError) as caught:
        WorkCommand.from_json(b'{"run": {"said": "purple"}}')
    assert "purple" not in str(caught.value)
