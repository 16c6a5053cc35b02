"""Lanes whose log was cut off and written on while a mapping read it, whose events tell no epochs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from mirrorless.chain.lane_state import LaneState, LeftOut, ReplicatedRanges
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.lanes.gaps import gaps_of
from mirrorless.lanes.log_comparison import Elected, LogComparison, LogParting
from mirrorless.lanes.operator_actions import NotAllowed, advice, plan_reset
from mirrorless.ports.kafka import RangesRead, TopicPartition
from mirrorless.protocol.log_parting import parted_stop
from mirrorless.protocol.replicate import Replicator
from mirrorless.records.record import Record
from mirrorless.transforms.rules import Rule
from tests.support.memory_log import read_at
from tests.support.protocol_world import NEW, T, World, lane, others, records, replicate
from tests.support.pulled import MemoryEpochs
from tests.support.tries import tries


@dataclass
class Mapped:
    """A lane of a world, whose poller reads on wherever it is, and the comparison of its log."""

    there: World
    at: int = 0
    compacted: set[int] = field(default_factory=set)
    reads: int = 0
    silent: bool = False
    """Whether nothing of the log comes in time."""
    at_once: int = 9
    """Logs of which something is read at once."""
    forwarder: Replicator = field(init=False)
    comparison: LogComparison = field(init=False)

    def __post_init__(self) -> None:
        self.forwarder = self.there.environment()
        self.comparison = LogComparison(chains=self.there.chains, epochs=MemoryEpochs(self.there), log=self)

    def deploy(self, keep: str) -> None:
        """Let a rule leave records out from now on."""
        self.there.deploy(Rule(topics=(".*",), keep=keep))
        self.forwarder = self.there.environment()
        self.comparison = replace(self.comparison, changed_of=self.forwarder.changed_of)

    def read(
        self, ranges: Mapping[TopicPartition, Sequence[tuple[int, int]]], deadline: Deadline, *, near: int, size: int
    ) -> dict[TopicPartition, RangesRead]:
        """See `CommittedLog.read`."""
        self.reads += 1
        found = {}
        for number, (place, wanted) in enumerate(ranges.items()):
            stored = [each for each in self.there.source[place[1]] if each.offset not in self.compacted]
            end = self.there.source[place[1]][-1].offset + 1
            if self.silent or number >= self.at_once:
                found[place] = RangesRead(until=-1)
                continue
            found[place] = read_at(wanted, stored, end)
        return found

    def deliver(self, *sizes: int) -> None:
        """Events of so many records each, from where the poller is."""
        for size in sizes:
            event = [each for each in self.there.source[0] if self.at <= each.offset < self.at + size]
            outcome = replicate(self.forwarder, self.there._of({0: event}))
            assert not outcome.stopped
            self.at = event[-1].offset + 1

    def elected(self, since: int = 0) -> Elected:
        """The lane, with the epochs of its log as it is."""
        return Elected(self.there.head(), since, self.there.epochs_of(0)[-1][0])

    def parting(self, since: int = 0) -> LogParting | None:
        """What the comparison finds; none where a glance suffices."""
        elected = self.elected(since)
        if lane() not in self.comparison.suspects({lane(): elected}, lambda: 9.0):
            return None
        return self.comparison.parting(lane(), elected, lambda: 9.0)

    def carry_out(self, found: LogParting) -> None:
        """All orders that the stop advises, with what the mapping delivers in between."""
        position = self.there.head().position
        stop = parted_stop(lane(), found.at, position=position, now=0, replicated=found.replicated)
        state = LaneState(stop=stop)
        to, left = found.at, found.replicated
        while left:
            assert stop is not None
            assert f"'us-east->eu-west' orders 0 --to {to} --until {left[0][0]} " in advice(lane(), stop)
            self.reset(state, to, left)
            self.deliver_all()
            state = self.there.states.states[lane()]
            assert state.stop is not None
            stop = state.stop
            assert stop.upstream_offset == self.there.head().position == left[0][0]
            to, left = left[0][1], left[1:]
        assert f"`mirrorless lanes reset 'us-east->eu-west' orders 0 --to {to} --reason" in advice(lane(), stop)
        self.reset(state, to)
        self.deliver_all()

    def reset(self, state: LaneState, to: int, replicated: ReplicatedRanges = ()) -> None:
        """The order, as the command carries it out."""
        head = self.there.head()
        plan = plan_reset(lane(), head, state, to, reason="as advised", now=0, replicated=replicated)
        if plan.loss is not None:
            self.there.ledger.note(plan.loss)
        self.there.chains.reset(plan.link, plan.given_up)
        self.there.states.begin_anew(lane(), plan.stop)
        self.forwarder, self.at = self.there.environment(), to

    def deliver_all(self) -> None:
        """All that is left, in one event; whatever is beyond a stop stays."""
        event = [each for each in self.there.source[0] if each.offset >= self.at]
        if event:
            replicate(self.forwarder, self.there._of({0: event}))


def mapped(count: int = 100, *sizes: int) -> Mapped:
    """A log of so many records, of which events of these sizes were delivered; of ten each, if no other is given."""
    found = Mapped(World({0: records(*range(count))}))
    found.deliver(*(sizes or [10] * (count // 10)))
    return found


@pytest.mark.parametrize("sizes", [[10] * 10, [1] * 100, [100], [37, 63]])
def test_a_new_leader_that_has_all_of_it_is_seen_at_a_glance(sizes: list[int]) -> None:
    there = mapped(120, *sizes)
    there.there.epochs[0] = [(0, 0), (2, 44), (4, 100), (6, 118)]

    assert there.parting() is None
    assert there.reads == 1


def test_logs_that_are_too_much_for_one_glance_are_looked_at_in_several() -> None:
    there = Mapped(World({partition: records(*range(20)) for partition in range(3)}), at_once=1)
    for partition in range(3):
        replicate(there.forwarder, there.there._of({partition: there.there.source[partition]}))
        there.there.epochs[partition] = [(0, 0), (2, 10)]
    there.there.source[1] = others(*range(20))
    heads = there.there.chains.heads([lane(partition) for partition in range(3)])
    elected = {each: Elected(head, 0, 2) for each, head in heads.items()}

    assert there.comparison.suspects(elected, lambda: 9.0) == {lane(1)}
    assert there.reads == 3
    there.silent = True
    assert there.comparison.suspects(elected, lambda: 9.0) == elected.keys()


def test_a_lane_at_rest_reads_nothing_after_an_election() -> None:
    there = mapped()
    there.there.epochs[0] = [(0, 0), (2, 100)]

    assert there.parting() is None
    assert there.reads == 0


def test_a_record_that_compaction_removed_is_no_sign_of_another_log() -> None:
    there = mapped()
    there.there.epochs[0] = [(0, 0), (2, 45)]
    there.compacted = {49, 59}

    assert there.parting() is None


def test_where_compaction_removed_the_last_record_the_others_show_another_log() -> None:
    there = mapped()
    there.there.cut_off(0, 50, *(Record(o, T - 5_000, [], b"k", b"x") for o in range(50, 120)))
    there.compacted = {59}

    found = there.parting()

    assert found is not None
    assert found.at == 50


@pytest.mark.parametrize("read", [[98], [60, 98]])
def test_what_replaced_aborted_records_at_the_end_of_a_run_was_not_replicated_already(read: list[int]) -> None:
    """The run's own records are below the place, and the same in both logs; another one may have none at all."""
    there = Mapped(World({0: records(*range(60))}))
    pull = there.there.environment(writer="pull")
    for first, following in pairwise([0, *read]):
        replicate(pull, there.there.chunk(first, following))
    there.there.cut_off(0, 60, *others(*range(60, 130)))

    assert there.comparison.replicated(lane(), there.elected().head, 60, lambda: 9.0) == ()
    there.at = 98
    there.deliver(10)
    assert there.comparison.replicated(lane(), there.elected().head, 60, lambda: 9.0) == ((98, 108),)


