"""The pure decisions: what stands still, what is missing, which groups have moved, which digests hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import msgspec
import pytest

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Run
from mirrorless.failover.groups import verdicts
from mirrorless.failover.missing import Holdings, LaneHolding, holdings_of
from mirrorless.failover.report import is_clean, missing_of, report_of, summary
from mirrorless.failover.standstill import Standing
from mirrorless.failover.state import FailoverOrder, plan_of
from mirrorless.groups.checkpoints import GroupCheckpoints, GroupOffset, Readiness
from mirrorless.records.record_batch import Codec
from mirrorless.reports.page import render
from mirrorless.scheduled.runner import TaskReport
from mirrorless.topics.acls import MARK, Acl, deny, mark, to_create, to_delete, unguarded, without_fences
from mirrorless.topics.topic_state import TopicState
from tests.support.chains import FLOW, LANE, run
from tests.support.failover_world import DRILL, LOST, PLANNED, TOPICS, FailoverWorld
from tests.support.group_cluster import MARKER, settings

OTHER = Lane(FLOW, "orders", 1)


def group(readiness: Readiness, *, by: str = "group") -> GroupCheckpoints:
    return GroupCheckpoints(
        group="shop",
        direction="forward",
        at=1,
        readiness=readiness,
        offsets={"orders": {0: GroupOffset(5, 7, "exact")}},
        by=by,  # type: ignore[arg-type]  # one of two literals
    )


# Standing still


def test_ends_stand_still_from_the_last_look_that_found_one_elsewhere_or_a_transaction_open() -> None:
    place = ("orders", 0)
    standing = Standing(since=0).after({place: (0, 5, 5)}, 1_000)
    assert standing.seconds(3_000) == 2
    assert standing.after({place: (0, 5, 5)}, 3_000).seconds(6_000) == 5
    assert standing.after({place: (0, 6, 6)}, 3_000).seconds(6_000) == 3
    assert standing.after({place: (0, 4, 5)}, 3_000).moved == {place}
    assert standing.after({}, 3_000).since == 3_000
    assert standing.after({place: (0, 5, 5), ("orders", 1): (0, 0, 0)}, 3_000).moved == {("orders", 1)}


# Holdings


def test_what_is_missing_is_what_was_seen_beyond_the_position_and_an_end_that_nobody_has_seen_is_unknown() -> None:
    head = Head(generation=0, position=8, run=run(3, 8, (3, 20, 5)))
    found = holdings_of(
        {LANE: head, OTHER: Head(generation=0, position=4)}, {"orders": [11, 4]}, seen_at=5_000, now=9_000
    )
    assert [lane.missing for lane in found.lanes] == [3, 0]
    assert found.missing == 3
    assert found.copied_until == 2_000  # the newest record of the lane that is behind
    assert found.recovery_point_seconds == 7

    whole = holdings_of({LANE: head}, {"orders": [8]}, seen_at=5_000, now=9_000)
    assert (whole.missing, whole.recovery_point_seconds) == (0, 4), "it holds the lane up to then"

    unseen = holdings_of({LANE: Head(generation=0, position=8)}, {"orders": [-1]}, seen_at=0, now=9_000)
    assert (unseen.lanes[0].seen_end, unseen.recovery_point_seconds) == (None, None)


HOUR = 3_600_000
NOW = 100 * HOUR
SEEN = NOW - 20_000
ALL = LaneHolding(topic="orders", partition=0, position=10, copied_at=SEEN, written_at=SEEN, seen_end=10)
SOME = LaneHolding(topic="orders", partition=1, position=900, seen_end=5_000)
LAGGING = {
    "nothing is copied": ({"position": 0}, None),
    "its end was never seen": ({"seen_end": None}, None),
    "its records have no time": ({"written_at": NOW - 2 * HOUR}, 7_200),
    "a time of the future, and nothing since": (
        {"written_at": NOW - 2 * HOUR, "copied_at": NOW + 48 * HOUR},
        7_200,
    ),
    "a time of the future, while it lags": ({"written_at": NOW - 5_000, "copied_at": NOW + 48 * HOUR}, None),
    "it lags": ({"written_at": NOW - 5_000, "copied_at": NOW - 3 * HOUR}, 10_800),
    "its newest run is in doubt": ({"written_at": NOW - 2 * HOUR, "in_doubt": True}, None),
    "in doubt and complete": ({"position": 5_000, "in_doubt": True}, 20),
}


@pytest.mark.parametrize(("changes", "seconds"), LAGGING.values(), ids=LAGGING)
def test_a_recovery_point_is_never_too_small_and_not_known_where_nothing_shows_it(
    changes: dict[str, Any], seconds: float | None
) -> None:
    lane = msgspec.structs.replace(SOME, **changes)
    assert Holdings(lanes=(ALL, lane), seen_at=SEEN, lost_at=NOW).recovery_point_seconds == seconds
    assert Holdings(lanes=(ALL,), seen_at=SEEN, lost_at=NOW).recovery_point_seconds == 20


def lost(ends: dict[str, list[int]] | None, *, records: int = 10, gone: str = "") -> FailoverWorld:
    """A flow that has replicated some of 10 records of each lane, and whose source is lost 2 s after a look at it.

    Args:
        ends: that the look has stored; None: there was no look.
        records: that were replicated of each lane.
        gone: a topic that the source did not have any more.
    """
    world = FailoverWorld()
    world.produce(10)
    world.replicate(records)
    if ends is not None:
        now = world.clusters.now
        report = TaskReport(task="topics", at=now, ms=1, ok_at=now - 1_500, ok_ms=500)
        documents = {"topic-ends/0": msgspec.json.encode(ends), "task/topics": msgspec.json.encode(report)}
        for topic, count_ in TOPICS.items():
            state = TopicState(topic=topic, topic_id="1", partitions=count_, first_seen=1)
            state = msgspec.structs.replace(state, gone_at=2) if topic == gone else state
            documents[f"topic/{topic}"] = msgspec.json.encode(state)
        world.documents.write(FLOW, documents)
    world.lose_source()
    return world


SEEN_BY_THE_LOOK = "what was acknowledged after 1970-01-01 00:16:38 UTC is not known"
NEVER_SEEN = "what was acknowledged is not known, for the source's ends were never seen"


NOTHING = "Nothing is known to be missing; "
LOOKS: dict[str, tuple[dict[str, Any], str, float | None]] = {
    "all": ({"ends": {"orders": [10, 10], "payments": [10]}}, f"{NOTHING}{SEEN_BY_THE_LOOK}.", 2),
    "a topic was gone": ({"ends": {"orders": [10, 10]}, "gone": "payments"}, f"{NOTHING}{SEEN_BY_THE_LOOK}.", 2),
    "a topic was not seen": ({"ends": {"orders": [10, 10]}}, f"{NOTHING}{SEEN_BY_THE_LOOK}.", None),
    "no look": ({"ends": None}, f"{NOTHING}{NEVER_SEEN}.", None),
    "one is missing": (
        {"ends": {"orders": [10, 11], "payments": [10]}},
        f"1 thing to look at, below; {SEEN_BY_THE_LOOK}.",
        998,
    ),
}


@pytest.mark.parametrize(("look", "verdict", "seconds"), LOOKS.values(), ids=LOOKS)
def test_without_its_source_a_failover_says_what_is_not_known(
    look: dict[str, Any], verdict: str, seconds: float | None
) -> None:
    there = lost(**look)
    document = there.carry_out(LOST)

    report, totals = report_of(FLOW, document), summary(FLOW, document)
    assert report.verdict.endswith(verdict)
    assert not totals["clean"]
    assert totals["recovery_point_seconds"] == seconds
    assert (totals["known_until"] is None) == (NEVER_SEEN in verdict)
    page = render(report)
    assert "is not known" in page
    assert ("not known</dd>" in page.replace("\n", "")) == (totals["recovery_point_seconds"] is None)

    there.bring_source_back()
    assert is_clean(there.carry_out(None)), "a failback has seen both sides"


def test_a_lost_source_is_reported_by_the_ends_that_the_schedule_has_stored() -> None:
    """Without Spark, and without the source: the ends and their time are in the target's region already."""
    world = lost({"orders": [11, 11], "payments": [11]}, records=4)

    document = world.carry_out(LOST)

    missing = missing_of(document)
    assert missing[0] == "orders-0: 7 upstream offsets from 4 on were on the source and are not here"
    assert len(missing) == 3
    assert summary(FLOW, document)["recovery_point_seconds"] is not None
    assert "7 upstream offsets" in render(report_of(FLOW, document))


