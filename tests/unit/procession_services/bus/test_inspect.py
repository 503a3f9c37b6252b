"""What a NATS server leaves room for."""

import re

import pytest

from procession_services.bus.inspect import longest_request
from procession_services.runtime.settings import Settings

MB = 1024 * 1024


@pytest.mark.parametrize(
    ("max_payload", "longest", "remedy"),
    [
        (8 * MB, MB, "PROCESSION_MAX_REQUEST_BYTES"),
        (MB, MB - 128 * 1024, "NATS takes messages of 1,048,576 bytes.*set `max_payload: 8MB` in nats.conf"),
        (64 * 1024, 0, "NATS takes messages of 65,536 bytes.*set `max_payload: 8MB` in nats.conf"),
    ],
)
def test_the_longest_request_is_told_with_what_limits_it(max_payload, longest, remedy):
    told, how = longest_request(Settings(), max_payload)
    assert told == longest
    assert re.search(remedy, how)
