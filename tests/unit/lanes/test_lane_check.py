"""The lane check on stores and clusters in memory: its findings, its limits, and its reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from mirrorless.errors import Retriable
from mirrorless.lane import Lane
from mirrorless.lane_state import Head, Lease, Stop
from mirrorless.lanes.chain_scan import LINKS, scan_chain
from mirrorless.lanes.check_state import UNCLEAN, LaneNotes, TopicNotes, read_notes
from mirrorless.lanes.gap_check import GapCheck
from mirrorless.lanes.gaps import Cleanup, GapRange, Look
from mirrorless.lanes.lane_check import ROUND_MS, LaneCheck
from mirrorless.losses import GapSummary
from mirrorless.ports.kafka import Deadline, TopicPartition
from mirrorless.protocol.digest import fingerprint
from mirrorless.record import Record
from mirrorless.run import Link, Run
from mirrorless.scheduled.runner import RoundReport
from tests.support.chains import FLOW, LANE, MemoryChains, MemoryLaneStates, MemoryLossLedger, reset, run
from tests.support.clusters import Entry, MemoryCluster, MemoryTarget, stable_offset
from tests.support.documents import MemoryDocuments

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

    def starts(self, places: Sequence[TopicPartition], deadline: Deadline) -> Mapping[TopicPartition, int]:  # noqa: ARG002 -- the port's
        """See `SourceLog.starts`."""
        if self.away:
            raise Retriable("the source does not answer")
        return dict.fromkeys(places, self.start)

    def cleanup(self, topics: Sequence[str], deadline: Deadline) -> Mapping[str, Cleanup]:  # noqa: ARG002 -- the port's
        """See `SourceLog.cleanup`."""
        return dict.fromkeys(topics, self.policy)

    def look(
        self,
        ranges: Mapping[TopicPartition, Sequence[GapRange]],
        *,
        committed: bool,
        deadline: Deadline,  # noqa: ARG002 -- the port's
    ) -> Mapping[TopicPartition, Look]:
        """See `SourceLog.look`."""
        self.looks += bool(ranges)
        return {
            place: Look(
                until=min(self.end, wanted[-1][1]),
                visible={
                    offset: 10
                    for offset in sorted(self.records)
                    if any(first <= offset < min(following, self.end) for first, following in wanted)
                    and (self.records[offset] or not committed)
                },
            )
            for place, wanted in ranges.items()
        }


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

    def ends(
        self,
        places: Sequence[TopicPartition],
        deadline: Deadline,  # noqa: ARG002 -- the port's
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
            chains=self.chains,
            states=self.states,
            target=MemoryTarget(self.cluster, "check"),
            documents=self.documents,
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
        report.figures[name] for name in ("doubts-open", "gaps-waiting", "stuck-partitions", "offsets-lost")
    )


# What it costs


def test_lanes_at_rest_cost_neither_a_read_of_the_chain_nor_a_write() -> None:
    stage = Stage()
    stage.committed(run(0, 10, (0, 0, 10)))
    stage.round()
    reads, writes = stage.chains.reads, stage.documents.writes

    reports = [stage.round() for _ in range(3)]

    assert (stage.chains.reads, stage.documents.writes) == (reads, writes)
    assert all(quiet(report) and report.figures["lanes-checked"] == 0 for report in reports)


def test_a_lane_that_moved_costs_one_read_of_the_chain_and_the_source_none() -> None:
    stage = Stage()
    stage.committed(run(0, 10, (0, 0, 10)))
    stage.round()
    stage.committed(run(10, 20, (10, 11, 10)))
    reads = stage.chains.reads

    assert stage.round().figures["lanes-checked"] == 1

    assert stage.chains.reads == reads + 1
    assert stage.source.looks == 0
    assert stage.notes() == LaneNotes(clean_at=22, generation=0, checked=20)


def test_a_run_in_doubt_that_was_given_up_by_a_reset_is_not_taken_up_again() -> None:
    stage = Stage()
    doubt = stage.prepared(run(0, 10, (0, 0, 10)), "open")
    stage.cluster.topics[REMOTE][0].clear()
    stage.now += TIMEOUT + 60_000
    stage.round()
    assert stage.states.states[LANE].stop is not None

    stage.chains.reset(reset(0, 0), doubt)
    stage.states.resume(LANE)
    reports = [stage.round() for _ in range(2)]

    assert [report.figures["doubts-open"] for report in reports] == [0, 0]
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


def test_gaps_are_explained_once_losses_by_offset_and_the_harmless_in_a_sum() -> None:
    stage = Stage()
    stage.source.records = {3: False, 4: True, 13: True}
    stage.committed(run(0, 10, (0, 0, 3), (6, 3, 4)), run(10, 20, (10, 8, 3), (15, 11, 5)))

    first, second = stage.round(), stage.round()

    assert losses(stage) == [(4, 5, "unexplained"), (13, 14, "unexplained")]
    assert harmless(stage) == {"aborted": 1, "transaction_marker": 2}
    assert (first.figures["offsets-lost"], first.figures["offsets-explained"]) == (2, 3)
    assert "orders-0 @ 4" in first.troubles[0]
    assert quiet(second)


def test_a_crash_between_ledger_and_notes_counts_nothing_twice_and_keeps_what_was_found() -> None:
    """In the meantime the source's retention has passed the gap: that makes a marker no loss."""
    stage = Stage()
    stage.committed(run(0, 10, (0, 0, 3), (4, 3, 6)))
    stage.round()
    stage.documents.documents.clear()
    stage.source.start = 1_000

    stage.round()

    assert losses(stage) == []
    assert harmless(stage) == {"transaction_marker": 1}