def test_a_drill_counts_records_and_not_the_markers_behind_them() -> None:
    world = FailoverWorld()
    world.produce(5, 5)  # each transaction leaves a marker
    world.replicate()

    drilled = world.carry_out(DRILL, clock=count(world.clusters.now).__next__)  # it goes on meanwhile
    assert summary(FLOW, drilled)["recovery_point_seconds"] == 0
    world.produce(1)
    assert len(missing_of(world.carry_out(DRILL))) == len(world.lanes)


# Groups


@pytest.mark.parametrize(
    ("readiness", "by", "planned", "lost"),
    [
        ("ready", "group", "moved", "moved"),
        ("ready", "checkpoint", "waits", "waits"),
        ("ahead_of_replication", "group", "waits", "moved"),
        ("ahead_of_replication", "checkpoint", "waits", "waits"),
        ("behind", "group", "waits", "waits"),
        ("independent", "group", "left", "left"),
        ("active_on_target", "group", "left", "left"),
        ("before_map", "checkpoint", "left", "left"),
        ("out_of_range", "group", "moved", "moved"),
        ("out_of_range", "checkpoint", "left", "left"),
        ("ahead_on_target", "group", "left", "left"),
    ],
)
def test_a_group_has_moved_once_its_own_offsets_are_there(
    readiness: Readiness, by: str, planned: str, lost: str
) -> None:
    assert [verdicts([group(readiness, by=by)], mode)[0].fate for mode in ("planned", "source-lost")] == [planned, lost]


