"""Exactly-once replication of one batch, in seven steps. Its lanes, of one topic or of many, share a transaction.

    1 position    the head of each lane's chain; a run in doubt is settled first      (positions.py)
    2 plan        what lies at or above the position                                   (plan.py, replay_check.py, pure)
    3 produce     all lanes in one transaction; every record acknowledged       (transaction.py, as 5 to 7)
    4 settle      fold the acknowledgements into one run per lane                      (settle.py, pure)
    5 prepare     insert every run as prepared, on condition that its key is free
    6 commit      the target's transaction
    7 confirm     mark the runs as committed

A lane that waits for a job (admission.py) is left out, and its records are delivered again. Where a flow stops at
records that its mappings leave out, step 2 reads the batch's gaps at the source first (undelivered.py).

If a rival prepared a lane first, step 5 fails: abort, withdraw our own runs, begin again. If anything fails
after step 5, the chain names the transaction, and whoever comes next settles it. An environment that stays warm
trusts the positions it remembers: a stale one fails in step 5, and that is safe. After any exception it forgets
its writer and its positions.

Without transactions (`at_least_once`) steps 5 to 7 are one conditional insert of committed runs. Duplicates are
then possible between 3 and 5, and only there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.chain.run import Run
from mirrorless.clock import Deadline
from mirrorless.errors import LostRace, NotAcknowledged, Retriable
from mirrorless.ports.kafka import Source, Target, TopicPartition
from mirrorless.ports.stores import Chains, LossLedger
from mirrorless.protocol.admission import Waiting, waits_for_history, waits_for_lease, waits_for_rest
from mirrorless.protocol.event import Batch
from mirrorless.protocol.hooks import reached
from mirrorless.protocol.outgoing import is_raw, last_offset
from mirrorless.protocol.plan import LanePlan, plan_lane
from mirrorless.protocol.portions import QUICK_SECONDS, TransactionBytes, bytes_in, joined, of_one_epoch, parted
from mirrorless.protocol.positions import Positions
from mirrorless.protocol.replay_check import Changed, compare_with_chain, not_at_hand
from mirrorless.protocol.transaction import PortionTransactions

if TYPE_CHECKING:
    from mirrorless.protocol.flow_rules import FlowRules
    from mirrorless.protocol.undelivered import Held, UndeliveredRecords
    from mirrorless.records.origin import OriginRule
    from mirrorless.records.record_batch import PassTerms

AGAIN_SECONDS = 5.0
"""That must be left, beside the time that a failed transaction took, for a smaller one."""

RIVALS = 5
"""How often a batch begins again because a rival was faster, before Lambda's retry takes over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutcome:
    """What became of a batch."""

    runs: Sequence[Run]
    """The links that this batch added, all committed."""
    stopped: Mapping[TopicPartition, Stop]
    """By topic-partition of the source: the lane stands still from this upstream offset on."""
    waiting: Mapping[TopicPartition, Waiting] = field(default_factory=dict)
    """The same: the lane waits for a job, and nothing was written; or its gaps are still to be read."""

    def after(self, before: BatchOutcome | None) -> BatchOutcome:
        """What became of a batch in portions, of which this is the last one."""
        if before is None:
            return self
        return BatchOutcome(
            runs=[*before.runs, *self.runs],
            stopped={**before.stopped, **self.stopped},
            waiting={**before.waiting, **self.waiting},
        )


