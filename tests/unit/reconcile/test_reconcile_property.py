"""A reconcile joins both sides after an outage to one chain: property tests over random histories.

The real forwarder replicates on a cluster in memory, the same replicator copies back, and the join is the job's own.
The oracle lists both logs: records that are equal are pairs, in one order.

    source    r0 r1 | o2 o3 (marker) | b0 b1 ...        orphans, then what came back
    target    r0 r1 M (aborted) M | b0 b1 ...           what producers wrote there when the source was gone
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_struct

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head
from mirrorless.copy.job import JobCopy
from mirrorless.copy.lane import LaneCopy
from mirrorless.jobs.copy_task import CopyTask, OffsetRange
from mirrorless.protocol.event import Batch
from mirrorless.protocol.positions import Positions
from mirrorless.protocol.replicate import Replicator
from mirrorless.protocol.translate import OffsetMap
from mirrorless.reconcile.difference import Stretch, apart, claims_of, committed_runs, seen_in, unclaimed
from mirrorless.reconcile.inspect import LaneView, orphans_ahead
from mirrorless.reconcile.join import BackLaneJoin
from mirrorless.reconcile.tasks import (
    InspectTask,
    LaneInspection,
    LaneOrphans,
    LaneToJoin,
    OrphanTask,
    ReconciledLane,
    back_tasks,
)
from mirrorless.records.record import Record
from tests.support.batches import batch_of
from tests.support.chains import FLOW, LANE, MemoryChains, MemoryLaneStates, MemoryLossLedger
from tests.support.clusters import Entry, MemoryCluster, MemorySource, MemoryTarget, stable_offset
from tests.support.flows import make_flow
from tests.support.memory_log import MemoryLog as MemoryLogs
from tests.support.memory_log import MemoryPartition
from tests.support.tries import tries
from tests.support.verified_lane import MemoryLog

HERE, THERE = LANE.topic, f"us-east.{LANE.topic}"
T = 1_763_686_800_000
SETTINGS = make_flow(FLOW, source="a", target="b")


def log_of(cluster: MemoryCluster, topic: str) -> MemoryLog:
    """What readers see of a cluster now, in batches of up to five records that follow each other; chunks are small."""
    records = [replace_struct(each, offset=offset) for offset, each in cluster.visible(topic, 0)]
    found: list[list[Record]] = []
    for record in records:
        if found and found[-1][-1].offset + 1 == record.offset and len(found[-1]) < 5:
            found[-1].append(record)
        else:
            found.append([record])
    return MemoryLog(
        records={each.offset: each for each in records},
        next=stable_offset(cluster.topics[topic][0]),
        batches={some[0].offset: (batch_of(some, "lz4"), some) for some in found},
    )


@dataclass
class Outage:
    """One lane, its two logs, and everything that may happen to it."""

    chains: MemoryChains = field(default_factory=MemoryChains)
    ledger: MemoryLossLedger = field(default_factory=MemoryLossLedger)
    source: MemoryCluster = field(default_factory=lambda: MemoryCluster(topics={HERE: [[]]}))
    target: MemoryCluster = field(default_factory=lambda: MemoryCluster(topics={THERE: [[]]}))
    written: int = 0
    names: int = 0
    raw: bool = False
    """Whether both directions copy by whole batches."""

    def write(self, cluster: MemoryCluster, topic: str, kinds: list[bool]) -> list[int]:
        """Records, and between them hidden offsets; the offsets of the records."""
        log, offsets = cluster.topics[topic][0], []
        for visible in kinds:
            if visible:
                self.written += 1
                record = Record(len(log), T + self.written, [], b"k", b"%d" % self.written)
                offsets.append(len(log))
                log.append(Entry(record, "committed", ""))
            else:
                log.append(Entry(None, "marker", "somebody"))
        return offsets

    def replicate(self) -> None:
        """The live flow, from the source's first record on."""
        log = log_of(self.source, HERE)
        records, batches = [*log.records.values()], [batch for batch, _ in log.batches.values()]
        content, most = (batches, 2) if self.raw else (records, 4)
        for first in range(0, len(content), most):
            batch = Batch.of_topic(HERE, {0: content[first : first + most]})
            self._replicator(LANE, self.target, THERE).replicate(batch, request="live", deadline=lambda: 10.0)

    def reconcile(self, *, copy: bool = True, join: bool = True) -> LaneOrphans:
        """The job's steps; it may end after each."""
        inspection = self._view().inspect(InspectTask(settings=SETTINGS, topic=HERE, partition=0, remote_topic=THERE))
        assert not inspection.differs
        lane = inspection.lane(FLOW)
        if copy:
            self._copy_back(lane, inspection)
        found = self._view().orphans(
            OrphanTask(settings=SETTINGS, lane=lane, position=inspection.position, until=orphans_ahead(inspection))
        )
        if join:
            task = LaneToJoin(
                lane=lane,
                position=inspection.position,
                chain_end=inspection.chain_end,
                until=found.until,
                orphans=found.stretches,
                policy="report",
            )
            joining = BackLaneJoin(chains=self.chains, ledger=self.ledger, clock=lambda: T, request="reconcile-1")
            assert {joining.join(task) for _ in range(2)} == {self.chains.heads([LANE])[LANE].position}
        return found

    def _view(self) -> LaneView:
        """Of both logs as they are now."""
        return LaneView(
            chains=self.chains,
            states=MemoryLaneStates(),
            target=MemoryTarget(self.target, "look"),
            source_ends=lambda topic, _: (0, len(self.source.topics[topic][0]), len(self.source.topics[topic][0])),
            target_ends=lambda topic, _: (0, len(self.target.topics[topic][0]), len(self.target.topics[topic][0])),
            source_log=log_of(self.source, HERE),
            target_log=log_of(self.target, THERE),
        )

    def _copy_back(self, lane: ReconciledLane, inspection: LaneInspection) -> None:
        for task in back_tasks(SETTINGS, lane, inspection.late, inspection.tail, run_id="reconcile-1", files=""):
            self._copy(task)

    def _copy(self, task: CopyTask) -> None:
        """As a task of the job does it."""
        copier, own = self._replicator(task.lane, self.source, HERE), log_of(self.target, THERE)
        copier.examined, place = True, (task.lane_topic, 0)
        content = [batch for batch, _ in own.batches.values()] if self.raw else [*own.records.values()]
        read = MemoryLogs({place: MemoryPartition(content, end=own.next)})
        (result,) = JobCopy(
            replicator=copier,
            log=read,
            lanes={place: LaneCopy(task=task, replicator=copier, log=own, clock=lambda: T)},
            clients=lambda _: (copier, read),
            engine="batches" if self.raw else "records",
            request=task.run_id,
            clock=lambda: T,
            monotonic=partial(next, count(0.0, 0.01)),
        ).run()
        assert result.state == "done", result.error

    def _replicator(self, lane: Lane, cluster: MemoryCluster, topic: str) -> Replicator:
        self.names += 1
        target = MemoryTarget(cluster, f"writer-{self.names}")
        return Replicator(
            flow=lane.flow,
            delivery="exactly_once",
            remote_topic=lambda _: topic,
            chains=self.chains,
            positions=Positions(chains=self.chains, states=MemoryLaneStates(), target=target, clock=lambda: T),
            ledger=self.ledger,
            target=target,
            source=MemorySource(1),
            clock=lambda: T,
            new_id=lambda: f"attempt-{self.names}",
            terms=lambda _: target.terms(),
        )

    # The oracle

    def values(self, cluster: MemoryCluster, topic: str) -> list[tuple[int, bytes | None]]:
        """Visible records: offset and value, which is unique."""
        return [(offset, record.value) for offset, record in cluster.visible(topic, 0)]


