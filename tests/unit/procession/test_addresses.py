"""Addresses of servers."""

import pytest

from procession.addresses import NATS_SCHEMES, address, is_address


@pytest.mark.parametrize(
    "url", ["127.0.0.1:4222", "nats://ann:secret@host", " tls://[::1]:4222 ", "wss://host/way"]
)
def test_what_nats_can_be_reached_at_is_an_address(url):
    assert is_address(url, NATS_SCHEMES)


@pytest.mark.parametrize(
    "url", ["", "nats://", "http://host:8222", "nats://host:99999", "nats://host:0", "nats://[::1"]
)
def test_what_it_cannot_is_none(url):
    assert not is_address(url, NATS_SCHEMES)


def test_a_path_is_an_address_of_a_socket():
    assert is_address("unix:///run/redis.sock", ("redis", "unix"))


def test_no_message_shows_a_password():
    assert address("nats://ann:secret@one:4222,nats://bob@two") == "nats://one:4222,nats://two"
