"""A server of a cluster is left where nobody has led a stream for long, and not where that was now and then."""

from procession.client.alone import Alone


def test_it_is_alone_when_nobody_was_there_for_twelve_seconds():
    alone = Alone()
    assert [alone.silent(now) for now in (100.0, 105.0, 112.0, 112.1)] == [False, False, False, True]


def test_what_is_stored_proves_that_it_is_not():
    alone = Alone()
    assert not alone.silent(100.0)
    alone.dispelled()
    assert [alone.silent(now) for now in (112.1, 124.1, 124.2)] == [False, False, True]


def test_what_found_nobody_long_ago_does_not_count():
    alone = Alone()
    assert [alone.silent(now) for now in (100.0, 136.1, 148.0, 148.2)] == [False, False, False, True]
