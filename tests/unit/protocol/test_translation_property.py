"""Whatever happened to a lane, the map places every offset exactly: histories at random, held against both logs.

The real forwarder replicates on a cluster in memory, so that the runs, the aborted copies and the markers are those
that it leaves. The oracle has no map: it lists both logs, record by record.

    source    r0 r1 (marker) (compacted) r4 | r5 ...        what a mapping delivers, in batches of any size
    target    r0 r1 (aborted) M r0 r1 M  r4 M ...           crashes leave copies that no reader sees
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorless.chain.lane_state import Head
from mirrorless.errors import Retriable
from mirrorless.protocol import hooks
from mirrorless.protocol.event import Batch
from mirrorless.protocol.hooks import STEPS, Step
from mirrorless.protocol.translate import OffsetMap, Translation
from mirrorless.records.record import Record
from tests.support.chains import LANE, MemoryChains, reset
from tests.support.clusters import Entry, MemoryCluster
from tests.support.mm2_store import Sync, SyncStore, SyncWriter
from tests.support.protocol_world import REMOTE, World, records, replicate
from tests.support.schedule import Killed
from tests.support.tries import tries


class SharedLog(list[Entry]):
    """A partition into which a rival writes as well: its copies stand between ours, and are aborted in the end."""

    every = 0
    """After so many of our entries stands one of the rival's; 0: it is silent."""

    def append(self, entry: Entry) -> None:
        """Ours, and perhaps the rival's behind it."""
        super().append(entry)
        if self.every and len(self) % self.every == 0:
            super().append(Entry(None, "aborted", "rival"))


@dataclass
class History:
    """One lane with its two logs. Every method is something that may happen to it."""

    there: World = field(default_factory=lambda: World({0: []}, cluster=MemoryCluster(topics={REMOTE: [SharedLog()]})))
    source: list[Record] = field(default_factory=list)
    """The records that a read_committed reader of the source finds."""
    end: int = 0
    """The source's end: above the last record may stand a marker."""
    birth: int = 0
    """First upstream offset of the newest generation."""
    born_at: int = 0
    """The target's end at that moment: what stands below is of an older generation."""

    @property
    def chains(self) -> MemoryChains:
        """The lane's."""
        return self.there.chains

    # The source

    def produce(self, count: int) -> None:
        """Records that are there to stay."""
        self.source += records(*range(self.end, self.end + count))
        self.end += count

    def pass_over(self, count: int) -> None:
        """Offsets that no reader finds: aborted records, and the marker of a transaction."""
        self.end += count

    def compact(self, every: int) -> None:
        """Leave out every so-manieth record but the last, whether it was replicated or not."""
        self.source = [each for i, each in enumerate(self.source) if i % every or i + 1 == len(self.source)]

    # The forwarder

    def deliver(self, back: int, count: int, crash: Step | None) -> None:
        """A batch that begins `back` records below the position; its environment may die at a step."""
        first = bisect_left(self.source, self._head().position, key=lambda record: record.offset)
        batch = self.source[max(0, first - back) :][:count]
        batch = [record for record in batch if record.offset >= self.birth]
        if not batch:
            return

        def observer(step: Step) -> None:
            if step == crash:
                raise Killed

        hooks.observers.append(observer)
        try:
            # In a new environment each time: a warm one must not remember.
            assert not replicate(self.there.environment(), Batch.of_topic(LANE.topic, {0: batch})).stopped
        except (Killed, Retriable):
            self.there.cluster.time_transactions_out()
        finally:
            hooks.observers.remove(observer)

    def settle(self) -> None:
        """The mapping delivers the same records again until it succeeds, so no run stays in doubt."""
        if self._head().in_doubt:
            self.deliver(0, 3, None)
            assert not self._head().in_doubt

    def reset(self, move: int) -> None:
        """The operator lets the lane go on at another offset, before or behind its position."""
        self.settle()
        self._begin_anew(max(0, self._head().position + move))

    def recreate(self) -> None:
        """The source topic was deleted and created again, and the operator begins with its first record."""
        self.settle()
        self.source, self.end = [], 0
        self._begin_anew(0)

    # The oracle

    def newest(self) -> list[tuple[int, int]]:
        """Upstream and downstream offset of every record of this generation that a reader of the target finds."""
        return [(up, down) for up, down in self.visible() if down >= self.born_at]

    def visible(self) -> list[tuple[int, int]]:
        """The same of all generations."""
        return [(int(record.value or b""), offset) for offset, record in self.there.cluster.visible(REMOTE, 0)]

    @property
    def log(self) -> SharedLog:
        """The remote topic's only partition."""
        (partition,) = self.there.cluster.topics[REMOTE]
        assert isinstance(partition, SharedLog)
        return partition

    def _head(self) -> Head:
        return self.there.head()

    def _begin_anew(self, following: int) -> None:
        head = self._head()
        self.chains.reset(reset(head.position, following, generation=head.generation))
        self.birth, self.born_at = following, len(self.log)


