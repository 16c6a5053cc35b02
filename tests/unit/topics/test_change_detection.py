"""Source topics that lost their ends: which lanes stop, and where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import cast

import msgspec
import pytest

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop, StopReason
from mirrorless.clock import Deadline
from mirrorless.lanes.check_state import LaneNotes, TopicNotes, write_notes
from mirrorless.lanes.operator_actions import plan_reset
from mirrorless.ports.topics import SourceTopics, TargetTopics
from mirrorless.records.record import Record
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.change_detection import ChangeDetector, SourceSnapshot
from mirrorless.topics.topic_state import Recreated, StoredTopics, TopicState
from tests.support.chains import FLOW, LANE, MemoryChains, MemoryLaneStates, reset, run
from tests.support.documents import MemoryDocuments
from tests.support.flows import make_control
from tests.support.protocol_world import T, World, lane, records
from tests.support.pulled import MemoryEpochs

SETTINGS = make_control()


@dataclass
class Rounds:
    """The rounds of one topic of one partition, of whose records all have been copied."""

    there: World
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)

    def next(self) -> RoundReport:
        """One round."""
        there, report = self.there, RoundReport()
        end = there.source[0][-1].offset + 1
        counts, ends = {"orders": 1}, {("orders", 0): end}
        snapshot = SourceSnapshot(on_source=counts, taken=counts, ids={"orders": "id"}, ends=ends)
        ChangeDetector(
            settings=SETTINGS,
            source=cast("SourceTopics", self),
            epochs=MemoryEpochs(there),
            target=cast("TargetTopics", None),
            documents=self.documents,
            chains=there.chains,
            states=there.states,
            clock=lambda: there.now,
        ).detect(snapshot, report, lambda: 30.0)
        return report

    def ends(self, *_: object) -> dict[tuple[str, int], int]:
        """See `SourceTopics.ends`."""
        return {("orders", 0): self.there.source[0][-1].offset + 1}

    def stop(self) -> Stop:
        """Of the lane."""
        stop = self.there.states.states[lane()].stop
        assert stop is not None
        return stop


def rounds(*, epoch: int) -> Rounds:
    """After a round that saw 100 records, all of which were copied. Args: epoch: of the newest run."""
    there = Rounds(World({0: records(*range(100))}, markers=False))
    link = replace(run(0, 100, (0, 0, 100)), epoch=epoch)
    there.there.chains.prepare([link])
    there.next()
    return there


def others(first: int, following: int) -> list[Record]:
    return [msgspec.structs.replace(each, value=b"another") for each in records(*range(first, following))]


@pytest.mark.parametrize("known", ["by the run", "by the lane check"])
@pytest.mark.parametrize("standing", [False, True])
def test_a_log_that_was_written_on_before_its_end_was_read_stops_where_it_parts(known: str, *, standing: bool) -> None:
    """By its end 20 new records would be left out."""
    there = rounds(epoch=0 if known == "by the run" else -1)
    if known == "by the lane check":
        write_notes(there.documents, FLOW, {"orders": TopicNotes(lanes={0: LaneNotes(epoch=0)})})
    if standing:
        there.there.states.stop(lane(), Stop(reason="contradiction", upstream_offset=0, detail="", at=1))
    there.there.cut_off(0, 50, *others(50, 70))

    report = there.next()

    assert (there.stop().reason, there.stop().upstream_offset) == ("truncated", 50)
    assert "--to 50 " in there.stop().detail
    assert any("--to 50 " in trouble for trouble in report.troubles)
    assert there.next().counts.get("lanes-stopped", 0) == 0


def test_where_no_epoch_is_known_the_end_is_the_place() -> None:
    there = rounds(epoch=-1)
    there.there.cut_off(0, 50, *others(50, 70))

    there.next()

    assert there.stop().upstream_offset == 70


def test_a_lane_that_is_held_stays_so() -> None:
    there = rounds(epoch=0)
    held = Stop(reason="held", upstream_offset=100, detail="as ordered", at=1)
    there.there.states.stop(lane(), held)
    there.there.cut_off(0, 50, *others(50, 70))

    there.next()

    assert there.stop() == replace(held, untrue_from=50)


@dataclass(slots=True)
class TopicIds:
    """As much of `mirrorless.ports.topics.TargetTopics` as has topics' ids."""

    ids: dict[str, str] = field(default_factory=dict)

    def topic_ids(self, names: Iterable[str], deadline: Deadline) -> dict[str, str]:
        """See `SourceTopics.topic_ids`."""
        return {name: self.ids[name] for name in names if name in self.ids}