def test_a_group_that_still_reads_on_the_source_is_named() -> None:
    (found,) = verdicts([group("ready")], "planned", active_on_source={"shop"})
    assert (found.fate, found.offsets) == ("moved", {"orders": {0: 7}})
    assert "members on the source" in found.why


def test_members_that_have_just_left_the_target_are_not_waited_for() -> None:
    """An operator who fails over has stopped them: the grace period of the schedule is five minutes."""
    world = FailoverWorld.of(10, settings=settings(topics=tuple(TOPICS), grace=600.0))
    for lane in world.lanes:
        world.clusters.read(world.clusters.source, "shop", lane, 6, past=False)
    world.clusters.target.members = {"shop"}
    world.clusters.target.offsets["shop"] = {}
    world.clusters.act()
    world.clusters.target.members = set()
    world.clusters.act()
    assert world.clusters.document("shop").left_at
    began = world.clusters.now

    world.carry_out(PLANNED)

    assert world.clusters.document("shop").readiness == "ready"
    assert world.clusters.now - began < 60_000


STAYS = "stays for its session time-out"


@pytest.mark.parametrize(
    ("side", "order", "static", "goes_after", "fate", "named", "seconds"),
    [
        pytest.param("source", PLANNED, True, 45, "moved", "", (45, 80), id="closed on the source"),
        pytest.param("target", PLANNED, True, 45, "moved", "", (45, 80), id="closed on the target"),
        pytest.param("target", LOST, True, 45, "moved", "", (45, 80), id="closed on the target, source lost"),
        pytest.param("source", PLANNED, True, None, "moved", STAYS, (0, 240), id="one stays on the source"),
        pytest.param("target", PLANNED, True, None, "waits", STAYS, (0, 240), id="one stays on the target"),
        pytest.param("source", PLANNED, False, None, "moved", "stop them", (0, 60), id="not static"),
    ],
)
def test_static_members_that_were_closed_are_waited_for_and_those_that_stay_are_named(
    side: str,
    order: FailoverOrder,
    fate: str,
    named: str,
    seconds: tuple[int, int],
    *,
    static: bool,
    goes_after: int | None,
) -> None:
    world = FailoverWorld.of(10)
    clusters = world.clusters
    groups = clusters.source if side == "source" else clusters.target
    groups.static |= {"shop"} if static else set()
    for lane in world.lanes:
        clusters.read(clusters.source, "shop", lane, 6, past=False)
    clusters.target.offsets.setdefault("shop", {})
    groups.members.add("shop")
    clusters.act()
    began = clusters.now

    def pass_time() -> None:
        if goes_after is not None and clusters.now >= began + goes_after * 1000:
            groups.members.discard("shop")

    world.meanwhile = pass_time
    if order.mode == "source-lost":
        world.lose_source()

    document = world.carry_out(order)

    assert [each["fate"] for each in document.facts("groups")["groups"]] == [fate]
    sentences = [each for each in missing_of(document) if "shop" in each]
    assert len(sentences) == bool(named)
    assert all(named in each and (STAYS in each) is static for each in sentences)
    assert any(STAYS in each for each in world.said) is static
    assert seconds[0] * 1000 <= clusters.now - began < seconds[1] * 1000


