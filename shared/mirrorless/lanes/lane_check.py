"""The lane check: settles runs in doubt, explains gaps, reports stuck partitions, renews heads, and compares logs.

One round:

    1 read     the ends of each remote partition; lanes unchanged since their last clean check are done
    2 report   stable offsets that stand still behind their high watermark
    3 compare  the logs that have another leader than before with the chains: lanes of those that part are stopped
    4 renew    the heads of idle lanes, four times in the retention of the map
    5 scan     the chains of the others; a run in doubt that is old enough is settled
    6 explain  the gaps that were found
    7 look     for records of other producers beside the runs
    8 store    how far each lane is checked
    9 look     at the ends of mapped logs, where the flow stops at what mappings do not deliver

Forwarders are not disturbed: a run in doubt is not settled while its writer could still commit. Nor are jobs: a leased
lane is left to its job until the lease has ended. What does not fit into a round's time is done in the next one. A run
that writes nothing (it only passes quarantined records) does not move the remote partition; it is checked with the
lane's next record, or when its head is renewed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from msgspec.structs import replace

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import NEW_LANE, RUNNING, Head
from mirrorless.chain.run import NO_EPOCH, Run
from mirrorless.clock import Deadline
from mirrorless.errors import ChainBroken, InDoubt, Retriable
from mirrorless.flow.counts import Count
from mirrorless.lanes.chain_scan import ChainScan, scan_chain
from mirrorless.lanes.check_state import UNCLEAN, LaneNotes, TopicNotes, read_notes, write_notes
from mirrorless.lanes.foreign import FOREIGN, ForeignCheck, ScannedLane, sentences
from mirrorless.lanes.gap_check import GapCheck
from mirrorless.lanes.log_comparison import Elected, LogComparison, LogParting
from mirrorless.lanes.log_ends import LogEndCheck, PartitionEnds
from mirrorless.ports.kafka import LogEnds, Target
from mirrorless.ports.stores import Chains, LaneStates, StateStore
from mirrorless.protocol.log_parting import parted_stop
from mirrorless.protocol.recovery import settle_doubt, unsettled_stop
from mirrorless.scheduled.runner import RoundReport

COORDINATOR_MS: Final = 10_000
"""How long Kafka's coordinator may take to detect that a transaction has timed out.
(`transaction.abort.timed.out.transaction.cleanup.interval.ms`)"""

MARGIN_MS: Final = 5_000
"""Added to the timeouts: a stable offset that stands still for longer waits for a transaction that never ends."""

ROUND_MS: Final = 5_000
"""The time after which a round starts nothing new, and its limit for each read of the target: heartbeats wait."""

COMPARE_SECONDS: Final = 1.0
"""With less time no log is held against its chain: some reads, and more where it parts."""

LOGS: Final = 1_000
"""Logs that a round compares, at most: after a broker's restart all of its logs have another leader."""

RENEWALS: Final = 500
"""Heads that a round reads to renew them, at most; each is one read."""

COUNTS: Final[tuple[Count, ...]] = (
    "lanes-checked",
    "lanes-waiting",
    "doubts-settled",
    "doubts-open",
    "stuck-partitions",
    "offsets-explained",
    "offsets-lost",
    "gaps-waiting",
    "heads-renewed",
    "logs-parted",
    FOREIGN,
)


