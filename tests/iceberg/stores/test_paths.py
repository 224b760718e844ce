"""Which paths there are: whatever is asked for, none leads out of the store, and the same ones fit everywhere."""

from __future__ import annotations

import posixpath

from hypothesis import example, given
from hypothesis import strategies as st

from takehold import UsageError
from takehold.iceberg.stores.store import below, checked

TRICKY = st.sampled_from(
    ["..", ".", "/", "//", "%2e", "\0", "\\", "~", " ", "\u202e", "\ud800", "é", ".takehold", "a", ":"]
)


@given(st.one_of(st.text(), st.lists(TRICKY).map("".join)))
@example("../../etc/passwd")
@example("a/\ud800")
@example("a" * 10_000)
def test_a_path_is_refused_or_stays_inside(path: str) -> None:
    try:
        assert checked(path) == path
    except UsageError:
        return
    assert posixpath.normpath(path) == path
    assert not path.startswith(("/", "../", ".takehold"))
    assert "\0" not in path
    assert len(path.encode()) <= 900
    assert posixpath.join("/root", path).startswith("/root/")
    assert f"{path}/x".startswith(below(path))