@pytest.mark.parametrize(
    ("keep", "found"),
    [(f"value < `60` || value >= `{NEW}`", LogParting(60, ((100, 120),))), ("value < `60`", None)],
)
def test_what_replaced_records_that_a_rule_left_out_is_missed_where_the_rule_keeps_it(
    keep: str, found: LogParting | None
) -> None:
    """The poller stood beyond the end of the log, and read on when that had grown."""
    there = Mapped(World({0: records(*range(100))}))
    there.deploy(keep)
    there.deliver(*[10] * 10)
    assert [run.filtered for run in there.there.runs()][6:] == [((at, at + 10),) for at in (60, 70, 80, 90)]

    there.there.cut_off(0, 60, *others(*range(60, 140)))
    there.deliver(20)

    assert there.parting() == found


def test_a_log_that_was_cut_off_twice_parts_at_the_lower_place() -> None:
    there = mapped()
    there.there.cut_off(0, 80, *others(*range(80, 90)))
    there.there.cut_off(0, 60, *others(*range(60, 140), more=2 * NEW))
    there.deliver(20)

    assert there.parting() == LogParting(60, ((100, 120),))


@pytest.mark.parametrize(
    ("cut", "old", "new", "again", "twice"),
    [
        (19, (17, 19), (50, 99), 50, range(0)),  # what it has of the old one is in the new one, too
        (19, (17, 18), (50, 99), 50, range(0)),
        (19, (17, 20), (50, 99), None, range(50, 99)),  # nothing shows where in the event the new log begins
        (17, (17, 40), (50, 99), None, range(50, 99)),
        (19, (17, 40), (40, 99), None, range(40, 99)),
    ],
)
def test_an_event_that_holds_records_of_both_logs_hides_none_of_the_new_one(
    cut: int, old: tuple[int, int], new: tuple[int, int], again: int | None, twice: range
) -> None:
    """The last one is of the new log, and the poller passed those between, or read on where others stood."""
    there = mapped(45, 8, old[0] - 8)
    event = there.there.source[0][slice(*old)]
    there.there.cut_off(0, cut, *others(*range(cut, 120)))
    event += there.there.source[0][slice(*new)]
    assert not replicate(there.forwarder, there.there._of({0: event})).stopped
    there.at = new[1]

    found = there.parting()

    assert found == LogParting(cut, ((again, new[1]),) if again is not None else ())
    there.carry_out(found)
    visible = there.there.visible()
    assert sorted(each for each in visible if each >= NEW) == sorted(
        NEW + offset for offset in [*range(cut, 120), *twice]
    )


