import gc

import pytest

from procession_services.runtime import garbage


@pytest.fixture(autouse=True)
def _as_before():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_the_collector_rests_while_something_is_loaded_and_goes_on_afterwards():
    with garbage.loading():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), garbage.loading():
        raise ImportError
    assert gc.isenabled()


def test_what_is_there_is_not_looked_at_again():
    garbage.seldom()
    assert gc.get_freeze_count() > 10_000
    assert gc.get_threshold()[0] > 10_000