def test_a_silent_source_makes_gaps_wait_and_nothing_else() -> None:
    stage = Stage()
    stage.source.away = True
    stage.committed(run(0, 10, (0, 0, 3), (4, 3, 6)))

    waits = stage.round()
    again = stage.round()
    stage.source.away = False
    then = stage.round()

    assert (waits.figures["gaps-waiting"], again.figures["gaps-waiting"]) == (1, 1)
    assert "the source does not answer" in waits.troubles[0]
    assert stage.ledger.read(LANE) == []
    assert quiet(then)
    assert harmless(stage) == {"transaction_marker": 1}


def test_where_reading_was_cut_the_next_round_goes_on() -> None:
    stage = Stage()
    stage.source.end = 8
    stage.committed(run(0, 20, (0, 0, 3), (4, 3, 2), (10, 5, 5), (17, 10, 3)))

    first = stage.round()
    assert (first.figures["gaps-waiting"], harmless(stage)) == (2, {"transaction_marker": 3})
    assert (stage.notes().clean_at, stage.notes().checked) == (UNCLEAN, 8)

    stage.source.end = 100
    second = stage.round()

    assert (second.figures["gaps-waiting"], harmless(stage)) == (0, {"transaction_marker": 7})
    assert stage.notes().checked == 20


def test_gaps_of_a_generation_that_was_closed_are_not_read_from_another_topic() -> None:
    stage = Stage()
    stage.source.records = {3: True}
    stage.committed(run(0, 10, (0, 0, 3), (4, 3, 6)))
    stage.chains.reset(reset(10, 0))
    stage.committed(run(0, 5, (0, 10, 2), (4, 12, 1), generation=1))

    reports = [stage.round(), stage.round()]

    assert losses(stage) == [(3, 4, "unexplained")]
    assert [loss.generation for loss in stage.ledger.read(LANE)] == [1]
    assert (harmless(stage, 0), harmless(stage, 1)) == ({"superseded": 1}, {"transaction_marker": 1})
    assert stage.notes() == LaneNotes(clean_at=14, generation=1, checked=5)
    assert [report.figures["lanes-waiting"] for report in reports] == [1, 0]


def test_gaps_of_a_lane_that_contradicts_its_source_wait_for_the_operator() -> None:
    stage = Stage()
    stage.committed(run(0, 10, (0, 0, 3), (4, 3, 6)))
    stage.states.stop(LANE, Stop(reason="contradiction", upstream_offset=0, detail="", at=T))

    report = stage.round()

    assert (report.figures["gaps-waiting"], stage.source.looks) == (1, 0)
    assert harmless(stage) == {}


def test_links_that_have_expired_are_passed_over() -> None:
    chains = MemoryChains()
    chains.prepare([run(50, 60, (50, 0, 5), (57, 5, 3)), run(70, 80, (70, 9, 10))])

    found = scan_chain(chains, LANE, 0, 20)

    assert (found.gaps, found.then, found.complete) == (((55, 57),), (0, 80), True)


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


def test_a_doubt_is_left_alone_for_as_long_as_its_writer_could_commit() -> None:
    stage = Stage()
    link = stage.prepared(run(0, 3, (0, 0, 3)), "open")
    stage.now = link.settled_at + TIMEOUT + 10_000

    report = stage.round()

    assert stage.chains.heads([LANE])[LANE].in_doubt
    assert stage.cluster.epochs[WRITER] == 1, "the writer was fenced"
    assert (report.figures["doubts-settled"], report.figures["doubts-open"]) == (0, 0)
    assert stage.notes().clean_at == UNCLEAN


@pytest.mark.parametrize(("state", "position"), [("committed", 3), ("open", 0)])
def test_an_abandoned_run_in_doubt_is_settled(state: str, position: int) -> None:
    stage = Stage()
    link = stage.prepared(run(0, 3, (0, 0, 3)), state)
    stage.round()
    stage.now = link.settled_at + TIMEOUT + 10_001

    report = stage.round()

    head = stage.chains.heads([LANE])[LANE]
    assert (head.position, head.in_doubt) == (position, False)
    assert report.figures["doubts-settled"] == 1
    stage.round()
    assert stage.notes().clean_at == len(stage.cluster.topics[REMOTE][0])


def test_a_doubt_behind_a_strangers_open_transaction_stays_open() -> None:
    stage = Stage()
    stage.cluster.begin_epoch("stranger")
    stage.cluster.topics[REMOTE][0].append(
        Entry(Record(offset=0, timestamp=T, headers=[], key=None, value=b"x"), "open", "stranger")
    )
    stage.prepared(run(0, 3, (0, 0, 3)), "committed")
    stage.now += 60_000

    report = stage.round()

    assert (report.figures["doubts-open"], report.figures["doubts-settled"]) == (1, 0)
    assert stage.chains.heads([LANE])[LANE].in_doubt


