"""Addresses of servers."""

import pytest

from procession.addresses import NATS_SCHEMES, address, is_address, login, unread


@pytest.mark.parametrize(
    "url", ["127.0.0.1:4222", "nats://ann:secret@host", " tls://[::1]:4222 ", "wss://host/way"]
)
def test_what_nats_can_be_reached_at_is_an_address(url):
    assert is_address(url, NATS_SCHEMES)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nats://",
        "http://host:8222",
        "nats://host:99999",
        "nats://host:0",
        "nats://[::1",
        "nats://ann:1/x@host",
    ],
)
def test_what_it_cannot_is_none(url):
    assert not is_address(url, NATS_SCHEMES)


def test_a_path_is_an_address_of_a_socket():
    assert is_address("unix:///run/redis.sock", ("redis", "unix"))


def test_no_message_shows_a_password():
    assert address("nats://ann:secret@one:4222,nats://bob@two") == "nats://one:4222,nats://two"


@pytest.mark.parametrize("password", ["p@ss", "p:ss", "12", "p,s"])
def test_nor_a_part_of_one_that_is_not_percent_encoded(password):
    assert address(f"nats://ann:{password}@one,tls://two:1") == "nats://one,tls://two:1"
    assert address(f"ann:{password}@one") == "one"
    assert address(f"nats://one, ann:{password}@two").endswith("two")
    assert password not in address(f"nats://one, ann:{password}@two")


@pytest.mark.parametrize("password", ["p/ss", "p@/ss", "p?s#s", "p,s", "p s", "1/2@"])
def test_what_is_no_address_is_shown_without_what_may_be_one(password):
    assert unread(f"nats://ann:{password}@one:x") == "'nats://...@one:x'"
    assert unread(f"ann:{password}@one:x") == "'...@one:x'"
    assert unread("nats://one:x") == "'nats://one:x'"


def test_user_and_password_of_an_address_are_percent_encoded():
    assert login(["nats://a%40b:p%2F%C3%A9@one", "nats://a%40b:p%2F%C3%A9@two"]) == {
        "user": "a@b",
        "password": "p/é",
    }
    assert login(["nats://a:b@one", "nats://c:d@two"]) == login(["nats://token@one"]) == {}
