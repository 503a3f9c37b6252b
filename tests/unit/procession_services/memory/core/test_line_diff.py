from hypothesis import given
from hypothesis import strategies as st

from procession_services.memory.core.line_diff import hunks
from tests.support.patches import patched

texts = st.lists(st.sampled_from(["a", "b", "c", "", "- d"]), min_size=1, max_size=12).map("\n".join)


@given(texts, texts)
def test_a_patch_makes_the_new_text_of_the_old_one(old, new):
    patch = hunks(old, new)
    assert patched(old, patch) == new
    assert (patch == "") == (old == new)


def test_headers_count_lines_and_name_the_line_before_an_empty_range():
    assert hunks("a\nb", "a\nc") == "@@ -2,1 +2,1 @@\n-b\n+c"
    assert hunks("a\nc", "a\nb\nc") == "@@ -1,0 +2,1 @@\n+b"
    assert hunks("a\nb\nc", "a\nc") == "@@ -2,1 +1,0 @@\n-b"
    assert hunks("a\nb\nc", "x\nb\ny").count("@@ ") == 2


def test_an_appended_line_leaves_the_last_one_alone():
    """D-87."""
    assert hunks("a\nb", "a\nb\nc") == "@@ -2,0 +3,1 @@\n+c"


def test_long_texts_without_anything_in_common_take_no_table():
    old, new = ("\n".join(f"{mark}{n}" for n in range(5000)) for mark in "ab")
    assert patched(old, hunks(old, new)) == new