@dataclass(frozen=True)
class Round:
    """What happens between two looks at a lane: records appear and disappear, and a batch is delivered."""

    produced: int
    passed_over: int
    compacted: int
    rival: int
    back: int
    count: int
    crash: Step | None


@dataclass(frozen=True)
class Generation:
    """Rounds, and how the next generation begins: by a reset that moves the lane, or by another topic."""

    rounds: list[Round]
    moved: int | None


ROUNDS = st.builds(
    Round,
    produced=st.integers(0, 10),
    passed_over=st.integers(0, 3),
    compacted=st.sampled_from([0, 0, 2, 3, 5]),
    rival=st.sampled_from([0, 0, 2, 3, 5]),
    back=st.integers(0, 5),
    count=st.integers(1, 12),
    crash=st.one_of(st.none(), st.sampled_from(STEPS)),
)
NEXT = st.one_of(st.integers(-10, 4), st.none())
HISTORIES = st.lists(st.builds(Generation, rounds=st.lists(ROUNDS, min_size=1, max_size=10), moved=NEXT), max_size=3)


def happened(history: list[Generation]) -> History:
    """A lane to which all this happened, in order; nothing is in doubt at its end."""
    lane = History()
    for number, generation in enumerate(history):
        if number:
            before = history[number - 1].moved
            lane.recreate() if before is None else lane.reset(before)
        for each in generation.rounds:
            lane.produce(each.produced)
            lane.pass_over(each.passed_over)
            if each.compacted:
                lane.compact(each.compacted)
            lane.log.every = each.rival
            lane.deliver(each.back, each.count, each.crash)
    lane.settle()
    return lane


@settings(max_examples=tries(60, many=600), deadline=None)
@given(HISTORIES, st.sampled_from([0, 1, 2, 5, 10]))
def test_every_offset_translates_both_ways_to_the_record_at_it_or_the_next_and_never_behind_mm2s(
    history: list[Generation], lag_max: int
) -> None:
    lane = happened(history)

    assert_downstream(lane)
    assert_upstream(lane)
    assert_never_behind_mm2(lane, lag_max)


def assert_downstream(lane: History) -> None:
    """The true place: where a consumer that committed this offset finds the next record that it has not read."""
    there, offsets = lane.newest(), OffsetMap(lane.chains)
    for upstream in range(lane.end + 3):
        found = offsets.downstream(LANE, upstream)
        assert found.offset == true_place(there, upstream)
        at_record = any(up == upstream for up, _ in there)
        assert at_record <= (found.state == "exact")


def assert_upstream(lane: History) -> None:
    """At markers and copies that were aborted, and below the generation, that is the next record of it."""
    there, offsets = lane.newest(), OffsetMap(lane.chains)
    for downstream in range(len(lane.log) + 3):
        found = offsets.upstream(LANE, downstream)
        following = next((up for up, down in there if down >= downstream), None)
        if not there:
            assert found == Translation(offset=None, state="no_map")
        elif following is not None:
            assert found.offset == following
        else:  # everything was read: the next record will be the first that was not replicated
            assert found.offset == there[-1][0] + 1
        at_record = any(down == downstream for _, down in there)
        assert at_record <= (found.state == "exact")


def assert_never_behind_mm2(lane: History, lag_max: int) -> None:
    """MM2 sees the records as they were acknowledged; nothing that it stores may place an offset better."""
    there, offsets, store = lane.newest(), OffsetMap(lane.chains), SyncStore()
    writer = SyncWriter(lag_max=lag_max)
    for up, down in lane.visible():
        if writer.is_due(up, down):
            store.add(Sync(up, down))
    for upstream in range(lane.end + 3) if there else ():
        ours, mm2 = offsets.downstream(LANE, upstream).offset, store.translate(upstream)
        assert ours is not None
        assert mm2 is not None
        assert mm2 <= ours
        assert ours <= (true_place(there, upstream) or 0)


def true_place(there: Sequence[tuple[int, int]], upstream: int) -> int | None:
    """The first downstream offset whose record's upstream offset is at or after this one, by looking at each.

    Behind the last record it is the end of what was replicated; None when nothing was.
    """
    end = there[-1][1] + 1 if there else None
    return next((down for up, down in there if up >= upstream), end)
