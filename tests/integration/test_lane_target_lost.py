"""A target that was re-created or has lost records: what a look at it finds, and how the lane stops and resumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

import pytest

from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.adapters.kafka.target import KafkaTarget
from mirrorless.flow.naming import LOOK_GROUP
from mirrorless.flow.settings import FlowSettings
from mirrorless.lanes.operator_actions import plan_reset
from mirrorless.ports.kafka import OffsetAndMetadata, Target
from mirrorless.protocol.map_reads import MapReads
from mirrorless.protocol.translate import OffsetMap
from mirrorless.records.record import Record
from tests.support.clusters import Entry, MemoryCluster, MemoryTarget
from tests.support.lane_stage import LaneStage
from tests.support.readback import await_settled
from tests.support.topics import delete_before

pytestmark = pytest.mark.integration

RECORDS = [Record(offset=i, timestamp=1_700_000_000_000 + i, headers=[], key=b"k", value=b"%d" % i) for i in range(3)]


def deadline() -> float:
    return 30.0


# The look, on the real cluster and on the one in memory, so that tests on the latter are evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A target with one topic of three partitions."""

    topic: str
    target: Target
    delete: Callable[[], None]
    create: Callable[[], None]
    settle: Callable[[], None]
    """Wait until the marker of an ended transaction is in the log."""
    expire: Callable[[int], None]
    """Let retention remove what stands below an offset of partition 0."""

    def write(self, *, then: str, partition: int = 0) -> list[int]:
        """Write the records in a transaction, and commit, abort or leave it. Returns their downstream offsets."""
        writer = self.target.writer(deadline)
        offsets = list(writer.write({(self.topic, partition): RECORDS}, deadline)[self.topic, partition].downstream)
        if then == "commit":
            writer.commit(deadline)
        if then == "abort":
            writer.abort(deadline)
        if then != "leave open":
            self.settle()
        return offsets

    def look(self, offset: int) -> object:
        """What stands there."""
        return self.target.look({(self.topic, 0): offset}, deadline)[self.topic, 0]


@pytest.fixture(params=["memory", "kafka"])
def side(request: pytest.FixtureRequest) -> Side:
    topic = f"look-{uuid4().hex[:8]}"
    if request.param == "memory":
        cluster = MemoryCluster({topic: [[], [], []]})
        return Side(
            topic=topic,
            target=MemoryTarget(cluster, "environment"),
            delete=cluster.topics.clear,
            create=lambda: cluster.topics.update({topic: [[], [], []]}),
            settle=lambda: None,
            expire=lambda offset: _forget_records(cluster.topics[topic][0][:offset]),
        )
    settings: FlowSettings = request.getfixturevalue("flow_settings")
    clusters: tuple[KafkaCluster, KafkaCluster] = request.getfixturevalue("clusters")
    stage: LaneStage = request.getfixturevalue("stage")
    stage.create(clusters[1], topic, partitions=3)
    return Side(
        topic=topic,
        target=KafkaTarget(settings, environment=uuid4().hex),
        delete=lambda: stage.delete(clusters[1], topic),
        create=lambda: stage.create(clusters[1], topic, partitions=3),
        settle=lambda: await_settled(clusters[1].bootstrap, topic),
        expire=lambda offset: delete_before(clusters[1].bootstrap, topic, offset),
    )


def _forget_records(entries: Sequence[Entry]) -> None:
    for entry in entries:
        entry.record = None


@pytest.mark.parametrize(
    ("then", "seen"),
    [("commit", [b"0", b"1", b"2"]), ("abort", ["absent"] * 3), ("leave open", ["unsettled"] * 3)],
)
def test_a_look_finds_a_committed_record_and_tells_the_others_apart(side: Side, then: str, seen: list[object]) -> None:
    found = [side.look(offset) for offset in side.write(then=then)]

    assert [each.value if isinstance(each, Record) else each for each in found] == seen