@dataclass(slots=True, kw_only=True)
class Replicator:
    """Replicates batches of one flow. Lives as long as its execution environment and remembers positions."""

    flow: FlowName
    delivery: Literal["exactly_once", "at_least_once"]
    remote_topic: Callable[[str], str]
    chains: Chains
    positions: Positions
    ledger: LossLedger
    target: Target
    source: Source
    clock: Callable[[], int]
    """ms since the epoch."""
    new_id: Callable[[], str]
    """Never the same twice, anywhere."""
    holder: str = ""
    """The job run that replicates, whose leases do not keep it out; empty for a function."""
    examined: bool = False
    """Whether batches hold all that the source's log has in their range but for `Batch.unexamined`, see `Run.examined`.
    """
    history_first: Callable[[str], bool] = field(default=lambda _: False)
    """Whether lanes of this source topic wait for a job before they have a chain, see `waits_for_history`."""
    terms: Callable[[str], PassTerms | None] = field(default=lambda _: None)
    """Of a remote topic, where lanes are read by whole batches."""
    origin: Callable[[str], OriginRule | None] = field(default=lambda _: None)
    """The rule of a source topic whose records may return to where they were produced; None: they cannot."""
    rules: FlowRules | None = None
    """By which records are changed or left out; None: they stay as they are."""
    undelivered: UndeliveredRecords | None = None
    """Looks for what a mapping left out, before it is passed; None: gaps are explained afterwards."""
    size: TransactionBytes = field(default_factory=TransactionBytes)
    """Of its transactions. What takes too long makes it smaller, for as long as the environment lives."""
    _partitions: dict[str, int] = field(default_factory=dict)
    """Of remote topics, as many as were seen."""

    def __post_init__(self) -> None:
        """Bind the positions to their environment."""
        self.positions.holder = self.holder

    def replicate(
        self, batch: Batch, *, request: str, deadline: Deadline, generations: Mapping[Lane, int] | None = None
    ) -> BatchOutcome:
        """Bring every record of `batch` to the target, or say of which lane and why not.

        Args:
            batch: one event's records, or what a run has read of many topics.
            request: id of the Lambda request, kept in the runs.
            deadline: seconds until Lambda kills us.
            generations: of the chains from whose positions the batch was read on; a mapping's group stands by itself.

        Raises:
            Retriable: nothing is lost; deliver the same batch again, or read it again from the positions.
            ChainBroken: the offset map contradicts the target.
        """
        known, read_on = dict(generations or {}), generations is not None
        done: BatchOutcome | None = None
        races = 0
        try:
            while races < RIVALS:
                portion, later = of_one_epoch(batch)
                if not self.size.is_usual:
                    portion, more = parted(portion, self.size.most)
                    later = joined(more, later, ())
                began = self.clock()
                try:
                    outcome = self._once(portion, request, deadline, known, read_on=read_on)
                except LostRace:
                    # The writer aborted cleanly and stays warm; only what we believed about the lanes was wrong.
                    self.positions.forget(Lane(self.flow, *place) for place in batch.records)
                    races += 1
                    continue
                except Retriable as exc:
                    took = (self.clock() - began) / 1000
                    self._learn(portion, exc, took)
                    # What reads on by itself comes back with less. An event would come back as it is, and to an
                    # environment that does not know this: less of it goes at once.
                    again = isinstance(exc, NotAcknowledged) and not read_on and not self.holder
                    if not again or deadline() < took + AGAIN_SECONDS:
                        raise
                    self.forget()
                    continue
                self.size.went_well((self.clock() - began) / 1000)
                done = outcome.after(done)
                rest = joined(None, later, {*outcome.stopped, *outcome.waiting})
                if rest is None:
                    return done
                batch, races = rest, 0
        except BaseException:
            self.forget()
            raise
        raise LostRace(
            f"rivals were faster {RIVALS} times in a row",
            where=f"{self.flow} {', '.join(batch.topics)}",
            hint="look for a second mapping with another consumer group on this topic",
        )

    def _learn(self, tried: Batch, exc: Retriable, took: float) -> None:
        """Write less at once, where what was tried was too much for its time."""
        if isinstance(exc, NotAcknowledged) and exc.tried:
            self.size.failed(exc.tried, exc.share)
        elif isinstance(exc, NotAcknowledged) or took >= QUICK_SECONDS:
            self.size.failed(sum(map(bytes_in, tried.records.values())), 0.0)

    def warm_up(self, seconds: float) -> bool:
        """Open the writer ahead of the first event, where the cluster answers in time.

        Returns:
            whether it is open. If not, the first event opens it, and reports what is wrong as an event can.
        """
        try:
            self.target.writer(lambda: seconds)
        except Retriable:
            self.forget()
            return False
        return True

    def forget(self) -> None:
        """Drop everything that was remembered: after an exception nothing warm is to be trusted."""
        self.positions.forget()
        self._partitions.clear()
        self.target.discard_writers()

    def _once(
        self, batch: Batch, request: str, deadline: Deadline, generations: dict[Lane, int], *, read_on: bool
    ) -> BatchOutcome:
        lanes = {place: Lane(self.flow, *place) for place in batch.records}

        # 1. Position.
        begins = {
            lanes[place]: batch.first(place)
            for place, content in batch.records.items()
            if content or place in batch.left_out
        }
        leased = self.positions.load(lanes.values(), self.remote_topic, deadline, begins)
        unleased = {lane: first for lane, first in begins.items() if lane not in leased}
        self._check_generations(unleased, generations, read_on=read_on)
        waiting = {
            place: found
            for place, lane in lanes.items()
            if batch.records[place] and (found := self._waiting(lane, batch, place, leased=lane in leased)) is not None
        }
        reached("position")

        # 2. Plan. Nothing below a position is dropped before it was held against the chain.
        admitted = {place: lane for place, lane in lanes.items() if place not in waiting and lane not in leased}
        batch, held = self._delivered(batch, admitted, deadline)
        plans = {place: self._plan(lane, batch) for place, lane in admitted.items()}
        for place, undelivered in held.items():
            if isinstance(undelivered, Stop) and plans[place].stop is None:
                plans[place] = replace(plans[place], stop=undelivered)
        reached("planned")

        # 3. to 7., for all lanes in one transaction.
        moving = [plan for plan in plans.values() if plan.moves]
        runs: list[Run] = []
        if moving:
            self._ensure_partitions(moving, deadline)
            transactions = self._transactions(request, deadline)
            runs, refused, broken = transactions.write(moving)
            plans |= {_place(plan.lane): plan for plan in broken}
            # A refused record has spoilt the transaction. Its lane goes again alone, portion by portion.
            for plan, refusal in refused:
                careful, stop = transactions.write_alone(plan, refusal)
                plans[_place(plan.lane)] = replace(plan, stop=stop)
                runs += careful
        stopped = {place: plan.stop for place, plan in plans.items() if plan.stop is not None}
        for place, stop in stopped.items():
            self.positions.stop(lanes[place], stop)
        for place, found in waiting.items():
            self.positions.wait(lanes[place], found.upstream_offset)
        for place, plan in plans.items():
            if plan.stop is None and place not in held and batch.records[place] and not self.holder:
                self.positions.came_through(plan.lane)
        unread = {place: it for place, it in held.items() if isinstance(it, Waiting) and place not in stopped}
        return BatchOutcome(runs=runs, stopped=stopped, waiting=waiting | unread)

    def _delivered(self, batch: Batch, lanes: Mapping[TopicPartition, Lane], deadline: Deadline) -> tuple[Batch, Held]:
        """The batch as far as its mapping left out nothing, where that is looked at."""
        if self.undelivered is None:
            return batch, {}
        ends = {place: (self.positions.head(lane), self.positions.state(lane)) for place, lane in lanes.items()}
        return self.undelivered.before(batch, ends, deadline, now=self.clock())

    def _check_generations(self, begins: Mapping[Lane, int], known: dict[Lane, int], *, read_on: bool) -> None:
        """Compare each lane's generation with that in which the batch was read on, or with its first attempt's.

        Raises:
            Retriable: a lane was reset meanwhile to a position before this event's records of it. Written there, they
                would hide that the records between are missing. Of records read on before its new position, the links
                of the new generation say nothing: they would pass for those of another topic.
        """
        for lane, first in begins.items():
            head = self.positions.head(lane)
            was_reset = known.setdefault(lane, head.generation) != head.generation
            if was_reset and (read_on or first > head.position):
                raise Retriable(
                    "the lane was reset while this batch was on its way",
                    where=str(lane),
                    hint="nothing is to be done: it is delivered again, or read again",
                )

    def _waiting(self, lane: Lane, batch: Batch, place: TopicPartition, *, leased: bool) -> Waiting | None:
        state, first = self.positions.state(lane), batch.first(place)
        if leased and state.lease is not None:
            return waits_for_lease(lane, state.lease, first, now=self.clock())
        head = self.positions.head(lane)
        if self.holder or (head.run is not None and self._examines(batch, place)):
            # A job is what others wait for; and what is read of the log itself from the position on leaves out nothing.
            return None
        if state.lease is not None and (found := waits_for_rest(lane, head, state.lease, first)) is not None:
            return found
        if head.run is not None and not head.run.examined:
            return None  # where a function has written, nothing is awaited any more
        return waits_for_history(lane, head, state, first, history_first=self.history_first(lane.topic))

    def _examines(self, batch: Batch, place: TopicPartition) -> bool:
        return self.examined and place not in batch.unexamined

    def _plan(self, lane: Lane, batch: Batch) -> LanePlan:
        place = _place(lane)
        head, state = self.positions.head(lane), self.positions.state(lane)
        terms = self.terms(self.remote_topic(lane.topic))
        plan = plan_lane(
            lane,
            head,
            state,
            batch.records[place],
            now=self.clock(),
            covered=batch.covered.get(place, 0),
            begins=batch.begins.get(place, 0),
            terms=terms,
            origin=self.origin(lane.topic),
            left_out=batch.left_out.get(place),
            transform=self.rules.of(lane.topic) if self.rules is not None else None,
        )
        content = batch.records[place]
        epoch = content[-1].leader_epoch if is_raw(content) else batch.epochs.get(place)
        if plan.stop is None and epoch is not None:
            plan = replace(plan, epoch=epoch)  # of a part of what was read, the epoch at its end is not known
        if self._examines(batch, place):
            plan = replace(plan, examined=True)
        if not plan.unproven:
            return plan
        links = self.positions.links_over(lane, plan.unproven[0].offset, last_offset(plan.unproven[-1]))
        return compare_with_chain(plan, links, now=self.clock(), changed=self.changed_of(lane))

    def changed_of(self, lane: Lane) -> Changed:
        """The copies of a lane's records, by the rules of their runs."""
        return partial(self.rules.changed, lane.topic, lane.partition) if self.rules is not None else not_at_hand

    def _ensure_partitions(self, plans: Sequence[LanePlan], deadline: Deadline) -> None:
        """Create what the target lacks before a record needs it: as many partitions as the source has."""
        highest: dict[str, int] = {}
        for plan in plans:
            highest[plan.lane.topic] = max(plan.lane.partition, highest.get(plan.lane.topic, 0))
        for topic, partition in highest.items():
            remote_topic = self.remote_topic(topic)
            if partition < self._partitions.get(remote_topic, 0):
                continue
            count = self.target.partition_count(remote_topic, deadline)
            if partition >= count:
                described = self.source.describe(topic, deadline)
                self.target.create_partitions(remote_topic, described.partitions, described.configs, deadline)
                count = self.target.partition_count(remote_topic, deadline)
            if partition >= count:
                raise Retriable(
                    f"{remote_topic} has {count} partitions and needs {partition + 1}",
                    where=f"{self.flow} {topic}-{partition}",
                    hint="check that the function may create topics and partitions on the target",
                )
            self._partitions[remote_topic] = count

    def _transactions(self, request: str, deadline: Deadline) -> PortionTransactions:
        return PortionTransactions(
            delivery=self.delivery,
            remote_topic=self.remote_topic,
            chains=self.chains,
            positions=self.positions,
            target=self.target,
            clock=self.clock,
            new_id=self.new_id,
            note=self.ledger.note,
            request=request,
            deadline=deadline,
        )


def _place(lane: Lane) -> TopicPartition:
    """The lane's topic-partition on the source."""
    return lane.topic, lane.partition
