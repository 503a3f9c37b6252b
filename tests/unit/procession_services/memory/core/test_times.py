import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession_services.memory.core.times import to_iso, to_millis


@pytest.mark.parametrize(
    ("iso", "millis"),
    [
        ("1970-01-01T00:00:00.000Z", 0),
        ("2025-01-01T00:00:00Z", 1_735_689_600_000),
        ("2025-01-01T02:00:00.007+02:00", 1_735_689_600_007),
        ("2025-01-01T00:00:00.0079", 1_735_689_600_007),
        ("1969-12-31T23:59:59.999Z", -1),
    ],
)
def test_times_become_milliseconds(iso: str, millis: int) -> None:
    assert to_millis(iso) == millis


@given(st.integers(min_value=-62_135_596_800_000, max_value=253_402_300_799_999))
def test_no_millisecond_is_lost(millis: int) -> None:
    assert to_millis(to_iso(millis)) == millis


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="yesterday"):
        to_millis("yesterday")
