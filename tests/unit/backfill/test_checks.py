"""The refusals, warnings and notes of a backfill before it begins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mirrorless.backfill.checks import LaneFacts, TopicFacts, check_all
from mirrorless.backfill.plan import RequestedRange, resolve
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import BackfillOptions, Bound
from mirrorless.lane_state import Lease, Stop

DAY = 86_400_000
NOW = 1_800_000_000_000

LANE = LaneFacts(
    topic="orders",
    partition=3,
    requested=RequestedRange(first=0, range=OffsetRange(0, 1000)),
    extent=OffsetRange(0, 1000),
    oldest=NOW - 30 * DAY,
    bytes=5_000_000,
)
TOPIC = TopicFacts(
    topic="orders", write_topic="us.orders", source={"retention.ms": "-1"}, target={"retention.ms": "-1"}
)


def found(
    lane: LaneFacts = LANE, topic: TopicFacts = TOPIC, options: BackfillOptions | None = None
) -> list[tuple[str, str]]:
    """The findings as severity and check."""
    checked = check_all(
        [lane], [topic], options or BackfillOptions(), replication_factor=3, holder="backfill-1", now=NOW
    )
    return [(each.severity, each.check) for each in checked]


def test_nothing_is_said_of_a_lane_that_nothing_stands_against() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ({"retention.ms": "-1"}, {"retention.ms": str(7 * DAY)}, [("refuse", "retention.ms")]),
        ({"retention.ms": str(7 * DAY)}, {"retention.ms": str(7 * DAY)}, [("info", "retention.ms")]),
        ({"retention.ms": "-1"}, {"retention.ms": str(31 * DAY)}, []),
        ({}, {"retention.ms": str(7 * DAY), "cleanup.policy": "compact"}, [("refuse", "cleanup.policy")]),
        ({}, {"retention.bytes": "1000000"}, [("refuse", "retention.bytes")]),
        ({}, {"message.timestamp.before.max.ms": str(DAY)}, [("refuse", "message.timestamp.before.max.ms")]),
        ({}, {"message.timestamp.type": "LogAppendTime"}, [("warn", "message.timestamp.type")]),
        ({"max.message.bytes": "2"}, {"max.message.bytes": "1"}, [("warn", "max.message.bytes")]),
        ({"retention.ms": str(DAY)}, None, [("info", "retention.ms")]),
    ],
)
def test_a_target_that_would_not_keep_or_take_the_records_is_named(
    source: dict[str, str], target: dict[str, str] | None, expected: list[tuple[str, str]]
) -> None:
    assert found(topic=replace(TOPIC, source=source, target=target)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"position": 400, "begins": 0}, []),
        ({"position": 1000}, []),
        ({"position": 1001}, [("refuse", "source")]),
        ({"position": 400, "begins": 300, "before": True}, [("refuse", "live lane")]),
        ({"position": 400, "begins": 300, "before": True, "generation": 1}, [("info", "live lane")]),
        (
            {"position": 400, "requested": RequestedRange(first=600, range=OffsetRange(600, 1000))},
            [("refuse", "start")],
        ),
        (
            {"extent": OffsetRange(500, 1000), "requested": RequestedRange(first=200, range=OffsetRange(500, 1000))},
            [("refuse", "start")],
        ),
        (
            {
                "position": 400,
                "extent": OffsetRange(500, 1000),
                "requested": RequestedRange(first=500, range=OffsetRange(500, 1000)),
            },
            [("warn", "retention")],
        ),
        ({"stop": Stop(reason="refused", upstream_offset=7, detail="", at=0)}, [("refuse", "stopped")]),
        ({"stop": Stop(reason="backfilled", upstream_offset=7, detail="", at=0)}, []),
        ({"lease": Lease(holder="another", until=NOW + 1)}, [("refuse", "lease")]),
        ({"lease": Lease(holder="another", until=NOW)}, []),
        ({"lease": Lease(holder="backfill-1", until=NOW + 1)}, []),
    ],
)
def test_a_lane_that_cannot_take_its_history_in_order_is_refused(
    changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert found(replace(LANE, **changes)) == expected


def test_space_counts_every_copy_of_the_target() -> None:
    assert found(options=BackfillOptions(free_gb=0.016)) == []
    assert found(options=BackfillOptions(free_gb=0.014)) == [("refuse", "free space")]


def test_history_does_not_go_into_a_remote_topic_and_live_lanes_do_not_hinder_it() -> None:
    into = BackfillOptions(into="history")
    assert found(replace(LANE, position=400, begins=300, before=True), options=into) == []
    assert found(topic=replace(TOPIC, is_remote=True), options=into) == [("refuse", "into")]


@pytest.mark.parametrize(
    ("start", "end", "at", "expected"),
    [
        (Bound("earliest"), Bound("latest"), (None, None), (5, 5, 90)),
        (Bound("offset", 10), Bound("offset", 50), (None, None), (10, 10, 50)),
        (Bound("offset", 1), Bound("offset", 500), (None, None), (1, 5, 90)),
        (Bound("timestamp", 1), Bound("timestamp", 2), (20, 40), (20, 20, 40)),
        (Bound("timestamp", 1), Bound("timestamp", 2), (20, -1), (20, 20, 90)),
        (Bound("timestamp", 1), Bound("latest"), (-1, None), (90, 90, 90)),
        (Bound("offset", 60), Bound("offset", 50), (None, None), (60, 60, 60)),
    ],
)
def test_bounds_become_offsets_that_readers_see(
    start: Bound, end: Bound, at: tuple[int | None, int | None], expected: tuple[int, int, int]
) -> None:
    requested = resolve(start, end, OffsetRange(5, 90), start_at=at[0], end_at=at[1])
    assert (requested.first, requested.range.first, requested.range.next) == expected
