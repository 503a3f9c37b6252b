"""What lasts for the length of a block ends with it, however it ends."""

import pytest

from procession_services.runtime.lasting import Lasting


@pytest.mark.parametrize("fails", [False, True])
def test_it_gives_its_value_and_ends_once_with_the_block(fails):
    ended: list[str] = []

    def block():
        with Lasting("value", lambda: ended.append("end")) as value:
            assert (value, ended) == ("value", [])
            if fails:
                raise KeyError

    if fails:
        with pytest.raises(KeyError):
            block()
    else:
        block()
    assert ended == ["end"]