@dataclass(slots=True, kw_only=True)
class LaneCheck:
    """The task `lanes` of one flow."""

    flow: FlowName
    remote_topic: Callable[[str], str]
    topics: Callable[[Deadline], Mapping[str, int]]
    """The flow's source topics, with the partition counts of their remote topics."""
    ends: PartitionEnds
    """The target's."""
    gaps: GapCheck
    logs: LogComparison
    """With the source's."""
    chains: Chains
    states: LaneStates
    target: Target
    documents: StateStore
    foreign: ForeignCheck | None
    """None where the flow writes without transactions: what a crash doubled is told from nobody else's records."""
    log_ends: LogEndCheck | None
    """None where the flow goes on behind what its mappings do not deliver."""
    clock: Callable[[], int]
    """ms since the epoch."""
    transaction_timeout_ms: int
    map_retention_days: int

    def act(self, report: RoundReport, deadline: Deadline) -> None:
        """One round.

        Raises:
            Retriable: the target or DynamoDB does not answer. What was done stays done.
        """
        report.counts.update(dict.fromkeys(COUNTS, 0))
        round_ = _Round(began=self.clock(), stored=read_notes(self.documents, self.flow))

        # 1. and 2. Read, and report.
        self._read_ends(round_, report, self._soon(deadline))

        # 3. Compare.
        self._compare_logs(round_, report, self._soon(deadline))

        # 4. Renew. Lanes whose heads were read are checked as well.
        self._renew(round_, report)

        # 5. and 6. Scan, and explain.
        scans = self._scan_all(round_, report, deadline)
        waiting = self.gaps.explain(scans, report, deadline)

        # 7. Look.
        scanned = {lane: round_.scanned(lane, scan) for lane, scan in scans.items()}
        seen = {} if self.foreign is None else self.foreign.look(scanned, report, deadline, now=round_.began)

        # 8. Store.
        for lane, scan in scans.items():
            round_.notes[lane] = _after(round_, lane, scan, waiting.get(lane), seen.get(lane))
        report.counts[FOREIGN] = sum(each.foreign_lately(now=round_.began) for each in round_.notes.values())
        report.troubles += sentences(self.flow, round_.notes, self.remote_topic)
        write_notes(self.documents, self.flow, round_.changed())

        # 9. Look.
        if self.log_ends is not None:
            self.log_ends.look(report, deadline)

    def _read_ends(self, round_: _Round, report: RoundReport, deadline: Deadline) -> None:
        lanes = {
            (self.remote_topic(topic), partition): Lane(self.flow, topic, partition)
            for topic, count in sorted(self.topics(deadline).items())
            for partition in range(count)
        }
        ends = self.ends.ends(list(lanes), deadline) if lanes else {}
        stuck: dict[Lane, int] = {}
        for (topic, partition), (start, stable, high_watermark) in sorted(ends.items()):
            lane = lanes[topic, partition]
            notes = round_.stored_notes(lane).updated(stable, high_watermark, now=round_.began)
            round_.ends[lane], round_.notes[lane] = (start, stable, high_watermark), notes
            if not notes.is_clean(stable, high_watermark):
                round_.to_check.add(lane)
            if notes.behind_for(now=round_.began) > self._settle_after_ms + MARGIN_MS:
                stuck[lane] = notes.behind_for(now=round_.began)
        leased = self._leased(stuck)  # a job has its own transaction timeout
        for lane, behind in stuck.items():
            if lane in leased:
                continue
            (_, stable, high_watermark), topic = round_.ends[lane], self.remote_topic(lane.topic)
            report.counts["stuck-partitions"] += 1
            report.troubles.append(
                f"{topic}-{lane.partition} on {self.flow.target}: the last stable offset has stood at {stable} for "
                f"{behind // 1000} s, behind the high watermark {high_watermark}: read_committed consumers wait "
                "there for a transaction that does not end by itself"
            )

    def _compare_logs(self, round_: _Round, report: RoundReport, deadline: Deadline) -> None:
        """Hold logs that have another leader against the chains. A source that does not answer waits.

        Logs that were found to part stay to be compared, behind the others: what is advised depends on what they have
        since.
        """
        try:
            wanted = self._elected(round_, deadline)
            suspects = self.logs.suspects(wanted, deadline)
        except Retriable as exc:
            report.troubles.append(f"logs wait to be compared with their chains: {exc}")
            return
        for lane in wanted.keys() - suspects:
            round_.notes[lane] = replace(round_.notes[lane], epoch=wanted[lane].current)
        waiting = [lane for lane in wanted if lane in suspects]
        while waiting and deadline() > COMPARE_SECONDS:
            lane = waiting.pop(0)
            try:
                parting = self.logs.parting(lane, wanted[lane], deadline)
            except Retriable as exc:
                report.troubles.append(f"{lane}: its log waits to be compared with its chain: {exc}")
                continue
            if parting is None:
                round_.notes[lane] = replace(round_.notes[lane], epoch=wanted[lane].current)
            elif self.chains.heads([lane])[lane].generation == wanted[lane].head.generation:  # no reset meanwhile
                self._stop_parted(lane, wanted[lane].head, parting, report)
        if waiting:
            report.troubles.append(f"{len(waiting)} logs wait to be compared with their chains, {waiting[0]} first")

    def _elected(self, round_: _Round, deadline: Deadline) -> dict[Lane, Elected]:
        """The lanes whose logs have another leader, those that stand as parted last; each round begins with another."""
        current = self.logs.epochs.current({lane.topic for lane in round_.notes}, deadline) or {}
        elected: dict[Lane, tuple[int, int]] = {}
        for lane, notes in list(round_.notes.items()):
            now = current.get((lane.topic, lane.partition), notes.epoch)
            if notes.epoch == NO_EPOCH:
                round_.notes[lane] = replace(notes, epoch=now)  # whatever was before cannot be told
            elif now != notes.epoch:
                elected[lane] = notes.epoch, now
        states = self.states.read(list(elected)) if elected else {}
        stops = {lane: states.get(lane, RUNNING).stop for lane in elected}
        turn = round_.began // 60_000 % max(1, len(elected))  # one whose comparison takes all time is not always first
        lanes = [*islice(elected, turn, None), *islice(elected, turn)]
        order = sorted(lanes, key=lambda lane: (stop := stops[lane]) is not None and stop.reason == "truncated")
        heads = self.chains.heads(order[:LOGS]) if order else {}
        return {
            lane: Elected(heads[lane], *elected[lane])
            for lane in order[:LOGS]
            if lane in heads and not heads[lane].in_doubt and not heads[lane].expired
        }

    def _stop_parted(self, lane: Lane, head: Head, parting: LogParting, report: RoundReport) -> None:
        report.counts["logs-parted"] += 1
        stop = parted_stop(lane, parting.at, position=head.position, replicated=parting.replicated, now=self.clock())
        report.troubles.append(f"{lane.at(parting.at)}: {stop.detail}")
        if (stored := self.states.read([lane]).get(lane, RUNNING).stopped_by(stop)) is not None:
            self.states.stop(lane, stored)

    def _renew(self, round_: _Round, report: RoundReport) -> None:
        """Renew the last runs of idle lanes: a lane whose head expires stops."""
        retention = self.map_retention_days * 86_400_000
        left = RENEWALS
        for topic in sorted({lane.topic for lane in round_.ends}):
            if round_.began - round_.renewed_at(topic) < retention // 4 or left <= 0:
                continue
            lanes = [lane for lane in round_.ends if lane.topic == topic]
            left -= len(lanes)
            # An entry is kept for the retention and renewed from half of it on, so two of these rounds may fail.
            report.counts["heads-renewed"] += self.chains.renew(
                lanes, settled_before=round_.began - retention // 2, expires_at=(round_.began + retention) // 1000
            )
            round_.renewed[topic] = round_.began
            round_.to_check.update(lanes)

    def _scan_all(self, round_: _Round, report: RoundReport, deadline: Deadline) -> dict[Lane, ChainScan]:
        # Where the time of a round does not suffice, the next one begins with the lanes that it did not reach.
        lanes = sorted(round_.to_check, key=lambda lane: (-round_.notes[lane].passed_over, lane))
        heads = round_.heads = self.chains.heads(lanes)
        scans: dict[Lane, ChainScan] = {}
        for lane in lanes:
            if self.clock() - round_.began > ROUND_MS:
                report.counts["lanes-waiting"] += 1
                notes = round_.notes[lane]
                round_.notes[lane] = replace(notes, clean_at=UNCLEAN, passed_over=notes.passed_over + 1)
                continue
            report.counts["lanes-checked"] += 1
            notes = round_.notes[lane]
            since, claimed = (notes.generation, notes.checked), notes.claimed
            scan = scan_chain(self.chains, lane, *since, claimed=claimed, head=heads[lane])
            if scan.doubt is not None and self._settle(scan.doubt, report, deadline):
                scan = scan_chain(self.chains, lane, *since, claimed=claimed)
            scans[lane] = scan
            report.counts["lanes-waiting"] += not scan.complete
        return scans

    def _settle(self, run: Run, report: RoundReport, deadline: Deadline) -> bool:
        """Settle a run in doubt, unless its writer or a job may still be active. Returns whether it is settled."""
        if self.clock() - run.settled_at <= self._settle_after_ms or self._leased([run.lane]):
            return False
        where = run.lane.at(run.position)
        stop = self.states.read([run.lane]).get(run.lane, RUNNING).stop
        if stop is not None and stop.reason == "broken" and stop.upstream_offset == run.position:
            report.counts["doubts-open"] += 1
            report.troubles.append(f"{where}: stopped as broken; a run in doubt waits for the operator")
            return False
        soon = self._soon(deadline)
        try:
            settle_doubt(run, self.remote_topic, chains=self.chains, target=self.target, deadline=soon)
        except InDoubt:
            report.counts["doubts-open"] += 1
            return False
        except ChainBroken as exc:
            report.counts["doubts-open"] += 1
            report.troubles.append(str(exc))
            self.states.stop(run.lane, unsettled_stop(run, exc, now=self.clock()))
            return False
        except Retriable as exc:
            report.counts["doubts-open"] += 1
            report.troubles.append(f"a run in doubt could not be settled: {exc}")
            return False
        report.counts["doubts-settled"] += 1
        return True

    def _leased(self, lanes: Iterable[Lane]) -> frozenset[Lane]:
        """Those of some lanes that are leased to a job."""
        now, states = self.clock(), self.states.read(lanes)
        return frozenset(lane for lane, state in states.items() if state.lease is not None and now < state.lease.until)

    def _soon(self, deadline: Deadline) -> Deadline:
        """A part of the remaining time: one call that hangs must not take all of it."""
        end = self.clock() + ROUND_MS
        return lambda: min(deadline(), (end - self.clock()) / 1000)

    @property
    def _settle_after_ms(self) -> int:
        """How long a transaction can be open before Kafka ends it."""
        return self.transaction_timeout_ms + COORDINATOR_MS


