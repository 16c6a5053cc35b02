"""The lane check on stores and clusters in memory: its findings, its limits, and its reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head, Lease, Stop, StopReason
from mirrorless.chain.losses import GapSummary
from mirrorless.chain.run import Link, Run
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.lanes.chain_scan import LINKS, scan_chain
from mirrorless.lanes.check_state import UNCLEAN, LaneNotes, TopicNotes, read_notes
from mirrorless.lanes.foreign import LOOK_AGAIN_MS, ForeignCheck
from mirrorless.lanes.gap_check import GapCheck
from mirrorless.lanes.gaps import Cleanup, GapRange, Look
from mirrorless.lanes.lane_check import ROUND_MS, LaneCheck
from mirrorless.lanes.log_comparison import LogComparison
from mirrorless.ports.kafka import EpochEnd, RangesRead, TopicPartition
from mirrorless.protocol.digest import fingerprint
from mirrorless.records.record import Record
from mirrorless.records.record_batch import BatchUnreadable
from mirrorless.scheduled.runner import RoundReport
from tests.support.chains import FLOW, LANE, MemoryChains, MemoryLaneStates, MemoryLossLedger, reset, run
from tests.support.clusters import Entry, MemoryCluster, MemoryTarget, stable_offset
from tests.support.documents import MemoryDocuments
from tests.support.memory_log import look_at, read_at

REMOTE = "us-east.orders"
WRITER = "mirrorless.us-east.eu-west.test"
T = 1_763_686_800_000
TIMEOUT = 10_000
DAY = 86_400_000
EXPIRES = Cleanup(compacts=False, expires=True)


@dataclass(slots=True)
class MemorySource:
    """Implements `mirrorless.lanes.gaps.SourceLog`: records by offset, committed or not; all else is a marker."""

    start: int = 0
    end: int = 1_000_000
    """The first offset that cannot be read."""
    records: dict[int, bool] = field(default_factory=dict)
    """Whether the record at an offset is committed."""
    policy: Cleanup = EXPIRES
    away: bool = False
    looks: int = 0

    def starts(self, places: Sequence[TopicPartition], deadline: Deadline) -> Mapping[TopicPartition, int]:
        """See `SourceLog.starts`."""
        if self.away:
            raise Retriable("the source does not answer")
        return dict.fromkeys(places, self.start)

    def cleanup(self, topics: Sequence[str], deadline: Deadline) -> Mapping[str, Cleanup]:
        """See `SourceLog.cleanup`."""
        return dict.fromkeys(topics, self.policy)

    def look(
        self, ranges: Mapping[TopicPartition, Sequence[GapRange]], *, committed: bool, deadline: Deadline
    ) -> Mapping[TopicPartition, Look]:
        """See `LogLooks.look`."""
        self.looks += bool(ranges)
        visible = [offset for offset, is_committed in self.records.items() if is_committed or not committed]
        return {place: look_at(wanted, visible, self.end, size=10) for place, wanted in ranges.items()}


@dataclass(slots=True)
class SourceLogs:
    """The source's logs: whose leader has which epoch, where the epochs before ended, and the records at offsets."""

    current_epochs: dict[TopicPartition, int] = field(default_factory=lambda: {("orders", 0): 4, ("orders", 1): 4})
    ended_at: dict[TopicPartition, int] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)
    asked: int = 0
    down: bool = False
    damaged: set[TopicPartition] = field(default_factory=set)
    while_reading: Callable[[], None] = lambda: None
    """Called when one partition is read alone."""

    def current(self, topics: Iterable[str], deadline: Deadline) -> dict[TopicPartition, int]:
        """See `LogEpochs.current`."""
        if self.down:
            raise Retriable("the source does not answer")
        return {place: epoch for place, epoch in self.current_epochs.items() if place[0] in set(topics)}

    def ends(self, epochs: Mapping[TopicPartition, int], deadline: Deadline) -> dict[TopicPartition, EpochEnd]:
        """See `LogEpochs.ends`."""
        self.asked += 1
        return {place: EpochEnd(epoch, self.ended_at.get(place, 0)) for place, epoch in epochs.items()}

    def topic_ids(self, topics: Iterable[str], deadline: Deadline) -> dict[str, str]:
        """See `LogEpochs.topic_ids`."""
        raise NotImplementedError

    def close(self) -> None:
        """See `LogEpochs.close`."""

    def read(
        self, ranges: Mapping[TopicPartition, Sequence[tuple[int, int]]], deadline: Deadline, *, near: int, size: int
    ) -> dict[TopicPartition, RangesRead]:
        """See `CommittedLog.read`."""
        if len(ranges) == 1:
            self.while_reading()
        return {
            place: read_at(
                wanted,
                self.records.values(),
                wanted[-1][1],
                damage=BatchUnreadable("damaged", offset=9) if place in self.damaged else None,
            )
            for place, wanted in ranges.items()
        }

    def elect(self, *, ended_at: int, record: Record) -> None:
        """Another leader of the first lane, where the epoch before ended; and the last record that a reader finds."""
        self.current_epochs["orders", 0] += 2
        self.ended_at["orders", 0] = ended_at
        self.records = {record.offset: record}