kinds = st.lists(st.booleans(), max_size=12)


@given(
    before=kinds,
    orphans=kinds,
    new=kinds,
    after=kinds,
    crash=st.sampled_from(["", "copied", "looked"]),
    raw=st.booleans(),
)
@settings(max_examples=tries(60, many=200))
def test_after_a_join_every_record_is_accounted_for_and_translates_both_ways(
    before: list[bool],
    orphans: list[bool],
    new: list[bool],
    after: list[bool],
    crash: str,
    *,
    raw: bool,
) -> None:
    outage = Outage(raw=raw)
    outage.write(outage.source, HERE, before)
    outage.replicate()
    made = outage.write(outage.source, HERE, orphans)
    outage.write(outage.target, THERE, new)
    if crash:
        outage.reconcile(copy=crash == "copied", join=False)
        outage.write(outage.target, THERE, after)  # producers that had not stopped yet
    outage.reconcile()

    # The mapping delivers everything once more, and what is written from now on.
    outage.write(outage.source, HERE, after)
    outage.replicate()

    here, there = outage.values(outage.source, HERE), outage.values(outage.target, THERE)
    assert [value for offset, value in here if offset not in made] == [value for _, value in there]
    stretches = [range(each.first, each.next) for each in outage.ledger.losses.values()]
    assert all(each.cause == "orphaned" for each in outage.ledger.losses.values())
    noted = [offset for offset, _ in here if any(offset in each for each in stretches)]
    assert noted == made

    place = {value: offset for offset, value in there}
    offsets = OffsetMap(outage.chains)
    for offset, value in here:
        if offset not in made:
            found = offsets.downstream(LANE, offset)
            assert (found.state, found.offset) == ("exact", place[value])
            back = offsets.upstream(LANE, place[value])
            assert (back.state, back.offset) == ("exact", offset)
    runs = list(committed_runs(outage.chains, LANE))
    downstream = [span.downstream for run in runs for span in run.spans]
    assert downstream == sorted(downstream)  # invariant D
    assert [run.position for run in runs[1:]] == [run.next for run in runs[:-1]]  # invariant C


