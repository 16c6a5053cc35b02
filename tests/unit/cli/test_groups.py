"""The command `groups`: readiness in words, tables and JSON."""

from __future__ import annotations

from typing import Any

import pytest

from cli.groups import sentence, show
from cli.groups_view import GroupsView, need_operator
from mirrorless.groups.checkpoints import GroupCheckpoints, GroupOffset
from tests.support.chains import FLOW
from tests.support.statuses import NOW


def shop(readiness: Any = "ready", **more: Any) -> GroupCheckpoints:
    offsets = {"orders": {3: GroupOffset(1234, 5678, "exact", "[red]"), 0: GroupOffset(7, None, "no_map")}}
    return GroupCheckpoints(group="shop", direction="forward", at=NOW, readiness=readiness, offsets=offsets, **more)


def view(*groups: GroupCheckpoints, **more: Any) -> GroupsView:
    return GroupsView(flow=FLOW, direction="forward", groups=groups, **more)


@pytest.mark.parametrize(
    ("group", "says"),
    [
        (shop(by="group"), "on eu-west it goes on by its own committed offsets, exactly where it is"),
        (shop(), "by the checkpoints"),
        (shop("behind", reread=1), "reads 1 record again"),
        (shop("ahead_of_replication", ahead=2_000), "2,000 upstream offsets"),
        (
            shop("out_of_range"),
            "beyond the end of the log on us-east, or on a partition that is not there. Its consumer",
        ),
        (shop("before_map"), "! A position of it has expired"),
        (shop("ahead_on_target", skip=1), "skip 1 record there. Its offsets there are its own"),
        (
            shop("ahead_on_target", skip=2_000, own={"orders": {0: (9,)}}),
            "skip 2,000 records there. Move it back: `mirrorless groups 'us-east->eu-west' --move-back shop --execute`",
        ),
        (shop("independent", reread=7), "its offsets on eu-west are not this flow's, and are not moved"),
        (shop("active_on_target"), "has members on eu-west"),
    ],
)
def test_a_readiness_is_shown_as_a_sentence(group: GroupCheckpoints, says: str) -> None:
    assert says in sentence(group, view(group))


@pytest.mark.parametrize(
    ("group", "grace_ms", "waits"),
    [
        (shop("behind", reread=1, left_at=NOW - 40_000), 300_000, True),
        (shop("behind", reread=1, left_at=NOW - 300_000), 300_000, False),
        (shop("behind", reread=1, left_at=NOW - 40_000), 0, False),
        (shop("behind", reread=1), 300_000, False),
        (shop("active_on_target", left_at=None), 300_000, False),
        (shop("ready", left_at=NOW - 40_000), 300_000, False),
    ],
)
def test_a_group_whose_members_have_just_left_is_shown_to_wait(
    group: GroupCheckpoints,
    grace_ms: int,
    waits: bool,  # noqa: FBT001 -- a parameter of the test
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(view(group, grace_ms=grace_ms), one=True, now=NOW)

    shown = " ".join(capsys.readouterr().out.split())
    why = "Its members left eu-west 40 s ago, and may be restarting: offsets are committed there 5 min after they left."
    assert (why in shown) == waits


REWOUND = shop("ahead_on_target", skip=9, own={"orders": {3: (5,)}})


@pytest.mark.parametrize(
    ("group", "needs"),
    [
        (shop("behind", reread=9), False),
        (shop("ahead_of_replication"), False),
        (shop("out_of_range"), False),
        (shop("active_on_target"), False),
        (shop("before_map"), True),
        (shop("ahead_on_target", skip=9, own={}), False),  # by its own reading there, without group sync
        (REWOUND, True),
    ],
)
def test_a_group_before_the_map_or_before_offsets_of_the_flow_needs_the_operator(
    group: GroupCheckpoints,
    needs: bool,  # noqa: FBT001 -- a parameter of the test
) -> None:
    assert need_operator([group]) == ["shop"] * needs


def test_a_group_that_would_skip_records_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    show(view(REWOUND), one=False, now=NOW)

    shown = capsys.readouterr().out
    assert "! shop would skip 9 records on eu-west: see --group shop" in shown
    assert "skips" in shown