@dataclass(slots=True)
class Stage:
    """A flow whose only topic has two partitions; the target's log is made of entries."""

    now: int = T
    chains: MemoryChains = field(default_factory=MemoryChains)
    states: MemoryLaneStates = field(default_factory=MemoryLaneStates)
    ledger: MemoryLossLedger = field(default_factory=MemoryLossLedger)
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    cluster: MemoryCluster = field(default_factory=lambda: MemoryCluster(topics={REMOTE: [[], []]}))
    source: MemorySource = field(default_factory=MemorySource)
    logs: SourceLogs = field(default_factory=SourceLogs)
    shared: set[str] = field(default_factory=set)
    """Topics to whose remote topics others are to write as well."""
    target_looks: list[dict[TopicPartition, list[GapRange]]] = field(default_factory=list)
    target_silent: bool = False
    most_read: int = 1_000
    """Offsets that one look at the target reads."""

    def look(
        self, ranges: Mapping[TopicPartition, Sequence[GapRange]], *, committed: bool, deadline: Deadline
    ) -> Mapping[TopicPartition, Look]:
        """See `LogLooks.look`."""
        assert committed
        if self.target_silent:
            raise Retriable("the target does not answer")
        self.target_looks.append({place: list(wanted) for place, wanted in ranges.items()})
        found = {}
        for (topic, partition), wanted in ranges.items():
            log = self.cluster.topics[topic][partition]
            visible = (at for at, each in enumerate(log) if each.state == "committed")
            end = min(stable_offset(log), wanted[0][0] + self.most_read)
            found[topic, partition] = look_at(wanted, visible, end)
        return found

    def ends(
        self, places: Sequence[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, tuple[int, int, int]]:
        """See `Ends.ends`."""
        logs = {place: self.cluster.topics[place[0]][place[1]] for place in places}
        return {place: (0, stable_offset(log), len(log)) for place, log in logs.items()}

    def check(self) -> LaneCheck:
        """The task of a new run."""
        return LaneCheck(
            flow=FLOW,
            remote_topic=lambda topic: f"us-east.{topic}",
            topics=lambda _deadline: {"orders": 2},
            ends=self,
            gaps=GapCheck(source=self.source, ledger=self.ledger, states=self.states, clock=lambda: self.now),
            logs=LogComparison(chains=self.chains, epochs=self.logs, log=self.logs),
            chains=self.chains,
            states=self.states,
            target=MemoryTarget(self.cluster, "check"),
            documents=self.documents,
            log_ends=None,
            foreign=ForeignCheck(
                remote_topic=lambda topic: f"us-east.{topic}",
                target=self,
                states=self.states,
                alone=lambda topics: {topic for topic in topics if topic not in self.shared},
            ),
            clock=lambda: self.now,
            transaction_timeout_ms=TIMEOUT,
            map_retention_days=30,
        )

    def round(self) -> RoundReport:
        """One round, a minute after the one before."""
        report = RoundReport()
        self.check().act(report, lambda: 10.0)
        self.now += 60_000
        return report

    def committed(self, *links: Run) -> None:
        """Runs of the first lane whose records are on the target."""
        self.chains.prepare(links)
        log = self.cluster.topics[REMOTE][0]
        for link in links:
            log += [Entry(_record(link), "committed", WRITER)] * link.records + [Entry(None, "marker", WRITER)]

    def prepared(self, link: Run, state: str) -> Run:
        """A run in doubt, whose records are open, committed or aborted on the target."""
        at = len(self.cluster.topics[REMOTE][0])
        link = replace(link, state="prepared", spans=(replace(link.spans[0], downstream=at),), settled_at=self.now)
        link = replace(link, fingerprint=fingerprint(_record(link)))
        self.chains.prepare([link])
        self.cluster.begin_epoch(WRITER)
        self.cluster.topics[REMOTE][0] += [Entry(_record(link), "open", WRITER)] * link.records
        if state == "committed":
            self.cluster.commit(WRITER)
        return link

    def notes(self, partition: int = 0) -> LaneNotes:
        """What is remembered of a lane."""
        return read_notes(self.documents, FLOW)["orders"].lanes[partition]


def _record(link: Run) -> Record:
    return Record(offset=link.position, timestamp=T, headers=[], key=b"k", value=b"v")


def losses(stage: Stage) -> list[tuple[int, int, str]]:
    return [(loss.first, loss.next, loss.cause) for loss in stage.ledger.read(LANE)]


def harmless(stage: Stage, generation: int = 0) -> Mapping[str, int]:
    return {str(cause): count for cause, count in stage.ledger.summary(LANE, generation).offsets.items()}


def quiet(report: RoundReport) -> bool:
    return not report.troubles and not any(
        report.counts[name] for name in ("doubts-open", "gaps-waiting", "stuck-partitions", "offsets-lost")
    )


# What it costs


@pytest.fixture
def stage() -> Stage:
    """Nothing has been copied yet."""
    return Stage()


def test_lanes_at_rest_cost_neither_a_read_of_the_chain_nor_a_write(stage: Stage) -> None:
    stage.committed(run(0, 10, (0, 0, 10)))
    stage.round()
    reads, writes = stage.chains.reads, stage.documents.writes

    reports = [stage.round() for _ in range(3)]

    assert (stage.chains.reads, stage.documents.writes) == (reads, writes)
    assert all(quiet(report) and report.counts["lanes-checked"] == 0 for report in reports)


def test_a_lane_that_moved_costs_one_read_of_the_chain_and_the_source_none(stage: Stage) -> None:
    stage.committed(run(0, 10, (0, 0, 10)))
    stage.round()
    stage.committed(run(10, 20, (10, 11, 10)))
    reads = stage.chains.reads

    assert stage.round().counts["lanes-checked"] == 1

    assert stage.chains.reads == reads + 1
    assert stage.source.looks == 0
    assert stage.notes() == LaneNotes(clean_at=22, generation=0, checked=20, epoch=4, claimed=21)


def test_a_run_in_doubt_that_was_given_up_by_a_reset_is_not_taken_up_again(stage: Stage) -> None:
    doubt = stage.prepared(run(0, 10, (0, 0, 10)), "open")
    stage.cluster.topics[REMOTE][0].clear()
    stage.now += TIMEOUT + 60_000
    stage.round()
    assert stage.states.states[LANE].stop is not None

    stage.chains.reset(reset(0, 0), doubt)
    stage.states.resume(LANE)
    reports = [stage.round() for _ in range(2)]

    assert [report.counts["doubts-open"] for report in reports] == [0, 0]
    assert stage.states.states[LANE].stop is None


def test_a_lane_that_a_round_had_no_time_for_comes_first_in_the_next() -> None:
    stage, other = Stage(), Lane(FLOW, "orders", 1)
    rounds: list[list[int]] = []

    class SlowChains(MemoryChains):
        """Each scan of a lane takes a round's time."""

        def after(
            self, lane: Lane, generation: int, upstream: int, *, limit: int, head: Head | None = None
        ) -> list[Link]:
            """See `Chains.after`."""
            stage.now += ROUND_MS + 1
            rounds[-1].append(lane.partition)
            return super().after(lane, generation, upstream, limit=limit, head=head)

    stage.chains = SlowChains(stage.chains.memory)
    stage.chains.prepare([run(0, 10, (0, 0, 10)), run(0, 10, (0, 0, 10), lane=other)])
    for _ in range(4):
        for partition in (0, 1):  # both have moved
            stage.cluster.topics[REMOTE][partition] += [Entry(None, "marker", WRITER)]
        rounds.append([])
        stage.round()

    assert rounds == [[0], [1], [0], [1]]


# Gaps


def test_gaps_are_explained_once_losses_by_offset_and_the_harmless_in_a_sum(stage: Stage) -> None:
    stage.source.records = {3: False, 4: True, 13: True}
    stage.committed(run(0, 10, (0, 0, 3), (6, 3, 4)), run(10, 20, (10, 8, 3), (15, 11, 5)))

    first, second = stage.round(), stage.round()

    assert losses(stage) == [(4, 5, "unexplained"), (13, 14, "unexplained")]
    assert harmless(stage) == {"aborted": 1, "transaction_marker": 2}
    assert (first.counts["offsets-lost"], first.counts["offsets-explained"]) == (2, 3)
    assert "orders-0 @ 4" in first.troubles[0]
    assert quiet(second)


def test_a_crash_between_ledger_and_notes_counts_nothing_twice_and_keeps_what_was_found(stage: Stage) -> None:
    """In the meantime the source's retention has passed the gap: that makes a marker no loss."""
    stage.committed(run(0, 10, (0, 0, 3), (4, 3, 6)))
    stage.round()
    stage.documents.documents.clear()
    stage.source.start = 1_000

    stage.round()

    assert losses(stage) == []
    assert harmless(stage) == {"transaction_marker": 1}


def test_a_silent_source_makes_gaps_wait_and_nothing_else(stage: Stage) -> None:
    stage.source.away = True
    stage.committed(run(0, 10, (0, 0, 3), (4, 3, 6)))

    waits = stage.round()
    again = stage.round()
    stage.source.away = False
    then = stage.round()

    assert (waits.counts["gaps-waiting"], again.counts["gaps-waiting"]) == (1, 1)
    assert "the source does not answer" in waits.troubles[0]
    assert stage.ledger.read(LANE) == []
    assert quiet(then)
    assert harmless(stage) == {"transaction_marker": 1}


def test_where_reading_was_cut_the_next_round_goes_on(stage: Stage) -> None:
    stage.source.end = 8
    stage.committed(run(0, 20, (0, 0, 3), (4, 3, 2), (10, 5, 5), (17, 10, 3)))

    first = stage.round()
    assert (first.counts["gaps-waiting"], harmless(stage)) == (2, {"transaction_marker": 3})
    assert (stage.notes().clean_at, stage.notes().checked) == (UNCLEAN, 8)

    stage.source.end = 100
    second = stage.round()

    assert (second.counts["gaps-waiting"], harmless(stage)) == (0, {"transaction_marker": 7})
    assert stage.notes().checked == 20


def test_gaps_of_a_generation_that_was_closed_are_not_read_from_another_topic(stage: Stage) -> None:
    stage.source.records = {3: True}
    stage.committed(run(0, 10, (0, 0, 3), (4, 3, 6)))
    stage.chains.reset(reset(10, 0))
    stage.committed(run(0, 5, (0, 10, 2), (4, 12, 1), generation=1))

    reports = [stage.round(), stage.round()]

    assert losses(stage) == [(3, 4, "unexplained")]
    assert [loss.generation for loss in stage.ledger.read(LANE)] == [1]
    assert (harmless(stage, 0), harmless(stage, 1)) == ({"superseded": 1}, {"transaction_marker": 1})
    assert stage.notes() == LaneNotes(clean_at=14, generation=1, checked=5, epoch=4, claimed=13)
    assert [report.counts["lanes-waiting"] for report in reports] == [1, 0]


def test_gaps_of_a_lane_that_contradicts_its_source_wait_for_the_operator(stage: Stage) -> None:
    stage.committed(run(0, 10, (0, 0, 3), (4, 3, 6)))
    stage.states.stop(LANE, Stop(reason="contradiction", upstream_offset=0, detail="", at=T))

    report = stage.round()

    assert (report.counts["gaps-waiting"], stage.source.looks) == (1, 0)
    assert harmless(stage) == {}


def test_links_that_have_expired_are_passed_over() -> None:
    chains = MemoryChains()
    chains.prepare([run(50, 60, (50, 0, 5), (57, 5, 3)), run(70, 80, (70, 9, 10))])

    found = scan_chain(chains, LANE, 0, 20)

    assert (found.gaps, found.then, found.complete) == (((55, 57),), (0, 80), True)


def test_between_two_generations_there_is_no_room_for_records() -> None:
    chains = MemoryChains()
    chains.prepare([run(0, 10, (0, 0, 10))])
    chains.reset(reset(10, 0))
    chains.prepare([run(0, 5, (0, 30, 5), generation=1), run(5, 9, (5, 40, 4), generation=1)])

    assert scan_chain(chains, LANE, 0, 0).beside == ((35, 40),)


@pytest.mark.parametrize("since", [0, 3, 10, 14, 15, 29, 30])
def test_a_walk_that_begins_inside_a_run_begins_there(since: int) -> None:
    chains = MemoryChains()
    chains.prepare([run(0, 10, (0, 0, 10)), run(10, 20, (10, 10, 2), (18, 12, 2)), run(20, 30, (29, 14, 1))])

    found = scan_chain(chains, LANE, 0, since)

    expected = [(max(first, since), following) for first, following in ((12, 18), (20, 29)) if following > since]
    assert list(found.gaps) == expected
    assert found.then == (0, 30)


def test_a_long_chain_is_walked_in_parts() -> None:
    chains = MemoryChains()
    count = LINKS + 150
    chains.prepare([run(10 * i, 10 * i + 10, (10 * i, 10 * i, 10)) for i in range(count)])

    first = scan_chain(chains, LANE, 0, 0)
    second = scan_chain(chains, LANE, *first.then)

    assert not first.complete
    assert (second.complete, second.then) == (True, (0, 10 * count))


# Doubts


def test_a_doubt_is_left_alone_for_as_long_as_its_writer_could_commit(stage: Stage) -> None:
    link = stage.prepared(run(0, 3, (0, 0, 3)), "open")
    stage.now = link.settled_at + TIMEOUT + 10_000

    report = stage.round()

    assert stage.chains.heads([LANE])[LANE].in_doubt
    assert stage.cluster.epochs[WRITER] == 1, "the writer was fenced"
    assert (report.counts["doubts-settled"], report.counts["doubts-open"]) == (0, 0)
    assert stage.notes().clean_at == UNCLEAN


@pytest.mark.parametrize(("state", "position"), [("committed", 3), ("open", 0)])
def test_an_abandoned_run_in_doubt_is_settled(stage: Stage, state: str, position: int) -> None:
    link = stage.prepared(run(0, 3, (0, 0, 3)), state)
    stage.round()
    stage.now = link.settled_at + TIMEOUT + 10_001

    report = stage.round()

    head = stage.chains.heads([LANE])[LANE]
    assert (head.position, head.in_doubt) == (position, False)
    assert report.counts["doubts-settled"] == 1
    stage.round()
    assert stage.notes().clean_at == len(stage.cluster.topics[REMOTE][0])


def test_a_doubt_behind_a_strangers_open_transaction_stays_open(stage: Stage) -> None:
    stage.cluster.begin_epoch("stranger")
    stage.cluster.topics[REMOTE][0].append(
        Entry(Record(offset=0, timestamp=T, headers=[], key=None, value=b"x"), "open", "stranger")
    )
    stage.prepared(run(0, 3, (0, 0, 3)), "committed")
    stage.now += 60_000

    report = stage.round()

    assert (report.counts["doubts-open"], report.counts["doubts-settled"]) == (1, 0)
    assert stage.chains.heads([LANE])[LANE].in_doubt


def test_a_doubt_whose_witness_is_a_stranger_stops_its_lane_once_while_the_others_go_on(stage: Stage) -> None:
    link = stage.prepared(run(0, 3, (0, 0, 3)), "committed")
    stage.cluster.topics[REMOTE][0][2].record = Record(offset=0, timestamp=T, headers=[], key=b"?", value=b"?")
    other = Lane(FLOW, "orders", 1)
    stage.chains.prepare([run(0, 2, (0, 0, 2), lane=other)])
    stage.cluster.topics[REMOTE][1] += [Entry(None, "marker", WRITER)]
    stage.now += 60_000

    first = stage.round()
    stop = stage.states.states[LANE].stop
    second = stage.round()

    assert stop is not None
    assert (stop.reason, stop.upstream_offset) == ("broken", link.position)
    assert stage.states.states[LANE].stop == stop, "noted again"
    assert (first.counts["doubts-open"], second.counts["doubts-open"]) == (1, 1)
    assert first.troubles
    assert stage.notes(1).clean_at == 1


# Stuck partitions


def test_a_stable_offset_that_stands_still_for_longer_than_any_transaction_is_reported(stage: Stage) -> None:
    stage.cluster.topics[REMOTE][1] += [Entry(_record(run(0, 1, (0, 0, 1))), "open", "lost marker")]

    reports = []
    for _ in range(4):
        reports.append(stage.round())
        stage.now += 10_000 - 60_000

    assert [report.counts["stuck-partitions"] for report in reports] == [0, 0, 0, 1]
    assert "us-east.orders-1 on eu-west" in reports[-1].troubles[0]
    assert "30 s" in reports[-1].troubles[0]


def test_a_stable_offset_that_moves_is_not_stuck() -> None:
    """Under load there is an open transaction at almost every read, each time another one."""
    stage = Stage(shared={"orders"})
    log = stage.cluster.topics[REMOTE][1]
    record = _record(run(0, 1, (0, 0, 1)))
    for _ in range(5):
        log[:] = [Entry(record, "committed", "")] * len(log) + [Entry(record, "open", "busy")]
        assert quiet(stage.round())


# Renewal


def test_the_head_of_an_idle_lane_is_renewed_before_half_the_retention_is_left(stage: Stage) -> None:
    head = replace(run(10, 20, (10, 11, 10)), settled_at=T)
    stage.committed(replace(run(0, 10, (0, 0, 10)), settled_at=T), head)

    renewed = []
    for _ in range(30 * 3):
        renewed += [stage.now] * stage.round().counts["heads-renewed"]
        stage.now = stage.now // DAY * DAY + DAY

    # Every quarter of the retention, from its half on; the expiry never comes.
    assert len(renewed) >= 9
    assert set(stage.chains.expiries) == {(LANE, 0, 10)}
    expiry = T + 30 * DAY
    for at in renewed:
        assert at < expiry - 7 * DAY
        expiry = at + 30 * DAY
    assert stage.chains.expiries[LANE, 0, 10] == expiry // 1000


def test_a_head_without_records_is_renewed_together_with_the_last_run_that_has_some(stage: Stage) -> None:
    stage.committed(run(0, 10, (0, 0, 10)), run(10, 11, quarantined=(10,)), run(11, 12, quarantined=(11,)))
    stage.now = run(0, 10).settled_at + 20 * DAY

    stage.round()

    assert set(stage.chains.expiries) == {(LANE, 0, 11), (LANE, 0, 0)}


def test_a_run_that_wrote_nothing_is_seen_when_heads_are_renewed(stage: Stage) -> None:
    stage.committed(run(0, 10, (0, 0, 10)))
    stage.round()
    stage.chains.prepare([run(10, 15, quarantined=(14,))])
    stage.round()
    assert harmless(stage) == {}

    stage.now += 8 * DAY
    stage.round()

    assert harmless(stage) == {"transaction_marker": 4}


# Notes


def test_notes_are_small_and_read_back(stage: Stage) -> None:
    stage.committed(run(0, 10, (0, 0, 10)))
    stage.round()

    (document,) = stage.documents.read(FLOW, "lanes/").values()

    assert len(document) < 100
    assert read_notes(stage.documents, FLOW)["orders"] == TopicNotes(
        lanes={0: LaneNotes(clean_at=11, checked=10, epoch=4, claimed=10), 1: LaneNotes(epoch=4, claimed=0)},
        renewed_at=T,
    )
    assert stage.ledger.summary(LANE, 0) == GapSummary(lane=LANE, generation=0)


# Lanes that a job has


def test_a_jobs_run_in_doubt_is_the_jobs_until_its_lease_ends(stage: Stage) -> None:
    """To settle it would fence the job's writer, whose transactions may be longer than the flow's."""
    stage.prepared(run(0, 3, (0, 0, 3)), "committed")
    stage.states.take(LANE, Lease(holder="backfill-1", until=T + 150_000), now=T)

    reports = [stage.round() for _ in range(4)]

    assert [report.counts["doubts-settled"] for report in reports] == [0, 0, 0, 1]
    assert all(report.troubles == [] for report in reports[:3])


def test_a_jobs_long_transaction_is_no_stuck_partition(stage: Stage) -> None:
    stage.cluster.topics[REMOTE][0] += [Entry(None, "open", "a job's")]
    stage.states.take(LANE, Lease(holder="backfill-1", until=T + 10 * 60_000), now=T)

    reports = [stage.round() for _ in range(5)]

    assert {report.counts["stuck-partitions"] for report in reports} == {0}
    stage.states.let_go(LANE, "backfill-1")
    assert stage.round().counts["stuck-partitions"] == 1


# Logs that have another leader


SAME, OTHER = (Record(9, 1_500, [], b"k", value) for value in (b"as it was copied", b"another"))


def copied(stage: Stage) -> None:
    """Ten records of the first lane, the last of which is known, and a round that notes the leader."""
    stage.committed(replace(run(0, 10, (0, 0, 10)), fingerprint=fingerprint(SAME)))
    stage.round()


def stop_of(stage: Stage) -> Stop | None:
    state = stage.states.states.get(LANE)
    return None if state is None else state.stop


def test_no_log_is_compared_until_its_leader_changes_and_one_that_has_what_was_copied_is_noted(stage: Stage) -> None:
    copied(stage)
    stage.round()
    assert (stage.logs.asked, stage.notes().epoch) == (0, 4)
    stage.logs.elect(ended_at=6, record=SAME)

    report = stage.round()
    asked = stage.logs.asked
    stage.round()

    assert quiet(report)
    assert (stage.notes().epoch, stop_of(stage), stage.logs.asked) == (6, None, asked)


@pytest.mark.parametrize("standing", [None, "contradiction", "truncated"])
def test_a_log_that_parts_from_the_copy_stops_its_lane_there_until_it_is_reset(standing: StopReason | None) -> None:
    stage = Stage()
    copied(stage)
    if standing is not None:
        stage.states.stop(LANE, Stop(reason=standing, upstream_offset=0, detail="", at=T))
    stage.logs.elect(ended_at=6, record=OTHER)

    report = stage.round()

    stop = stop_of(stage)
    assert stop is not None
    assert (stop.reason, stop.upstream_offset) == ("truncated", 6)
    assert (report.counts["logs-parted"], stage.notes().epoch) == (1, 4)
    assert "--to 6 " in report.troubles[0]

    stage.states.states.clear()  # resumed, without a reset
    stage.round()
    assert stop_of(stage) is not None

    stage.states.states.clear()
    stage.chains.reset(reset(10, 6))
    stage.round()
    assert (stop_of(stage), stage.notes().epoch) == (None, 6)


def test_a_lane_that_is_reset_while_its_log_is_compared_is_not_stopped_again(stage: Stage) -> None:
    copied(stage)
    stage.logs.elect(ended_at=6, record=OTHER)

    def order() -> None:
        stage.logs.while_reading = lambda: None
        stage.chains.reset(reset(10, 6))

    stage.logs.while_reading = order

    report = stage.round()

    assert (stop_of(stage), report.troubles) == (None, [])
    stage.round()
    assert (stop_of(stage), stage.notes().epoch) == (None, 6)


def test_a_lane_that_is_held_stays_so_where_its_log_parts(stage: Stage) -> None:
    copied(stage)
    held = Stop(reason="held", upstream_offset=10, detail="as ordered", at=T)
    stage.states.stop(LANE, held)
    stage.logs.elect(ended_at=6, record=OTHER)

    assert stage.round().counts["logs-parted"] == 1
    assert stop_of(stage) == replace(held, untrue_from=6), "and its map answers nothing as exact"


def test_a_lane_in_doubt_is_compared_once_it_is_settled(stage: Stage) -> None:
    copied(stage)
    stage.prepared(run(10, 13, (10, 0, 3)), "committed")
    stage.logs.elect(ended_at=6, record=OTHER)

    stage.round()
    assert stop_of(stage) is None
    stage.now += TIMEOUT * 10
    stage.round()
    stage.round()

    assert stop_of(stage) is not None


def test_a_source_that_does_not_answer_leaves_everything_else_to_be_checked(stage: Stage) -> None:
    copied(stage)
    stage.logs.elect(ended_at=6, record=OTHER)
    stage.logs.down = True
    stage.committed(run(10, 20, (10, 11, 10)))

    report = stage.round()

    assert [trouble for trouble in report.troubles if "logs wait" in trouble]
    assert report.counts["lanes-checked"] == 1
    stage.logs.down = False
    assert stage.round().counts["logs-parted"] == 1


def both_parted(stage: Stage) -> Lane:
    """Both lanes with ten records of which their logs have another last one; the second lane."""
    second = replace(LANE, partition=1)
    copied(stage)
    stage.chains.prepare([replace(run(0, 10, (0, 0, 10)), lane=second, fingerprint=fingerprint(SAME))])
    stage.logs.elect(ended_at=6, record=OTHER)
    stage.logs.current_epochs["orders", 1], stage.logs.ended_at["orders", 1] = 6, 6
    return second


def test_logs_for_which_a_round_has_no_time_come_first_in_the_next_one(stage: Stage) -> None:
    second = both_parted(stage)

    def slow() -> None:
        stage.now += ROUND_MS

    stage.logs.while_reading = slow

    first_round = stage.round()
    assert len(stage.states.states) == 1
    assert [trouble for trouble in first_round.troubles if trouble.startswith("1 logs wait to be compared")]
    stage.round()

    assert set(stage.states.states) == {LANE, second}


def test_a_log_that_takes_all_of_each_round_and_is_not_read_even_so_is_not_always_the_first(stage: Stage) -> None:
    second = both_parted(stage)
    stage.logs.damaged = {("orders", 0)}

    def slow() -> None:
        stage.now += ROUND_MS

    stage.logs.while_reading = slow
    stage.round()
    stage.now += 60_000 - stage.now % 60_000
    stage.round()

    assert set(stage.states.states) == {second}


def test_a_log_that_cannot_be_read_holds_up_no_other_one(stage: Stage) -> None:
    second = both_parted(stage)
    stage.logs.damaged = {("orders", 0)}

    report = stage.round()

    assert set(stage.states.states) == {second}
    assert [trouble for trouble in report.troubles if trouble.startswith(f"{LANE}: its log waits")]


def test_of_a_lane_that_is_seen_for_the_first_time_the_leader_is_noted(stage: Stage) -> None:
    stage.logs.elect(ended_at=6, record=OTHER)
    stage.committed(replace(run(0, 10, (0, 0, 10)), fingerprint=fingerprint(SAME)))

    assert quiet(stage.round())
    assert stage.notes().epoch == 6


# Records of other producers


def foreign(stage: Stage, count: int = 3, state: str = "committed", partition: int = 0) -> int:
    """Records of another producer at the end of a remote partition; the first one's offset."""
    log = stage.cluster.topics[REMOTE][partition]
    at, record = len(log), _record(run(900, 901, (900, 0, 1)))
    log += [Entry(record, state, "another")] * count  # type: ignore[arg-type]  # a literal by way of str
    return at


def ran(stage: Stage, position: int, *lengths: int) -> None:
    """One run of the first lane, whose records another producer's stand between where there is more than one length."""
    spans: list[tuple[int, int, int]] = []
    upstream = position
    log = stage.cluster.topics[REMOTE][0]
    for length in lengths:
        if spans:
            foreign(stage, 1)
        spans.append((upstream, len(log), length))
        log += [Entry(_record(run(upstream, upstream + 1, spans[-1])), "committed", WRITER)] * length
        upstream += length
    log.append(Entry(None, "marker", WRITER))
    stage.chains.prepare([run(position, upstream, *spans)])


def said(report: RoundReport) -> list[str]:
    return [each for each in report.troubles if "this flow has not written" in each]


@pytest.mark.parametrize("where", ["before", "between", "within", "behind", "alone"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_record_that_the_flow_has_not_written_is_said_wherever_it_stands(where: str, count: int) -> None:
    stage = Stage()
    at = foreign(stage, count) if where in {"before", "alone"} else 0
    if where != "alone":
        ran(stage, 0, *((4, 4) if where == "within" else (8,)))
        at = 4 if where == "within" else at
    if where == "between":
        at = foreign(stage, count)
        ran(stage, 8, 2)
    if where == "behind":
        at = foreign(stage, count)

    report = stage.round()

    assert report.counts["lanes-foreign"] == 1
    (sentence,) = said(report)
    assert (
        f"us-east.orders has records that this flow has not written, from partition and downstream offset 0 @ {at}"
        in sentence
    )
    assert "`mirrorless verify start 'us-east->eu-west' orders`" in sentence


def test_what_comes_to_a_lane_at_rest_is_said_in_the_next_round(stage: Stage) -> None:
    ran(stage, 0, 8)
    assert quiet(stage.round())

    foreign(stage)

    assert [len(said(stage.round())) for _ in range(2)] == [1, 1]


def test_markers_and_aborted_records_are_not_foreign_and_only_the_latter_cost_a_look(stage: Stage) -> None:
    ran(stage, 0, 8)
    ran(stage, 8, 4)
    assert quiet(stage.round())
    assert stage.target_looks == []

    foreign(stage, 5, state="aborted")
    stage.cluster.topics[REMOTE][0].append(Entry(None, "marker", "another"))
    ran(stage, 12, 4)
    reports = [stage.round() for _ in range(3)]

    assert all(map(quiet, reports))
    assert [report.counts["lanes-foreign"] for report in reports] == [0, 0, 0]
    assert stage.target_looks == [{(REMOTE, 0): [(13, 20)]}]


def test_a_run_in_doubt_is_not_foreign_and_what_stands_behind_it_is_found_once_it_is_settled(stage: Stage) -> None:
    ran(stage, 0, 8)
    stage.prepared(run(8, 9, (8, 0, 1)), "committed")
    foreign(stage)

    reports = [stage.round() for _ in range(3)]

    assert [report.counts["lanes-foreign"] for report in reports] == [0, 1, 1]
    assert reports[1].counts["doubts-settled"] == 1


@pytest.mark.parametrize("why", ["fenced", "held", "shared"])
def test_where_others_are_to_write_nothing_is_looked_for(why: str) -> None:
    """After a failover producers write to the remote topic; a failback's job joins what it has brought back."""
    stage = Stage(shared={"orders"} if why == "shared" else set())
    ran(stage, 0, 8)
    order = Stop(reason="held", upstream_offset=0, detail="", at=T)
    if why == "fenced":
        stage.states.stop_flow(FLOW, order)
    if why == "held":
        stage.states.stop(LANE, order)
    first = foreign(stage)

    assert [said(stage.round()) for _ in range(3)] == [[], [], []]
    assert stage.target_looks == []

    if why != "shared":  # what was joined meanwhile is claimed, and what was not is found
        stage.states.resume_flow(FLOW)
        stage.states.resume(LANE)
        stage.chains.prepare([run(8, 11, (8, first, 3))])
        assert said(stage.round()) == []
        foreign(stage)
        assert len(said(stage.round())) == 1


def test_a_target_that_does_not_answer_is_looked_at_in_the_next_round(stage: Stage) -> None:
    foreign(stage)
    ran(stage, 0, 8)
    stage.target_silent = True

    assert "looked for in the next round" in stage.round().troubles[0]
    assert stage.notes().checked == 0
    stage.target_silent = False

    assert len(said(stage.round())) == 1
    assert stage.notes().checked == 8


def test_a_look_that_was_cut_short_goes_on_from_where_it_was() -> None:
    stage = Stage(most_read=4)
    ran(stage, 0, 8)
    foreign(stage, 10, state="aborted")
    at = foreign(stage)
    ran(stage, 8, 2)

    reports = [stage.round() for _ in range(5)]

    assert [report.counts["lanes-foreign"] for report in reports] == [0, 0, 1, 1, 1]
    assert f"0 @ {at}" in said(reports[2])[0]
    assert stage.notes().checked == 10


def test_a_producer_that_goes_on_is_looked_at_twice_an_hour_and_one_that_stopped_needs_nobody_after_an_hour() -> None:
    stage = Stage()
    ran(stage, 0, 8)
    for position in range(8, 108):
        foreign(stage)
        ran(stage, position, 1)
        assert stage.round().counts["lanes-foreign"] == 1
    assert len(stage.target_looks) == 1 + 100 * 60_000 // LOOK_AGAIN_MS

    reports = []
    for position in range(108, 208):
        ran(stage, position, 1)
        reports.append(stage.round())
    assert (reports[-1].counts["lanes-foreign"], len(said(reports[-1]))) == (0, 1)


def test_a_reset_ends_what_was_said_and_the_next_generation_may_begin_anywhere(stage: Stage) -> None:
    foreign(stage)
    ran(stage, 0, 8)
    assert len(said(stage.round())) == 1

    stage.chains.reset(reset(8, 0))
    foreign(stage)
    stage.chains.prepare([run(0, 2, (0, 15, 2), generation=1)])
    log = stage.cluster.topics[REMOTE][0]
    log += [Entry(_record(run(0, 1, (0, 0, 1))), "committed", WRITER)] * 2 + [Entry(None, "marker", WRITER)]

    assert [said(stage.round()) for _ in range(2)] == [[], []]
    foreign(stage)
    assert len(said(stage.round())) == 1


def test_records_of_links_that_have_expired_are_not_foreign(stage: Stage) -> None:
    ran(stage, 0, 10)
    stage.round()
    for position in range(10, 50, 10):
        ran(stage, position, 10)
    for link in stage.chains.of(LANE):
        if link.position in (10, 20):
            stage.chains.replace_link(link, None)

    assert quiet(stage.round())
    assert stage.target_looks == []


def test_what_stands_behind_an_end_of_the_map_that_may_have_expired_may_be_the_flows(stage: Stage) -> None:
    ran(stage, 0, 10)

    class Expired(MemoryChains):
        def heads(self, lanes: Iterable[Lane]) -> dict[Lane, Head]:
            """See `Chains.heads`."""
            return {lane: replace(head, expired=True) for lane, head in super().heads(lanes).items()}

    stage.chains = Expired(stage.chains.memory)
    foreign(stage)

    assert said(stage.round()) == []


def test_runs_that_a_scan_has_not_come_to_are_not_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrorless.lanes.chain_scan.LINKS", 1)
    stage = Stage()
    for position in range(0, 60, 10):
        ran(stage, position, 10)

    reports = [stage.round() for _ in range(4)]

    assert [report.counts["lanes-waiting"] for report in reports] == [1, 1, 1, 0]
    assert not any(map(said, reports))