# Digests


CODECS: list[tuple[Codec | None, ...]] = [
    (None, None, None),
    ("none", "none", "none"),
    ("zstd", "gzip", "snappy"),
    (None, "lz4", "none"),
]
"""Of each lane; None: it is copied by records."""


def copied(*codecs: Codec | None) -> FailoverWorld:
    """Lanes whose newest run is of two rows of records, with another's record and a marker between them."""
    world = FailoverWorld()
    world.codecs = {lane: codec for lane, codec in zip(world.lanes, codecs, strict=True) if codec is not None}
    world.produce(3, 2)
    world.replicate(2)
    world.replicate()
    for lane in world.lanes:
        log = world.clusters.target_log(lane)
        (link,) = [each for each in world.clusters.chains.of(lane) if isinstance(each, Run) and each.position == 2]
        assert [(span.downstream, span.length) for span in link.spans] == [(3, 1), (4, 2)]
        log[4:4] = [MARKER, 1_000_000]
        apart = replace(link, spans=(link.spans[0], replace(link.spans[1], downstream=6)))
        world.clusters.chains.replace_link(link, world.proved(apart))
    return world


@pytest.mark.parametrize("codecs", CODECS, ids=lambda codecs: "-".join(map(str, codecs)))
def test_the_digest_of_each_run_is_proved_by_what_it_is_of(codecs: tuple[Codec | None, ...]) -> None:
    world = copied(*codecs)
    for lane in world.lanes:
        log = world.clusters.source_log(lane)
        log[:] = [MARKER] * len(log)  # retention has taken the records from the source

    document = world.carry_out(PLANNED)

    assert missing_of(document) == []
    assert (document.facts("prove")["proved"], document.facts("prove")["wrong"]) == (3, {})


@pytest.mark.parametrize("codecs", CODECS, ids=lambda codecs: "-".join(map(str, codecs)))
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda log: log.__setitem__(6, log[6] + 1_000_000), "the digest of its newest run does not hold"),
        (lambda log: log.__setitem__(6, MARKER), "1 record of its newest run is not there: retention, compaction, or"),
        (lambda log: log.__delitem__(slice(6, None)), "2 records of its newest run are not there"),
    ],
    ids=["changed", "one is gone", "the end is gone"],
)
def test_what_was_changed_or_is_gone_on_the_target_is_in_the_report(
    change: Callable[[list[int]], None], said: str, codecs: tuple[Codec | None, ...]
) -> None:
    world = copied(*codecs)
    for lane in world.lanes[:2]:
        change(world.clusters.target_log(lane))

    missing = missing_of(world.carry_out(PLANNED))

    assert [sentence.partition(": ")[0] for sentence in missing] == list(map(str, world.lanes[:2]))
    assert all(said in sentence for sentence in missing)