def test_a_doubt_whose_witness_is_a_stranger_stops_its_lane_once_while_the_others_go_on() -> None:
    stage = Stage()
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
    assert (first.figures["doubts-open"], second.figures["doubts-open"]) == (1, 1)
    assert first.troubles
    assert stage.notes(1).clean_at == 1


# Stuck partitions


def test_a_stable_offset_that_stands_still_for_longer_than_any_transaction_is_reported() -> None:
    stage = Stage()
    stage.cluster.topics[REMOTE][1] += [Entry(_record(run(0, 1, (0, 0, 1))), "open", "lost marker")]

    reports = []
    for _ in range(4):
        reports.append(stage.round())
        stage.now += 10_000 - 60_000

    assert [report.figures["stuck-partitions"] for report in reports] == [0, 0, 0, 1]
    assert "us-east.orders-1 on eu-west" in reports[-1].troubles[0]
    assert "30 s" in reports[-1].troubles[0]


def test_a_stable_offset_that_moves_is_not_stuck() -> None:
    """Under load there is an open transaction at almost every read, each time another one."""
    stage = Stage()
    log = stage.cluster.topics[REMOTE][1]
    record = _record(run(0, 1, (0, 0, 1)))
    for _ in range(5):
        log[:] = [Entry(record, "committed", "")] * len(log) + [Entry(record, "open", "busy")]
        assert quiet(stage.round())


# Renewal


def test_the_head_of_an_idle_lane_is_renewed_before_half_the_retention_is_left() -> None:
    stage = Stage()
    head = replace(run(10, 20, (10, 11, 10)), settled_at=T)
    stage.committed(replace(run(0, 10, (0, 0, 10)), settled_at=T), head)

    renewed = []
    for _ in range(30 * 3):
        renewed += [stage.now] * stage.round().figures["heads-renewed"]
        stage.now = stage.now // DAY * DAY + DAY

    # Every quarter of the retention, from its half on; the expiry never comes.
    assert len(renewed) >= 9
    assert set(stage.chains.expiries) == {(LANE, 0, 10)}
    expiry = T + 30 * DAY
    for at in renewed:
        assert at < expiry - 7 * DAY
        expiry = at + 30 * DAY
    assert stage.chains.expiries[LANE, 0, 10] == expiry // 1000


def test_a_head_without_records_is_renewed_together_with_the_last_run_that_has_some() -> None:
    stage = Stage()
    stage.committed(run(0, 10, (0, 0, 10)), run(10, 11, quarantined=(10,)), run(11, 12, quarantined=(11,)))
    stage.now = run(0, 10).settled_at + 20 * DAY

    stage.round()

    assert set(stage.chains.expiries) == {(LANE, 0, 11), (LANE, 0, 0)}


def test_a_run_that_wrote_nothing_is_seen_when_heads_are_renewed() -> None:
    stage = Stage()
    stage.committed(run(0, 10, (0, 0, 10)))
    stage.round()
    stage.chains.prepare([run(10, 15, quarantined=(14,))])
    stage.round()
    assert harmless(stage) == {}

    stage.now += 8 * DAY
    stage.round()

    assert harmless(stage) == {"transaction_marker": 4}


# Notes


def test_notes_are_small_and_read_back() -> None:
    stage = Stage()
    stage.committed(run(0, 10, (0, 0, 10)))
    stage.round()

    (document,) = stage.documents.read(FLOW, "lanes/").values()

    assert len(document) < 100
    assert read_notes(stage.documents, FLOW)["orders"] == TopicNotes(
        lanes={0: LaneNotes(clean_at=11, checked=10), 1: LaneNotes()}, renewed_at=T
    )
    assert stage.ledger.summary(LANE, 0) == GapSummary(lane=LANE, generation=0)


# Lanes that a job has


def test_a_jobs_run_in_doubt_is_the_jobs_until_its_lease_ends() -> None:
    """To settle it would fence the job's writer, whose transactions may be longer than the flow's."""
    stage = Stage()
    stage.prepared(run(0, 3, (0, 0, 3)), "committed")
    stage.states.take(LANE, Lease(holder="backfill-1", until=T + 150_000), now=T)

    reports = [stage.round() for _ in range(4)]

    assert [report.figures["doubts-settled"] for report in reports] == [0, 0, 0, 1]
    assert all(report.troubles == [] for report in reports[:3])


def test_a_jobs_long_transaction_is_no_stuck_partition() -> None:
    stage = Stage()
    stage.cluster.topics[REMOTE][0] += [Entry(None, "open", "a job's")]
    stage.states.take(LANE, Lease(holder="backfill-1", until=T + 10 * 60_000), now=T)

    reports = [stage.round() for _ in range(5)]

    assert {report.figures["stuck-partitions"] for report in reports} == {0}
    stage.states.let_go(LANE, "backfill-1")
    assert stage.round().figures["stuck-partitions"] == 1
