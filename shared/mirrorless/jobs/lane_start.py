"""Where a job goes on with a lane: whether its log is still the one of its chain, and whether records before it count.

Wherever a reading begins, the log's epochs are held against that of the chain's newest run. Before the first one,
that run's last record is read once more: a topic that was deleted and created again has another one there, or none yet,
and what the job copied would stand behind records of a topic that is gone.

A mapping that reads from the end makes a lane begin there: its first run passes over the offsets before. Where a job
has examined those there is no record; otherwise the log shows whether there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Link, Run
from mirrorless.clock import Deadline
from mirrorless.errors import ChainBroken, RecordsGone, Retriable
from mirrorless.flow.naming import reset_lane
from mirrorless.jobs.copy_task import LaneLog, OffsetRange
from mirrorless.lanes.log_comparison import EPOCHS, Elected, LogComparison
from mirrorless.ports.kafka import LogEpochs, RangesRead, TopicPartition
from mirrorless.ports.stores import Chains
from mirrorless.protocol.log_parting import Parting, compare
from mirrorless.protocol.replay_check import Changed, contradiction, not_at_hand

LINKS = 20
"""Links read to find the first that has a record."""

CHUNK_SECONDS = 60.0
"""For everything that one chunk needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStart:
    """The beginning of a lane's chain, as far as it is kept."""

    begins: int | None
    """See `Run.begins`; None where the chain has no record."""
    before: bool
    """Whether a wanted record stands below it."""


def first_links(chains: Chains, lane: Lane, head: Head) -> list[Link]:
    """The first links of a lane's generation; none where it has no run.

    Raises:
        Retriable: the store does not answer.
    """
    return [] if head.run is None else chains.after(lane, head.generation, -1, limit=LINKS, head=head)