def test_a_run_in_other_batches_than_were_produced_is_proved_by_the_records_of_the_source() -> None:
    """As a failback joins it, which packs anew what it cannot pass; and what was changed is still found."""
    world = copied("lz4", "lz4", None)
    world.codecs[world.lanes[0]] = world.codecs[world.lanes[1]] = "none"
    world.clusters.target_log(world.lanes[1])[6] += 1_000_000

    missing = missing_of(world.carry_out(PLANNED))

    assert missing == [f"{world.lanes[1]}: the digest of its newest run does not hold"]


# Fences


def test_a_fence_is_complete_only_with_its_mark_and_a_half_one_is_completed_or_lifted() -> None:
    none, ours, theirs = frozenset[Acl](), frozenset({mark("orders")}), frozenset({deny("orders")})
    assert to_create(["orders"], none) == (ours, theirs)
    assert to_create(["orders"], ours) == (none, theirs)
    assert to_create(["orders"], theirs) == (none, none)  # another's
    assert to_delete(["orders"], theirs) == (none, none)
    assert to_delete(["orders"], ours) == (none, ours)
    assert without_fences({mark("orders"), deny("orders"), deny("payments")}) == {deny("payments")}
    assert mark("orders").principal == MARK


@pytest.mark.parametrize(
    ("pattern", "name", "without"),
    [("LITERAL", "orders", []), ("LITERAL", "*", []), ("PREFIXED", "ord", []), ("LITERAL", "ord", ["orders"])],
)
def test_a_topic_is_guarded_by_any_acl_that_applies_to_it(pattern: str, name: str, without: list[str]) -> None:
    acl = Acl("TOPIC", pattern, name, "User:a", "*", "ALLOW", "READ")
    assert unguarded(["orders"], {acl}) == without


@pytest.mark.parametrize("order", [PLANNED, LOST, DRILL], ids=lambda order: order.mode)
def test_a_remote_topic_with_more_partitions_is_warned_of_before_anything_is_changed(order: FailoverOrder) -> None:
    narrower = FailoverWorld(wider={"orders": -1}).command(PLANNED)
    narrower.prepare()
    assert narrower.warnings == []
    world = FailoverWorld.of(3, wider={"orders": 3})
    world.clusters.target_topics.logs["us-east.orders", 4] = [1, 2, MARKER]
    if order.mode == "source-lost":
        world.lose_source()
    command = world.command(order)

    command.prepare()

    (warning,) = command.warnings
    assert warning == (
        "us-east.orders has 5 partitions, and orders on us-east 2: what producers write to the others does not come "
        "back; 3 offsets in them now. Give orders 5 partitions on us-east first, or let producers write to the first "
        "2 only"
    )
    document = command.execute()
    assert warning in [text for section in report_of(FLOW, document).sections for text in section.text]


def test_a_failback_warns_of_what_stays_and_its_table_has_it() -> None:
    world = FailoverWorld.of(3, wider={"payments": 1})
    world.carry_out(PLANNED)
    left = {"topic": "payments", "partition": 1, "on_target": 14, "new": 14, "copied_back": 0, "policy": "report"}
    left["differs"] = "14 records of us-east.payments-1 stay there"
    world.jobs.left = [left]
    command = world.command(None)
    command.prepare()
    assert [each for each in command.warnings if "what was written to the others stays there; 0 offsets" in each]

    document = command.execute()

    assert missing_of(document) == ["payments-1: 14 records of us-east.payments-1 stay there"]
    tables = [each for section in report_of(FLOW, document).sections for each in section.tables]
    (table,) = [each for each in tables if "orphans" in each.columns]
    assert table.rows[0][: table.columns.index("orphans")] == ("payments-1", 14, 0, 14)
    assert table.tones[0] == "bad"


def test_a_plan_numbers_its_steps_and_says_which_are_done() -> None:
    document = FailoverWorld.of(1).carry_out(PLANNED)

    plan = plan_of(FLOW, PLANNED, 2, document, back=False)

    assert [each.number for each in plan] == list(range(1, 10))
    assert all(each.done for each in plan)
    assert not any(each.done for each in plan_of(FLOW, PLANNED, 2, document, back=True))