@dataclass(slots=True)
class RemoteRounds:
    """The rounds of one topic of three partitions: the first has runs, the second a run in doubt, the third none."""

    target: TopicIds = field(default_factory=lambda: TopicIds({"us-east.orders": "old"}))
    chains: MemoryChains = field(default_factory=MemoryChains)
    states: MemoryLaneStates = field(default_factory=MemoryLaneStates)
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    before: TopicState = field(
        default_factory=lambda: TopicState(topic="orders", topic_id="of-the-source", partitions=3, first_seen=1)
    )

    def __post_init__(self) -> None:
        self.chains.prepare([run(0, 5, (0, 0, 5)), run(5, 9, (5, 6, 4))])
        self.chains.prepare([run(0, 5, (0, 0, 5), lane=lane_of(1), state="prepared")])

    def next(self) -> RoundReport:
        """One round; what it stored is what the next one begins with."""
        report = RoundReport()
        detector = ChangeDetector(
            settings=SETTINGS,
            source=cast("SourceTopics", None),
            epochs=cast("MemoryEpochs", None),
            target=cast("TargetTopics", self.target),
            documents=self.documents,
            chains=self.chains,
            states=self.states,
            clock=lambda: T,
        )
        detector.detect_remote({"orders": self.before}, report, lambda: 30.0)
        self.before = StoredTopics.of(self.documents.read(FLOW, "topic")).topics.get("orders", self.before)
        return report


def lane_of(partition: int) -> Lane:
    return Lane(FLOW, "orders", partition)


def test_a_remote_topic_that_stays_the_same_or_is_missing_is_stored_once_and_stops_nothing() -> None:
    rounds = RemoteRounds()

    reports = [rounds.next() for _ in range(3)]
    rounds.target.ids.clear()
    reports.append(rounds.next())

    assert (rounds.before.remote_topic_id, rounds.documents.writes) == ("old", 1)
    assert (rounds.states.states, [report.troubles for report in reports]) == ({}, [[]] * 4)


def test_lanes_with_committed_runs_stop_as_broken_and_one_in_doubt_is_settled_first() -> None:
    rounds = RemoteRounds()
    rounds.next()
    rounds.target.ids["us-east.orders"] = "new"

    report = rounds.next()

    stop = rounds.states.states[LANE].stop
    assert stop is not None
    assert (list(rounds.states.states), stop.reason, stop.upstream_offset) == ([LANE], "remote_recreated", 5)
    assert "its id was old and is new" in stop.detail
    assert "mirrorless lanes reset 'us-east->eu-west' orders 0 --to earliest" in report.troubles[0] + stop.detail
    assert "us-east.orders was deleted on the target and created again" in report.troubles[0]
    assert (rounds.before.remote_topic_id, rounds.before.remote_recreated) == (
        "old",
        Recreated("new", {0: 0, 1: 0}),
    )

    # A lane that moved on before the stop came is no run in doubt that a reset may drop.
    head = rounds.chains.heads([LANE])[LANE]
    assert plan_reset(LANE, head, rounds.states.states[LANE], 0, reason="remade", now=T).given_up is None


@pytest.mark.parametrize("reason", ["held", "refused"])
def test_a_lane_that_is_stopped_already_keeps_its_stop_which_says_that_the_map_is_not_true(reason: StopReason) -> None:
    rounds = RemoteRounds()
    rounds.next()
    before = Stop(reason=reason, upstream_offset=9, detail="as told", at=1)
    rounds.states.stop(LANE, before)
    rounds.target.ids["us-east.orders"] = "new"

    reports = [rounds.next(), rounds.next()]

    assert rounds.states.states[LANE].stop == replace(before, untrue_from=0)
    assert [report.counts["lanes-stopped"] for report in reports] == [0, 0]


def test_a_lane_of_a_stopped_flow_gets_a_stop_of_its_own_for_the_flow_will_go_on() -> None:
    rounds = RemoteRounds()
    rounds.next()
    rounds.states.stop_flow(FLOW, Stop(reason="held", upstream_offset=0, detail="failover", at=1))
    rounds.target.ids["us-east.orders"] = "new"
    rounds.next()

    rounds.states.resume_flow(FLOW)

    stop = rounds.states.read([LANE])[LANE].stop
    assert stop is not None
    assert (stop.reason, stop.untrue_from) == ("remote_recreated", 0)


def test_a_resumed_lane_stops_again_until_it_is_reset() -> None:
    rounds = RemoteRounds()
    rounds.chains.confirm([run(0, 5, (0, 0, 5), lane=lane_of(1), state="prepared").committed()])
    rounds.next()
    rounds.target.ids["us-east.orders"] = "new"
    rounds.next()

    rounds.states.resume(LANE)
    rounds.next()
    assert {each.partition for each, state in rounds.states.states.items() if state.stop} == {0, 1}

    rounds.chains.reset(reset(9, 0))
    rounds.states.resume(LANE)
    rounds.next()
    assert rounds.before.remote_recreated == Recreated("new", {1: 0})

    rounds.chains.reset(reset(5, 0, lane=lane_of(1)))
    rounds.states.resume(lane_of(1))
    assert rounds.next().troubles == []
    ended = rounds.before
    assert (ended.remote_topic_id, ended.remote_recreated) == ("new", None)
    assert [state.stop for state in rounds.states.states.values()] == [None, None]
