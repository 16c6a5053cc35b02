"""The stores and clusters of a flow in memory, and the seven invariants of exactly-once replication over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise

from msgspec.structs import replace

from mirrorless.chain.entry import Journal
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head, Lease
from mirrorless.chain.run import Reset, Run
from mirrorless.errors import Retriable
from mirrorless.protocol.event import Batch
from mirrorless.protocol.flow_rules import FlowRules
from mirrorless.protocol.hooks import Step
from mirrorless.protocol.positions import Positions
from mirrorless.protocol.replicate import BatchOutcome, Replicator
from mirrorless.protocol.translate import OffsetMap, Translation
from mirrorless.records.record import Headers, Record
from mirrorless.records.record_batch import BatchUnreadable, RecordBatch
from mirrorless.transforms.rules import KeyRing, KeySettings, Rule
from tests.support.chains import FLOW, MemoryChains, MemoryLaneStates, MemoryLossLedger
from tests.support.clusters import MemoryCluster, MemorySource, MemoryTarget
from tests.support.documents import MemoryDocuments
from tests.support.flows import make_flow
from tests.support.schedule import Attempt, Killed, watched

TOPIC, REMOTE = "orders", "us-east.orders"
T = 1_763_686_800_000


def lane(partition: int = 0) -> Lane:
    """One lane of the topic."""
    return Lane(FLOW, TOPIC, partition)


def records(*offsets: int) -> list[Record]:
    """Records that show their upstream offsets."""
    return [Record(offset=o, timestamp=T + o, headers=[("n", b"%d" % o)], key=b"k", value=b"%d" % o) for o in offsets]


NEW = 1_000
"""Added to the values of records that took the offsets of others."""


def others(*offsets: int, more: int = NEW) -> list[Record]:
    """Records that took the offsets of others."""
    return [replace(each, value=b"%d" % (more + each.offset)) for each in records(*offsets)]


def replicate(replicator: Replicator, batch: Batch) -> BatchOutcome:
    """One invocation, without pauses: the calling thread has no schedule."""
    return replicator.replicate(batch, request="request", deadline=lambda: 30.0)


@dataclass
class World:
    """The stores that outlive every environment, and what must hold of them at any moment."""

    source: dict[int, list[Record]]
    chains: MemoryChains = field(default_factory=MemoryChains)
    states: MemoryLaneStates = field(default_factory=MemoryLaneStates)
    ledger: MemoryLossLedger = field(default_factory=MemoryLossLedger)
    cluster: MemoryCluster = field(default_factory=MemoryCluster)
    now: int = T
    history_first: bool = False
    topics: int = 1
    """In which the partitions are: those of the second are in another journal, and in the same batches."""
    batches: dict[int, list[RecordBatch]] = field(default_factory=dict)
    """The source's records in batches, where a test reads by them."""
    markers: bool = True
    """Whether a log that is read by records may have a transaction's marker behind its last one."""
    epochs: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Of a partition's log: each leader epoch and its first upstream offset; one from the first record on, if none."""
    topic_ids: dict[str, str] = field(default_factory=dict)
    """The source's, where a test says them."""
    damaged: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By partition: the upstream offsets of a batch that no reader can read."""
    rules: FlowRules | None = None
    """By which records are changed, or left out; see `deploy`."""
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    gone: dict[int, list[Record]] = field(default_factory=dict)
    """What retention or compaction has removed of the source."""
    _positions: dict[int, tuple[int, int]] = field(default_factory=dict)
    _environments: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.cluster.on_commit = self._assert_e

    def environment(self, *, at_least_once: bool = False, job: str = "", writer: str = "") -> Replicator:
        """One more execution environment, or one more try of a job's task.

        Args:
            at_least_once: whether it writes without transactions.
            job: the job run; empty for a function.
            writer: its transactional id, of a run that reads the log itself; empty for one of its own.
        """
        name = writer or f"environment-{next(self._environments)}"
        target = MemoryTarget(self.cluster, "" if at_least_once else name)
        own = self.chains.beside(watched(self.chains.memory, "journals"))
        chains, kafka = watched(own, "chains", self._assert_b), watched(target, "target")
        return Replicator(
            flow=FLOW,
            delivery="at_least_once" if at_least_once else "exactly_once",
            remote_topic=lambda topic: f"us-east.{topic}",
            chains=chains,
            positions=Positions(
                chains=chains, states=watched(self.states, "states"), target=kafka, clock=lambda: self.now
            ),
            ledger=watched(self.ledger, "ledger"),
            target=kafka,
            source=MemorySource(partitions=len(self.source)),
            clock=lambda: self.now,
            new_id=lambda: f"attempt-{next(self._environments)}",
            holder=job,
            examined=bool(job or writer),
            history_first=lambda _: self.history_first,
            terms=lambda _: target.terms(),
            rules=self.rules,
        )

    def attempt(self, batch: Batch | None = None, environment: Replicator | None = None) -> Attempt:
        """One invocation that stops at every point: of everything, and in a new environment, if they are None."""
        replicator, whole = environment or self.environment(), batch or self.whole()
        return Attempt(lambda: replicate(replicator, whole))

    def crash(self, step: Step, batch: Batch | None = None, environment: Replicator | None = None) -> None:
        """One invocation whose process dies after a step."""
        died = self.attempt(batch, environment)
        died.until(step)
        died.resume(Killed())
        assert isinstance(died.error, Killed)

    def deliver(self, batch: Batch | None = None) -> BatchOutcome:
        """As the mapping does it: deliver again until it succeeds, in a new environment."""
        for _ in range(5):
            try:
                return replicate(self.environment(), batch or self.whole())
            except Retriable:
                self.cluster.time_transactions_out()
        return replicate(self.environment(), batch or self.whole())

    def deploy(self, rule: Rule, *, key_version: int = 1) -> None:
        """Let environments from now on change records by this rule, whose key is `pii`."""
        flow = make_flow(FLOW, transforms=(rule,), keys={"pii": KeySettings(version=key_version)})
        ring = KeyRing(key_version, {version: bytes([version]) * 32 for version in (1, 2)})
        self.rules = FlowRules(settings=flow, documents=self.documents, read_keys=lambda _: {"pii": ring})

    def _copy(self, record: Record, run: Run) -> Record | None:
        """A record of the source as the target is to have it by the rule of its run; None: it is left out."""
        if not run.rule:
            return record
        assert self.rules is not None
        return self.rules.by_id(run.lane.topic, run.rule).apply(record, run.lane.partition)

    def head(self, partition: int = 0) -> Head:
        """Where a lane stands."""
        own = self.lane(partition)
        return self.chains.heads([own])[own]

    def runs(self, partition: int = 0) -> list[Run]:
        """Of a lane, in order."""
        return [link for link in self.chains.of(self.lane(partition)) if isinstance(link, Run)]

    def epochs_of(self, partition: int) -> list[tuple[int, int]]:
        """Of its log, with their first upstream offsets."""
        return self.epochs.get(partition, [(0, 0)])

    def cut_off(self, partition: int, at: int, *new: Record) -> None:
        """Let the source's log lose its end, and be written on by the leader of a later epoch."""
        kept = [(epoch, first) for epoch, first in self.epochs_of(partition) if first < at]
        self.epochs[partition] = [*kept, (self.epochs_of(partition)[-1][0] + 2, at)]
        self.source[partition] = [*(each for each in self.source[partition] if each.offset < at), *new]

    def remove(self, partition: int, first: int, following: int) -> None:
        """Let the source's log lose its records of these upstream offsets, but not its last one."""
        *rest, last = self.source[partition]
        kept = [each for each in rest if not first <= each.offset < following]
        self.gone.setdefault(partition, []).extend(each for each in rest if each not in kept)
        self.source[partition] = [*kept, last]

    def lane(self, partition: int) -> Lane:
        """The lane of a partition."""
        return Lane(FLOW, TOPIC if partition % self.topics == 0 else "payments", partition)

    def lease(self, partition: int = 0, *, job: str = "backfill-1", seconds: int = 60) -> None:
        """Let a job take a lane, or keep it for longer."""
        self.states.take(self.lane(partition), Lease(holder=job, until=self.now + seconds * 1000), now=self.now)

    def chunk(self, first: int, following: int, partition: int = 0) -> Batch:
        """What a job reads of upstream offsets [first, following): whatever is not in it does not exist."""
        found = [record for record in self.source[partition] if first <= record.offset < following]
        place = self.lane(partition).topic, partition
        return Batch(records={place: found}, covered={place: following})

    def batch(self, **offsets: list[int]) -> Batch:
        """Records by partition, as `p0=[1, 2]`; offsets that the source does not have are left out."""
        wanted = {int(name[1:]): set(found) for name, found in offsets.items()}
        return self._of({p: [record for record in self.source[p] if record.offset in o] for p, o in wanted.items()})

    def raw(self, batch: Batch) -> Batch:
        """The same by whole batches: those that hold any of its records, as a log is read by batches."""
        held = {place: (found[0].offset, found[-1].offset) for place, found in batch.records.items() if found}  # type: ignore[union-attr]  # records
        return Batch(
            records={
                place: [each for each in self.batches[place[1]] if each.base_offset <= last and first < each.next]
                for place, (first, last) in held.items()
            },
            covered=batch.covered,
        )

    def whole(self) -> Batch:
        """Everything that the source has."""
        return self._of({p: list(found) for p, found in self.source.items()})

    def _of(self, partitions: dict[int, list[Record]]) -> Batch:
        return Batch(records={(self.lane(p).topic, p): found for p, found in partitions.items()})

    def damage(self, partition: int, at: int, following: int) -> BatchUnreadable | None:
        """What a reader meets that reads on from an offset to another one."""
        first, behind = self.damaged.get(partition, (0, 0))
        if not (at < behind and first < following):
            return None
        return BatchUnreadable("its checksum is another one", offset=first, following=behind)

    def visible(self, partition: int = 0) -> list[int]:
        """The upstream offsets of what readers see, by the value of each record."""
        return [int(record.value or b"") for _, record in self._visible(partition)]

    def _visible(self, partition: int) -> list[tuple[int, Record]]:
        return self.cluster.visible(f"us-east.{self.lane(partition).topic}", partition)

    def assert_invariants(self) -> None:
        """A, C, D, F and G, and that the map is right, once nothing is open or in doubt."""
        self.assert_journals()
        for partition, stored in self.source.items():
            runs, visible = self.runs(partition), self._visible(partition)
            resets = [link for link in self.chains.of(self.lane(partition)) if isinstance(link, Reset)]
            newest, birth = (resets[-1].to_generation, resets[-1].next) if resets else (0, 0)
            own = [run for run in runs if run.generation == newest]
            position = own[-1].next if own else birth
            there = {record.offset: record for record in [*self.gone.get(partition, ()), *stored]}

            assert {run.state for run in runs} <= {"committed"}
            # A: both ways, byte for byte.
            assert [offset for offset, _ in visible] == [downstream for _, downstream in _pairs(runs)]
            copies = [self._copy(there[upstream], run) for run in runs for upstream, _ in _pairs([run])]
            for (_, record), copy in zip(visible, copies, strict=True):
                assert copy is not None
                assert _content(record) == _content(copy)
            # C: the runs lie end to end, and their spans hold what the source holds, but for what was ordered out.
            assert [run.position for run in own[:1]] in ([], [birth])
            assert all(first.next == second.position for first, second in pairwise(own))
            ordered_out = {offset for run in own for offset in run.quarantined}
            covered = {upstream for upstream, _ in _pairs(own)}
            filtered = {at: run for run in own for first, following in run.filtered for at in range(first, following)}
            held = covered | ordered_out | filtered.keys()
            assert held >= {each.offset for each in stored if birth <= each.offset < position}
            assert not covered & ordered_out
            # What a rule has left out is in no span, and nothing else is called so.
            assert not filtered.keys() & (covered | ordered_out)
            assert all(self._copy(there[at], run) is None for at, run in filtered.items())
            # D follows from A and C if both sides grow.
            assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(_pairs(own)))
            for upstream, downstream in _pairs(own):
                exact = Translation(offset=downstream, state="exact")
                assert OffsetMap(self.chains).downstream(self.lane(partition), upstream) == exact

    def assert_journals(self) -> None:
        """F and G, at any moment. An entry that stood would be overwritten if a number were taken twice."""
        newest: dict[Journal, dict[int, int]] = {}
        for (journal, number), entry in sorted(self.chains.memory.entries.items()):
            places = newest.setdefault(journal, {})
            assert number == len([key for key in self.chains.memory.entries if key[0] == journal and key[1] < number])
            others = {partition: at for partition, at in places.items() if partition not in entry.links}
            assert {partition: place.number for partition, place in entry.heads.items()} == others
            for partition, place in entry.heads.items():
                named = self.chains.memory.entries[journal, place.number].links[partition]
                assert (place.generation, place.position) == (named.generation, named.position)
            places |= dict.fromkeys(entry.links, number)

    def _assert_b(self) -> None:
        heads = self.chains.heads(self.lane(partition) for partition in self.source)
        for each, head in heads.items():
            stands = (head.generation, head.position)
            assert head.expired or stands >= self._positions.get(each.partition, (0, 0)), f"{each} moved back"
            self._positions[each.partition] = stands

    def _assert_e(self, writer: str, places: list[tuple[int, int]]) -> None:
        for partition, downstream in places:
            assert any(
                run.writer == writer and any(s.downstream <= downstream < s.downstream + s.length for s in run.spans)
                for run in self.runs(partition)
            ), f"{writer} commits {partition} @ {downstream}, which stands in no run of its own"


def world(*partitions: Iterable[int]) -> World:
    """A source with records at these upstream offsets of each partition."""
    return World({partition: records(*offsets) for partition, offsets in enumerate(partitions)})


def _pairs(runs: Iterable[Run]) -> list[tuple[int, int]]:
    """The upstream and the downstream offset of each of their records."""
    return [(s.upstream + i, s.downstream + i) for run in runs for s in run.spans for i in range(s.length)]


def _content(record: Record) -> tuple[int, bytes | None, bytes | None, Headers]:
    """Of a record, whatever its offset: a batch that was packed anew does not keep that of the source."""
    return record.timestamp, record.key, record.value, record.headers