@given(before=kinds, new=kinds, late=kinds, raw=st.booleans())
@settings(max_examples=tries(40, many=100))
def test_what_the_forwarder_brought_over_late_keeps_its_place_and_what_it_cannot_be_ordered_with_is_left_unmapped(
    before: list[bool], new: list[bool], late: list[bool], *, raw: bool
) -> None:
    """The lanes were not held: the source came back, and the flow continued behind what producers had written."""
    outage = Outage(raw=raw)
    outage.write(outage.source, HERE, [*before, True])
    outage.replicate()
    outage.write(outage.target, THERE, new)
    outage.write(outage.source, HERE, [*late, True])
    outage.replicate()
    outage.reconcile()
    outage.replicate()

    here, there = outage.values(outage.source, HERE), outage.values(outage.target, THERE)
    assert sorted(value or b"" for _, value in here) == sorted(value or b"" for _, value in there)
    runs = list(committed_runs(outage.chains, LANE))
    downstream = [span.downstream for run in runs for span in run.spans]
    assert downstream == sorted(downstream)
    assert all(run.spans or (run.digest_of, run.passed_bytes) == ("records", 0) for run in runs)
    assert not outage.ledger.losses


def test_a_second_outage_brings_back_only_what_is_new_since_the_first() -> None:
    outage = Outage()
    for _ in range(2):
        outage.write(outage.source, HERE, [True, True])
        outage.replicate()
        outage.write(outage.source, HERE, [True])
        outage.write(outage.target, THERE, [True, False, True])
        outage.reconcile()
    outage.replicate()
    assert len(outage.values(outage.source, HERE)) == 2 * 5
    assert len(outage.values(outage.target, THERE)) == 2 * 4
    assert [each.first for each in outage.ledger.losses.values()] == [2, 8]


def test_only_holes_that_may_hold_records_are_read() -> None:
    outage = Outage()
    outage.write(outage.source, HERE, [True] * 8)
    outage.replicate()
    claims = claims_of(committed_runs(outage.chains, LANE))
    assert claims.holes == ()
    assert unclaimed(claims, OffsetRange(0, 10), since=0) == ((), OffsetRange(9, 10))
    without = (replace(run, writer="") for run in committed_runs(outage.chains, LANE))
    assert claims_of(without).holes == (OffsetRange(4, 5),)  # it may be another producer's record


def test_one_record_behind_what_was_joined_comes_back_in_the_next_outage() -> None:
    """It stands where a marker would, had the flow written what is before it."""
    outage = Outage()
    outage.write(outage.source, HERE, [True, True])
    outage.replicate()
    outage.write(outage.target, THERE, [True])
    outage.reconcile()
    outage.write(outage.target, THERE, [True])  # by a producer that had not moved back yet
    outage.write(outage.source, HERE, [True])
    outage.replicate()

    outage.reconcile()

    here, there = outage.values(outage.source, HERE), outage.values(outage.target, THERE)
    assert sorted(value or b"" for _, value in here) == sorted(value or b"" for _, value in there)


def test_a_joined_chain_stands_at_the_end_of_what_came_back() -> None:
    outage = Outage()
    outage.write(outage.source, HERE, [True])
    outage.replicate()
    outage.write(outage.target, THERE, [True, True])
    outage.reconcile()
    head: Head = outage.chains.heads([LANE])[LANE]
    assert head.run is not None
    assert head.run.examined
    assert head.position == 3


def test_what_waits_for_the_flow_after_a_reconcile_is_no_orphan_of_the_next_one() -> None:
    outage = Outage()
    outage.write(outage.source, HERE, [True])
    outage.replicate()
    outage.write(outage.source, HERE, [True])
    outage.write(outage.target, THERE, [True])
    outage.reconcile()
    outage.write(outage.source, HERE, [True, True])  # producers are back, the lane is still held
    assert outage.reconcile().stretches == ()
    outage.replicate()
    assert len(outage.values(outage.target, THERE)) == 4


def test_orphans_are_found_by_what_stands_between_copies() -> None:
    sizes = {100: 5, 101: 5, 103: 7, 104: 1, 105: 1, 106: 2}
    records = [Record(offset=at, timestamp=1, headers=[], value=b"v" * size) for at, size in sizes.items()]
    copies, whole = [OffsetRange(103, 105), OffsetRange(106, 107)], OffsetRange(100, 110)

    assert seen_in(apart(copies, whole), records).stretches == (Stretch(100, 102, 2, 10), Stretch(105, 106, 1, 1))
    assert seen_in(apart([], whole), records).stretches == (Stretch(100, 107, 6, 21),)