def test_such_an_event_is_seen_where_the_gaps_of_events_are_read_from_the_log_too() -> None:
    there = mapped(45, 8, 9)
    event = there.there.source[0][17:40]
    there.there.cut_off(0, 19, *others(*range(19, 120)))
    event += there.there.source[0][40:99]
    there.forwarder.examined = True
    replicate(there.forwarder, there.there._of({0: event}))
    newest = there.elected().head.run
    assert newest is not None
    assert newest.examined

    assert there.parting() == LogParting(19, ())


def test_a_record_that_is_too_large_for_an_event_is_no_sign_of_another_log() -> None:
    there = mapped(20, 10)
    there.there.source[0][14] = Record(14, T + 14, [], b"k", bytes(5_000_000))
    event = [each for each in there.there.source[0][10:] if each.offset != 14]
    replicate(there.forwarder, there.there._of({0: event}))
    there.there.epochs[0] = [(0, 0), (2, 12)]

    assert there.parting() is None
    assert there.comparison.parting(lane(), there.elected(), lambda: 9.0) is None
    there.there.source[0][14] = Record(14, T + 14, [], b"k", bytes(1_000))
    assert there.parting() == LogParting(12, ((12, 14), (15, 20)))


def test_offsets_without_a_record_are_not_taken_for_passed() -> None:
    there = mapped()
    there.there.cut_off(0, 50, *others(*range(50, 110), *range(115, 200)))
    there.deliver(10, 20)

    assert there.parting() == LogParting(50, ((100, 130),))


def test_records_that_an_order_left_out_are_not_taken_for_passed() -> None:
    there = mapped()
    there.there.cut_off(0, 50, *others(*range(50, 200)))
    there.there.states.quarantine(lane(), LeftOut(first=105, next=107))
    there.there.cluster.refuses = lambda _topic, _partition, record: record.offset in {105, 106}
    there.forwarder = there.there.environment()
    there.deliver(10, 20)

    assert there.parting() == LogParting(50, ((100, 130),))


def test_a_lane_that_is_to_stand_still_does_so_behind_the_last_record_below_the_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mirrorless.lanes.log_comparison.WINDOW", 10)
    there = mapped()
    stands = {}
    for aborted in (range(0), range(96, 97), range(40, 100), range(100)):
        there.compacted = {*aborted}
        stands[aborted] = there.comparison.stands_at(lane(), 5, 97, lambda: 9.0)

    assert list(stands.values()) == [97, 96, 40, 5]

    there.compacted.clear()
    del there.there.source[0][90:]  # a leader that was just elected shows less for a moment
    with pytest.raises(Retriable, match="shows less than was replicated"):
        there.comparison.stands_at(lane(), 5, 97, lambda: 9.0)


def test_a_log_that_is_not_read_in_time_is_not_found_to_be_the_same() -> None:
    there = mapped()
    there.there.epochs[0] = [(0, 0), (1, 60)]
    there.there.source[0] = [*there.there.source[0][:60], *others(*range(60, 130))]
    there.silent = True

    with pytest.raises(Retriable, match="orders-0: the source's log was not read in time"):
        there.parting()