@dataclass(slots=True, kw_only=True)
class _Round:
    """The working state of one round."""

    began: int
    """ms since the epoch."""
    stored: Mapping[str, TopicNotes]
    ends: dict[Lane, LogEnds] = field(default_factory=dict)
    """Of the remote partition."""
    heads: dict[Lane, Head] = field(default_factory=dict)
    notes: dict[Lane, LaneNotes] = field(default_factory=dict)
    to_check: set[Lane] = field(default_factory=set)
    renewed: dict[str, int] = field(default_factory=dict)

    def stored_notes(self, lane: Lane) -> LaneNotes:
        return self._topic(lane.topic).lanes.get(lane.partition, LaneNotes())

    def scanned(self, lane: Lane, scan: ChainScan) -> ScannedLane:
        """A lane with what was read of it."""
        start, stable, _ = self.ends[lane]
        return ScannedLane(scan=scan, head=self.heads[lane], notes=self.notes[lane], start=start, stable=stable)

    def renewed_at(self, topic: str) -> int:
        return self._topic(topic).renewed_at

    def changed(self) -> dict[str, TopicNotes]:
        """The topics whose notes differ from the stored ones."""
        lanes: dict[str, dict[int, LaneNotes]] = {}
        for lane, notes in self.notes.items():
            lanes.setdefault(lane.topic, dict(self._topic(lane.topic).lanes))[lane.partition] = notes
        new = {
            topic: TopicNotes(lanes=notes, renewed_at=self.renewed.get(topic, self.renewed_at(topic)))
            for topic, notes in lanes.items()
        }
        return {topic: notes for topic, notes in new.items() if notes != self._topic(topic)}

    def _topic(self, topic: str) -> TopicNotes:
        return self.stored.get(topic, TopicNotes())


def _after(round_: _Round, lane: Lane, scan: ChainScan, waits_from: int | None, seen: LaneNotes | None) -> LaneNotes:
    """The notes of a lane after its scan.

    Args:
        round_: the round.
        lane: the lane.
        scan: of its chain.
        waits_from: the upstream offset from which on its gaps wait, if any.
        seen: its notes where a foreign record was seen, or where the target is still to be looked at.
    """
    _, stable, high_watermark = round_.ends[lane]
    before = round_.notes[lane]
    if seen is not None and seen.foreign_at == before.foreign_at:
        return replace(seen, clean_at=UNCLEAN, passed_over=0)
    clean = waits_from is None and scan.complete and scan.doubt is None and stable >= high_watermark
    generation, checked = scan.then if waits_from is None else (scan.generation, waits_from)
    known = seen or (before if generation == before.generation else LaneNotes())
    return replace(
        before,
        clean_at=high_watermark if clean else UNCLEAN,
        generation=generation,
        checked=checked,
        passed_over=0,
        claimed=stable if round_.heads[lane] == NEW_LANE else scan.claimed,
        foreign=known.foreign,
        foreign_at=known.foreign_at,
    )