def test_a_look_at_a_place_without_a_record_does_not_take_it_for_an_aborted_one(side: Side) -> None:
    offsets = side.write(then="commit")
    side.write(then="commit")

    assert side.look(offsets[-1] + 1) == "expired"  # a marker; compaction leaves the same


def test_a_look_below_the_beginning_of_the_log_finds_what_retention_left(side: Side) -> None:
    offsets = side.write(then="commit")
    side.expire(offsets[1])

    assert side.look(offsets[0]) == "expired"
    assert isinstance(side.look(offsets[1]), Record)


@pytest.mark.parametrize("side", ["kafka"], indirect=True)
def test_a_look_commits_no_offset(flow_settings: FlowSettings, side: Side) -> None:
    side.look(side.write(then="commit")[0])

    groups = KafkaGroups(flow_settings.target, flow=flow_settings.flow)
    assert not groups.committed([LOOK_GROUP], deadline).get(LOOK_GROUP)


def test_a_look_beyond_the_end_says_that_the_log_ends_before(side: Side) -> None:
    side.write(then="commit")

    assert [side.look(4), side.look(1_000)] == ["ended", "ended"]


def test_one_look_at_several_partitions_says_of_each_what_stands_there(side: Side) -> None:
    committed = side.write(then="commit")
    aborted = side.write(then="abort", partition=1)
    opened = side.write(then="leave open", partition=2)

    offsets = {
        (side.topic, 0): committed[1],
        (side.topic, 1): aborted[1],
        (side.topic, 2): opened[1],
        (side.topic, 3): 0,
    }
    seen = side.target.look(offsets, deadline)

    first = seen.pop((side.topic, 0))
    assert isinstance(first, Record)
    assert first.value == b"1"
    assert seen == {(side.topic, 1): "absent", (side.topic, 2): "unsettled", (side.topic, 3): "ended"}


def test_a_look_into_a_topic_that_is_gone_or_new_says_that_the_log_ends_before(side: Side) -> None:
    offsets = side.write(then="commit")

    side.delete()
    assert side.look(offsets[0]) == "ended"
    side.create()
    assert side.look(offsets[0]) == "ended"


def _reset(stage: LaneStage, *, to: int) -> None:
    """The writes of `lanes reset`."""
    lane = stage.lane()
    state, head = stage.orders.read([lane])[lane], stage.chains.heads([lane])[lane]
    plan = plan_reset(lane, head, state, to, reason="the remote topic was created again", now=1)
    stage.chains.reset(plan.link, plan.given_up)
    stage.orders.begin_anew(lane)


# A loss that no doubt brings to light


def test_a_remote_topic_created_again_between_two_batches_stops_its_lanes(stage: LaneStage) -> None:
    stage.create(stage.source, stage.topic)
    stage.write(*[b"%d" % number for number in range(10)])
    environment = stage.environment()
    stage.replicate(environment, stage.event(p0=[*range(8)]))
    offset_map = OffsetMap(MapReads(chains=stage.chains, stops=stage.orders.read))
    groups, group = KafkaGroups(stage.settings.target, flow=stage.settings.flow), f"g-{stage.topic}"
    groups.commit(group, {(stage.remote_topic, 0): OffsetAndMetadata(4)}, deadline)
    assert offset_map.downstream(stage.lane(), 4).state == "exact"

    stage.delete(stage.target, stage.remote_topic)
    stage.create(stage.target, stage.remote_topic)
    # So whatever stands there later was committed since.
    assert not groups.committed([group], deadline).get(group)
    outcome = stage.deliver(stage.event(p0=[8, 9]), environment)

    stop = outcome.stopped[stage.topic, 0]
    assert (stop.reason, stop.upstream_offset) == ("broken", 0)
    assert "the map has one at 7" in stop.detail
    assert stage.values() == []
    assert offset_map.downstream(stage.lane(), 4).state == offset_map.upstream(stage.lane(), 4).state == "map_lost"

    _reset(stage, to=0)
    assert stage.deliver(stage.event(), environment).stopped == {}
    assert stage.values() == [b"%d" % number for number in range(10)]
    assert offset_map.downstream(stage.lane(), 4).state == "exact"
