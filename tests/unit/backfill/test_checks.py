"""The refusals, warnings and notes of a backfill before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from mirrorless.backfill.checks import LaneFacts, TopicFacts, check_all, expires_at
from mirrorless.backfill.handover import HandoverState, next_step, step_at_exact_end
from mirrorless.backfill.plan import RequestedRange, copy_order, make_plan, resolve
from mirrorless.chain.lane_state import Lease, Stop
from mirrorless.errors import Retriable
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.plan import CheckFinding, PlannedLane
from mirrorless.jobs.request import BackfillOptions, Bound, JobRequest
from mirrorless.ports.kafka import TopicPartition
from spark.jobs.backfill.plan import PEEKED, BackfillFacts
from tests.support.flows import make_flow

DAY = 86_400_000
NOW = 1_800_000_000_000
NEWER = OffsetRange(500, 1000)

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


def part(first: int, held: OffsetRange) -> RequestedRange:
    """What is asked for from an offset on, of what the log holds."""
    return RequestedRange(first=first, range=held)


def checked(*lanes: LaneFacts, topic: TopicFacts = TOPIC, options: BackfillOptions | None = None) -> list[CheckFinding]:
    how = options or BackfillOptions()
    return list(check_all(lanes, [topic], how, replication_factor=3, holder="backfill-1", now=NOW))


def found(
    lane: LaneFacts = LANE, topic: TopicFacts = TOPIC, options: BackfillOptions | None = None
) -> list[tuple[str, str]]:
    """The findings as severity and check."""
    return [(each.severity, each.check) for each in checked(lane, topic=topic, options=options)]


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
        ({"position": 400, "requested": part(600, OffsetRange(600, 1000))}, [("refuse", "start")]),
        ({"extent": NEWER, "requested": part(200, NEWER)}, [("refuse", "start")]),
        ({"position": 400, "extent": NEWER, "requested": part(500, NEWER)}, [("warn", "retention")]),
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
    assert found(replace(LANE, position=400, begins=0, live=700), options=into) == []
    assert found(topic=replace(TOPIC, is_remote=True), options=into) == [("refuse", "into")]


@pytest.mark.parametrize("into", [None, "history"])
def test_nothing_is_written_behind_records_of_others_unless_that_is_said(into: str | None) -> None:
    lanes = [replace(LANE, partition=partition, foreign=at) for partition, at in ((0, None), (1, 40))]

    (refused,) = checked(*lanes, options=BackfillOptions(into=into, force=True))
    (said,) = checked(*lanes, options=BackfillOptions(into=into, beside=True))

    assert (refused.severity, refused.check, refused.where) == ("refuse", "foreign records", "us.orders")
    assert "partition and downstream offset 1 @ 40 on" in refused.text
    assert "`--beside`" in refused.text
    assert said.severity == "info"


def asked(first: int, end: int, *, extent: tuple[int, int] = (0, 1000), **changes: Any) -> LaneFacts:
    """A lane of whose log this is requested."""
    held = OffsetRange(*extent)
    return replace(LANE, requested=resolve(Bound("offset", first), Bound("offset", end), held), extent=held, **changes)


@pytest.mark.parametrize(
    ("lane", "expected"),
    [
        (asked(0, 300, position=800, begins=500, before=True), "name another topic"),
        (asked(600, 900, position=500, begins=0), "start at or below 500, or name another topic"),
        (asked(300, 500, position=800, begins=300), ""),  # all of it is there, from an earlier run
        (asked(500, 1000, position=500, begins=0), ""),
    ],
)
def test_a_topic_of_its_own_gets_its_history_in_order_or_the_job_is_refused(lane: LaneFacts, expected: str) -> None:
    """What lies below the chain, or is passed over by it, would not be copied, and nothing would say so."""
    options = BackfillOptions(start=Bound("offset", 1), end=Bound("offset", 2), into="history")
    findings = checked(lane, options=options)
    assert [each.severity for each in findings] == (["refuse"] if expected else [])
    assert expected in "".join(each.text for each in findings).lower()


@pytest.mark.parametrize("archive", [None, "s3://archive"])
@pytest.mark.parametrize("into", [None, "history"])
@pytest.mark.parametrize(
    ("start", "end", "at"),
    [
        (Bound("offset", 935), Bound("offset", 0), (None, None)),
        (Bound("offset", 935), Bound("timestamp", 1), (None, 200)),
        (Bound("timestamp", 9), Bound("offset", 10), (400, None)),
        (Bound("timestamp", 1), Bound("timestamp", 2), (400, 400)),  # silence
        (Bound("timestamp", 1), Bound("latest"), (-1, None)),  # the future
        (Bound("earliest"), Bound("earliest"), (None, None)),
        (Bound("latest"), Bound("latest"), (None, None)),
    ],
)
def test_a_job_with_nothing_between_its_bounds_is_refused(
    start: Bound, end: Bound, at: tuple[int | None, int | None], into: str | None, archive: str | None
) -> None:
    requested = resolve(start, end, LANE.extent, start_at=at[0], end_at=at[1])
    lane, options = replace(LANE, requested=requested), BackfillOptions(start, end, archive=archive, into=into)
    (finding,) = checked(lane, options=options)
    assert (finding.severity, finding.check) == ("refuse", "range")
    assert "0 to 999" in finding.text

    (beside,) = checked(lane, LANE, options=options)
    assert (beside.severity, beside.check) == ("info", "range")  # another lane has something


def test_history_up_to_a_lane_that_has_all_is_refused_with_an_end_that_works() -> None:
    """`latest` is where the flow's own lane begins: with --into nothing would be copied, and nothing said."""
    into = BackfillOptions(into="history")
    whole = resolve(Bound("earliest"), Bound("latest"), LANE.extent)
    lane = replace(LANE, requested=whole.until(0), live=0)
    (refusal,) = checked(lane, options=into)
    assert refusal.severity == "refuse"
    assert "--to offset:1000" in refusal.text
    ordered = BackfillOptions(end=Bound("offset", 1000), into="history")
    lane = replace(LANE, requested=resolve(ordered.start, ordered.end, LANE.extent))
    assert checked(lane, options=ordered) == []