def beginning(lane: Lane, links: Sequence[Link], wanted: OffsetRange, log: LaneLog) -> LaneStart:
    """The beginning of a lane by its first links, and by the log where they do not suffice.

    Raises:
        Retriable: the cluster does not answer.
    """
    found = next((link for link in links if isinstance(link, Run) and link.begins is not None), None)
    if found is None or found.begins is None:
        return LaneStart(begins=None, before=False)
    begins = found.begins
    passed_by = [link for link in links if isinstance(link, Run) and link.position <= found.position]
    # A lane of a job examines what it copies; what it passed over to its first range may hold records.
    unread = [link for link in passed_by if lane.is_of_a_job or not link.examined]
    if begins <= wanted.first or not unread:
        return LaneStart(begins=begins, before=False)
    first = max(wanted.first, unread[0].position)
    return LaneStart(
        begins=begins, before=_holds_a_record(_place(lane), OffsetRange(first, min(begins, wanted.next)), log)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLog:
    """The log of a lane's source, held against its chain wherever a reading begins."""

    lane: Lane
    log: LaneLog
    place: TopicPartition
    """Of the log on its cluster."""
    chains: Chains
    epochs: LogEpochs
    changed: Changed = not_at_hand
    """By the flow's rules."""

    def refuse_another(self, head: Head, *, by_record: bool) -> None:
        """Refuse to go on in a log that is not the one from which the lane was copied.

        Args:
            head: of the lane, committed.
            by_record: whether to read its last record once more: a topic that was made anew may have the same epochs.

        Raises:
            ChainBroken: its records are others.
            Retriable: the cluster does not answer.
        """
        run = head.run
        if run is None:
            return
        at, reason = self._parted(run), "its end was lost, and offsets from there on were given again"
        if at is not None and self._comparison().differs_below(self.lane, head, at, patience):
            at, reason = 0, "none of its records is one that was copied"
        if at is None and by_record and run.spans and (found := self._another_record(run)) is not None:
            reason = found
            elected = Elected(head, max(0, self._current() - EPOCHS), self._current())
            parting = self._comparison().parting(self.lane, elected, patience)
            at = parting.at if parting is not None else 0
        if at is None:
            return
        again = reset_lane(self.lane, at or "earliest")
        if self.lane.is_of_a_job:
            again = "copy the topic as it is now into another one (`into`)"
        raise ChainBroken(
            f"{self.place[0]}-{self.place[1]} is not the log that was copied up to {run.next}: {reason}. From {at} on "
            "its records are others: the topic was deleted and created again, or truncated",
            where=self.lane.at(at),
            hint=f"nothing of it was copied behind the old records. To copy what it has since: {again}, and start a "
            "new job",
        )

    def _parted(self, run: Run) -> int | None:
        """By the epoch of the last record, where it is known."""
        parting = Parting(run, lambda offset: self._covering(run.generation, offset))
        if compare({self.place: parting}, lambda asked: self.epochs.ends(asked, patience)):
            raise Retriable("the partition has no leader now", where=f"{self.place[0]}-{self.place[1]}")
        same_to = parting.same_to
        if same_to is not None and same_to < run.next:
            # Markers stood there at the end of an epoch, and another leader may have put records there.
            return same_to if _holds_a_record(self.place, OffsetRange(same_to, run.next), self.log) else None
        return parting.at

    def _another_record(self, run: Run) -> str | None:
        """Why the log's record at the offset of the run's last one is not that; None where it is, or is gone."""
        last = run.known_to - 1
        read = self.read({self.place: [(last, last + 1)]}, patience, near=0, size=0)[self.place]
        if read.log_start > last:
            return None  # retention has deleted it
        if read.until <= last:
            return f"the log ends at {read.until}"
        found = contradiction(read.records, [run], self.changed)
        return None if found is None else found[1]

    def _covering(self, generation: int, offset: int) -> Run | None:
        link = self.chains.at_or_before(self.lane, generation, offset)
        return link if isinstance(link, Run) else None

    def _comparison(self) -> LogComparison:
        return LogComparison(
            chains=self.chains,
            epochs=self.epochs,
            log=self,
            place_of=lambda _: self.place,
            changed_of=lambda _: self.changed,
        )

    def _current(self) -> int:
        return (self.epochs.current([self.place[0]], patience) or {}).get(self.place, 0)

    def read(
        self,
        ranges: Mapping[TopicPartition, Sequence[tuple[int, int]]],
        deadline: Deadline,
        *,
        near: int,  # noqa: ARG002 -- the port's
        size: int,  # noqa: ARG002 -- same
    ) -> dict[TopicPartition, RangesRead]:
        """See `CommittedLog.read`; of one range of each partition."""
        return {place: self._range(place, *wanted[0], deadline) for place, wanted in ranges.items()}

    def _range(self, place: TopicPartition, first: int, following: int, deadline: Deadline) -> RangesRead:
        bounds = self.log.bounds(*place, deadline)
        if first >= bounds.next or bounds.first > first:
            return RangesRead(until=min(following, bounds.next), log_start=bounds.first)
        wanted = OffsetRange(first, min(following, bounds.next))
        found = [record for chunk in self.log.read(*place, wanted, deadline) for record in chunk.records]
        return RangesRead(until=wanted.next, records=found, log_start=bounds.first)


def _place(lane: Lane) -> TopicPartition:
    topic, _, _ = lane.topic.partition("#")
    return topic, lane.partition


def gone(at: int, where: str) -> RecordsGone:
    """What is said of a log that begins above what is to be read. Args: at: the upstream offset; where: of the log."""
    return RecordsGone(
        f"the log does not hold upstream offset {at} any more",
        where=where,
        hint="the source's retention has overtaken the job: start it again from what is left, or from an archive; "
        "what is passed over is listed as lost",
    )


def patience() -> float:
    """The seconds that a log may take for a chunk: a range is read for as long as it takes."""
    return CHUNK_SECONDS


def _holds_a_record(place: TopicPartition, between: OffsetRange, log: LaneLog) -> bool:
    try:
        chunks = log.read(*place, between, patience)
        return any(chunk.records for chunk in chunks)
    except RecordsGone:
        return False  # deleted records cannot be put there
