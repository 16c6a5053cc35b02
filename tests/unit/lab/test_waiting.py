"""The wait for what nothing announces, and the thread that looks at it."""

from __future__ import annotations

import threading

import pytest

from lab.waiting import RepeatedLook, wait_for


def test_what_is_still_in_the_way_at_the_end_is_returned() -> None:
    obstacles = iter(["the broker", "a leader", ""])

    assert wait_for(lambda: next(obstacles), seconds=60, every=0) == ""
    assert wait_for(lambda: "the broker", seconds=0) == "the broker"


def test_a_wait_ends_when_all_is_over() -> None:
    over = threading.Event()
    over.set()

    assert wait_for(lambda: "the broker", seconds=60, over=over) == "the broker"


def test_what_a_look_has_raised_is_raised_by_whoever_ends_the_watch() -> None:
    looked = threading.Event()

    def look() -> None:
        looked.set()
        raise ValueError("a finding")

    watch = RepeatedLook(look, every=0.0, name="watch")
    watch.start()
    assert looked.wait(10)

    with pytest.raises(ValueError, match="a finding"):
        watch.finish()


def test_a_watch_that_never_began_ends_without_a_look() -> None:
    RepeatedLook(lambda: pytest.fail("it looked"), every=0.0, name="watch").finish()