def test_logs_that_hold_nothing_are_handed_over_and_an_archive_that_holds_nothing_is_refused() -> None:
    nothing = OffsetRange(7, 7)
    lane = replace(LANE, requested=RequestedRange(first=7, range=nothing), extent=nothing, oldest=None)
    assert found(lane) == []
    assert found(lane, options=BackfillOptions(archive="s3://archive")) == [("refuse", "range")]


@pytest.mark.parametrize(("into", "expected"), [(None, ["refuse", "refuse"]), ("history", ["refuse"])])
def test_a_start_beyond_the_end_of_the_log_would_pass_over_what_comes(into: str | None, expected: list[str]) -> None:
    options = BackfillOptions(start=Bound("offset", 5_000), into=into)
    lane = replace(LANE, requested=resolve(options.start, options.end, LANE.extent))
    assert [each.severity for each in checked(lane, options=options)] == expected


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


OPTIONS = BackfillOptions()


@dataclass
class SlowPeek:
    """A source that shows half of what it is asked for in time, and of some partitions nothing."""

    silent: frozenset[TopicPartition] = frozenset()
    asked: list[int] = field(default_factory=list)

    def first_timestamps(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """See `KafkaPeek.first_timestamps`."""
        self.asked.append(len(places))
        shown = [place for place in places if place not in self.silent]
        return dict.fromkeys(shown[: len(shown) // 2 + 1], 7) if shown else {}


def oldest(monkeypatch: pytest.MonkeyPatch, peek: SlowPeek, lanes: int) -> Mapping[TopicPartition, int | None]:
    monkeypatch.setattr("spark.jobs.backfill.plan.KafkaPeek", lambda *_, **__: peek)
    unread = cast("Any", None)
    request = JobRequest(run_id="backfill-1", flow=make_flow(), topics=("orders",), options=OPTIONS)
    facts = BackfillFacts(request=request, options=OPTIONS, log=unread, chains=unread, states=unread)
    wanted = RequestedRange(first=0, range=OffsetRange(0, 10))
    return facts._oldest({("orders", partition): wanted for partition in range(lanes)}, {})


def test_what_one_look_does_not_show_in_time_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes that were not seen passed the check of the target's retention."""
    peek = SlowPeek()

    assert len(oldest(monkeypatch, peek, 2_500)) == 2_500
    assert max(peek.asked) == PEEKED


def test_a_lane_that_shows_nothing_ends_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Retriable, match="how old"):
        oldest(monkeypatch, SlowPeek(frozenset({("orders", 3)})), 5)


AT_THE_END = HandoverState(position=100, end=100, waiting=None, committed=None, group="active", quiet_seconds=0.0)


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"waiting": 100}, "waiting"),
        ({"waiting": 101, "end": 110}, "copy"),
        ({"waiting": 101, "end": 110, "committed": 90}, "copy"),
        ({"committed": 90}, "committed"),
        ({"committed": 105, "end": 110}, "copy"),
        ({"committed": 105, "end": 110, "group": "empty"}, "copy"),
        ({"group": "empty"}, "pin"),
        ({"group": "absent"}, "pin"),
        ({"group": "absent", "end": 101}, "copy"),
        ({}, "copy"),
        ({"quiet_seconds": 119.0}, "copy"),
        ({"quiet_seconds": 120.0}, "idle"),
        ({"quiet_seconds": 120.0, "end": 101}, "copy"),
    ],
)
def test_a_lane_that_goes_on_to_the_end_is_let_go_where_its_mapping_shows_itself(
    changes: dict[str, object], step: str
) -> None:
    assert next_step(replace(AT_THE_END, **changes), idle_after=120.0) == step  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"waiting": 100, "end": 500}, "waiting"),
        ({"waiting": 101, "end": 500}, "hold"),
        ({"committed": 100, "end": 500}, "committed"),
        ({"committed": 101, "end": 500}, "hold"),
        ({"end": 500}, "hold"),
        ({"end": 500, "group": "absent"}, "pin"),
        ({"quiet_seconds": 120.0}, "idle"),
    ],
)
def test_a_lane_that_ends_as_ordered_is_held_where_its_mapping_would_skip(
    changes: dict[str, object], step: str
) -> None:
    assert step_at_exact_end(replace(AT_THE_END, **changes), idle_after=120.0) == step  # type: ignore[arg-type]  # by name


