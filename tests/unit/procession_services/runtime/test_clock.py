"""What is said of times."""

from datetime import timedelta

from procession_services.runtime.clock import iso, now, seconds_since


def test_a_time_of_a_clock_that_is_ahead_is_no_time_ago():
    assert seconds_since(iso(now() + timedelta(hours=1))) == 0
    assert 3600 <= seconds_since(iso(now() - timedelta(hours=1))) < 4000
