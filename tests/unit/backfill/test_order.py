"""The order in which a backfill begins its lanes."""

from __future__ import annotations

from mirrorless.backfill.checks import LaneFacts, TopicFacts, expires_at
from mirrorless.backfill.plan import RequestedRange, copy_order, make_plan
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.plan import PlannedLane

NOW = 1_763_686_800_000
DAY_MS = 86_400_000


def lane(partition: int, offsets: int, expires: int | None = None) -> PlannedLane:
    """A lane of a plan, that begins to lose records at a time."""
    return PlannedLane(
        topic="orders",
        partition=partition,
        lane_topic="orders",
        write_topic="us-east.orders",
        range=OffsetRange(0, offsets),
        position=0,
        offsets=offsets,
        bytes=0,
        expires_at=expires,
    )


def test_lanes_that_lose_records_during_the_job_come_first_and_then_the_longest() -> None:
    lanes = [lane(0, 10), lane(1, 30, NOW + DAY_MS), lane(2, 20), lane(3, 1, NOW + 1_000), lane(4, 5, NOW - 1_000)]
    plan = make_plan("backfill-1", "us-east->eu-west", lanes, [], at_a_time=2, max_mb_per_second=None, hands_over=True)
    assert 1 < plan.seconds < DAY_MS / 1000
    assert [each.partition for each in copy_order(plan, now=NOW)] == [4, 3, 1, 2, 0]


def test_a_record_expires_by_the_time_limit_of_a_source_that_deletes() -> None:
    requested = RequestedRange(first=0, range=OffsetRange(0, 1))
    facts = LaneFacts(topic="orders", partition=0, requested=requested, extent=OffsetRange(0, 1), oldest=NOW)

    def topic(**source: str) -> TopicFacts:
        configs = {name.replace("_", "."): value for name, value in source.items()}
        return TopicFacts(topic="orders", write_topic="us-east.orders", source=configs, target=None)

    assert expires_at(facts, topic(retention_ms="1000", cleanup_policy="delete")) == NOW + 1000
    assert expires_at(facts, topic(retention_ms="1000", cleanup_policy="compact")) is None
    assert expires_at(facts, topic(retention_ms="-1", cleanup_policy="delete")) is None