def test_another_topic_of_the_same_name_parts_at_its_beginning() -> None:
    there = mapped()
    there.there.epochs[0] = [(0, 0), (1, 30)]
    there.there.source[0] = others(*range(130))
    there.deliver(30)

    assert there.parting() == LogParting(0, ((100, 130),))
    assert there.comparison.replicated(lane(), there.elected().head, 0, lambda: 9.0) == ((100, 130),)


def test_of_another_topic_nothing_was_copied_where_the_poller_stands_still() -> None:
    there = mapped()
    there.there.source[0] = others(*range(130))

    assert there.comparison.replicated(lane(), there.elected().head, 0, lambda: 9.0) == ()


@pytest.mark.parametrize("seed", range(tries(200, many=5_000)))
def test_wherever_a_log_parts_each_new_record_that_its_rule_keeps_comes_once(seed: int) -> None:
    """It is not found to part where the rule leaves out what is missed, but for gaps, which the gap check explains."""
    chance = random.Random(seed)
    count = chance.randint(5, 60)
    kept = {each for each in range(2 * NEW) if chance.random() < 0.3}
    there = Mapped(World({0: records(*range(count))}))
    there.deploy(f"contains(`{sorted(kept)}`, value)")
    while there.at < count:
        there.deliver(chance.randint(1, 9))
    at, end = chance.randint(0, count - 1), count + chance.randint(0, 80)
    there.there.cut_off(0, at, *others(*range(at, end)))
    while there.at < end - 40 and chance.random() < 0.7:
        there.at += chance.choice([0, 0, chance.randint(1, 3), 40])
        there.deliver(chance.randint(1, 9))

    found = there.parting()

    if found is not None:
        assert found.at == at
        there.carry_out(found)
    else:
        there.deliver_all()
    gaps = [gap for run in there.there.runs() for gap in gaps_of(run, 0)] if found is None else []
    explained = {NEW + each for low, high in gaps for each in range(low, high)}
    due = kept.intersection([*range(count), *range(NEW + at, NEW + end)]) - explained
    assert sorted(there.there.visible()) == sorted(due)


@pytest.mark.parametrize("seed", range(tries(100, many=5_000)))
def test_wherever_a_log_parts_and_however_events_are_cut_each_new_record_comes_once(seed: int) -> None:
    """It may end below the position, and a poller may read on from beyond its end, or pass some of it."""
    chance = random.Random(seed)
    count = chance.randint(5, 60)
    there = Mapped(World({0: records(*range(count))}))
    while there.at < count:
        there.deliver(chance.randint(1, 9))
    epochs = sorted(chance.sample(range(count), chance.randint(0, 3)))
    there.there.epochs[0] = [(0, 0), *((2 * i + 2, first) for i, first in enumerate(epochs))]
    at, since = chance.randint(0, count - 1), there.there.epochs_of(0)[-1][0]
    end = chance.choice([chance.randint(max(at, 1), count), count + chance.randint(0, 80)])
    there.there.cut_off(0, at, *others(*range(at, end)))
    brought = list[tuple[int, int]]()
    while there.at < end - 40 and chance.random() < 0.7:
        there.at += chance.choice([0, 0, 0, chance.randint(1, 3), 40])
        first = there.at
        there.deliver(chance.randint(1, 9))
        if brought and brought[-1][1] == first:
            first = brought.pop()[0]
        brought.append((first, there.at))

    found = there.parting(since)

    assert found == LogParting(at, tuple(brought))
    there.carry_out(found)
    visible = there.there.visible()
    assert visible[:count] == list(range(count))
    assert sorted(visible[count:]) == [NEW + each for each in range(at, end)]
    assert there.there.ledger.read(lane()) == []
    parts = [(one, other) for one, other in pairwise(visible[count:]) if one >= other]
    assert len(parts) <= len(brought) + 1, "one part behind the other, each in order"


def test_where_several_epochs_ended_in_one_run_since_the_last_look_none_of_its_records_is_given_up() -> None:
    """Those of it that were the same come twice: nothing shows where in the run it parts."""
    there = mapped()
    there.there.epochs[0] = [(0, 0), (2, 52)]
    there.there.cut_off(0, 55, *others(*range(55, 120)))

    assert there.parting(0) == LogParting(52, ())
    assert there.parting(2) == LogParting(55, ())


def test_a_reset_that_ends_is_to_end_between_its_beginning_and_the_position() -> None:
    there = mapped()
    head = there.there.head()

    for until in (49, 100, 120):
        with pytest.raises(NotAllowed):
            plan_reset(lane(), head, LaneState(), 50, reason="", now=0, replicated=((until, 100),))