MOMENT = 1_763_686_800_000
DAY = 86_400_000


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
    lanes = [
        lane(0, 10),
        lane(1, 30, MOMENT + DAY),
        lane(2, 20),
        lane(3, 1, MOMENT + 1_000),
        lane(4, 5, MOMENT - 1_000),
    ]
    plan = make_plan("backfill-1", "us-east->eu-west", lanes, [], at_a_time=2, max_mb_per_second=None, hands_over=True)
    assert 1 < plan.seconds < DAY / 1000
    assert [each.partition for each in copy_order(plan, now=MOMENT)] == [4, 3, 1, 2, 0]


def test_a_record_expires_by_the_time_limit_of_a_source_that_deletes() -> None:
    requested = RequestedRange(first=0, range=OffsetRange(0, 1))
    facts = LaneFacts(topic="orders", partition=0, requested=requested, extent=OffsetRange(0, 1), oldest=MOMENT)

    def topic(**source: str) -> TopicFacts:
        configs = {name.replace("_", "."): value for name, value in source.items()}
        return TopicFacts(topic="orders", write_topic="us-east.orders", source=configs, target=None)

    assert expires_at(facts, topic(retention_ms="1000", cleanup_policy="delete")) == MOMENT + 1000
    assert expires_at(facts, topic(retention_ms="1000", cleanup_policy="compact")) is None
    assert expires_at(facts, topic(retention_ms="-1", cleanup_policy="delete")) is None
