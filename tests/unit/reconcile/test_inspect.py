"""The inspection of a lane before a reconciliation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.chain.lane import Lane
from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError, RecordsGone, Retriable
from mirrorless.jobs.copy_task import Chunk, OffsetRange
from mirrorless.jobs.topic_ids import ids_of_run, made_anew
from mirrorless.ports.kafka import TopicPartition
from mirrorless.reconcile import inspect
from mirrorless.reconcile.difference import Stretch
from mirrorless.reconcile.inspect import KeptPlaces, LaneView, left_to_watch, still_written
from mirrorless.reconcile.tasks import InspectTask, LaneInspection, LaneOrphans, OrphanTask, ReconciledLane
from mirrorless.records.record import Record
from tests.support.chains import FLOW, LANE, MemoryChains, MemoryLaneStates, reset, run
from tests.support.flows import make_flow

SETTINGS = make_flow(FLOW)
LANES = ReconciledLane(forward=LANE, remote_topic="us-east.orders", generation=0)
TASK = InspectTask(settings=SETTINGS, topic=LANE.topic, partition=0, remote_topic=LANES.remote_topic)


def view_of(chains: MemoryChains | None = None, **parts: Any) -> LaneView:
    """A view that reads these parts, and no others."""
    unread: dict[str, Any] = dict.fromkeys(("target", "source_log", "target_log", "source_ends", "target_ends"))
    usual: dict[str, Any] = {"states": MemoryLaneStates(), "sleep": lambda _: None}
    return LaneView(chains=chains or MemoryChains(), **unread | usual | parts)


@dataclass(slots=True)
class FakeLog:
    """A log whose reader may be slow, fail, or die."""

    offsets: Collection[int]
    chunk: int = 1
    seconds: float = 0.0
    """Of a chunk."""
    fails_behind: int = 1_000
    """Chunks of a read."""
    dies: int = 1_000
    """The offset at which a worker dies."""
    clock: float = 0.0
    reads: list[int] = field(default_factory=list)

    def bounds(self, topic: str, partition: int, deadline: Deadline) -> OffsetRange:
        """See `LaneLog.bounds`."""
        return OffsetRange(min(self.offsets), max(self.offsets) + 1)

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[Chunk]:
        """See `LaneLog.read`."""
        self.reads.append(wanted.first)
        for first in range(wanted.first, wanted.next, self.chunk):
            self.clock += self.seconds
            if deadline() <= 0 or first >= wanted.first + self.fails_behind * self.chunk:
                raise Retriable("showed nothing in time")
            if first >= self.dies:
                raise RecordsGone("the worker dies here")
            following = min(first + self.chunk, wanted.next)
            some = [offset for offset in range(first, following) if offset in self.offsets]
            yield Chunk([Record(offset=offset, timestamp=1, headers=[]) for offset in some], following)


def test_a_lane_whose_chain_lost_its_end_is_left_alone() -> None:
    """What is counted from there on would be copied back although it came from the source."""
    chains = MemoryChains()
    chains.prepare([run(0, 10, (0, 0, 10)), run(0, 1, lane=Lane(FLOW, LANE.topic, 1), attempt="beside")])
    chains.replace_link(chains.of(LANE)[0], None)

    found = view_of(chains.beside()).inspect(TASK)

    assert "has expired" in found.differs


def beyond(offsets: set[int], *, closed: bool = True, source: tuple[int, int, int] | None = None) -> LaneInspection:
    """The inspection of `orders-3`, whose chain had ten records until it was closed.

    Args:
        offsets: of the records on the target.
        closed: whether there was a chain at all.
        source: its ends there; None: the topic has three partitions.
    """
    lane, end = Lane(FLOW, LANE.topic, 3), max(offsets, default=-1) + 1
    chains = MemoryChains()
    if closed:
        chains.prepare([run(0, 10, (0, 0, 10), lane=lane)])
        chains.reset(reset(10, 0, lane=lane))
    view = view_of(
        chains,
        target_log=FakeLog(offsets, chunk=100),
        source_ends=lambda *_: source,
        target_ends=lambda *_: (0, end, end),
    )
    return view.inspect(replace(TASK, partition=3, count=True, source_partitions=3 if source is None else None))


def test_what_stands_in_a_partition_that_the_source_does_not_have_is_counted_and_named() -> None:
    """Without asking the source for the partition, which it answered with a time-out of two minutes."""
    found = beyond({*range(10), 11, 12, 14, 15})
    assert found.differs == (
        "4 records of us-east.orders-3 stay there: the source's topic has 3 partitions, and not this one. "
        "To bring them back, give the topic 4 partitions, and reconcile again"
    )
    assert (found.tail_records, found.claimed_records) == (4, 10)

    assert not beyond(set(range(10))).differs, "the old topic's records alone are the flow's own copies"
    assert beyond(set(range(7)), closed=False).differs.startswith("7 records of us-east.orders-3 stay there")
    assert not beyond(set()).differs


def test_once_the_source_has_the_partition_what_was_new_comes_back_and_what_was_copied_does_not() -> None:
    found = beyond({*range(10), 11, 12, 14, 15}, source=(0, 0, 0))

    assert not found.differs
    assert found.to_copy == (OffsetRange(11, 16),)
    assert found.tail_records == 4


def test_a_search_for_orphans_takes_as_long_as_it_takes_and_goes_on_where_it_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = FakeLog(range(40), seconds=50.0, fails_behind=2)
    monkeypatch.setattr("time.monotonic", lambda: log.clock)
    view = view_of(source_log=log, clock=lambda: log.clock)

    found = view.orphans(OrphanTask(settings=SETTINGS, lane=LANES, position=0, until=40))

    assert found.stretches == (Stretch(0, 40, 40, 0),)
    assert log.reads == list(range(0, 40, 2))


def test_a_source_that_grows_is_left_alone_where_what_comes_would_count_as_an_orphan() -> None:
    seen = LaneInspection(topic="orders", partition=0, remote_topic="us-east.orders", source=OffsetRange(0, 10))
    reconciled = replace(seen, reconciled=True)

    assert "10, and a moment later 11" in still_written(seen, 11)
    assert not still_written(seen, 10)
    assert not still_written(reconciled, 11), "the flow goes on from the position"
    assert still_written(replace(reconciled, tail=OffsetRange(5, 6)), 11), "it would stand among the copies"


@pytest.mark.parametrize(
    ("before", "seconds", "left"),
    [
        ({("orders", 0): 7, ("orders", 1): 9}, 4.0, 6.0),
        ({("orders", 0): 7, ("orders", 1): 9}, 70.0, 0.0),
        ({("orders", 0): 7, ("orders", 1): 8}, 70.0, 10.0),
        ({("orders", 0): 7}, 70.0, 10.0),
        ({}, 0.0, 10.0),
    ],
    ids=["half watched", "watched", "one has grown", "one was not there", "nothing known"],
)
def test_a_source_that_stood_still_while_something_else_was_waited_for_is_not_watched_twice(
    before: dict[TopicPartition, int], seconds: float, left: float
) -> None:
    inspected = {("orders", 0): 7, ("orders", 1): 9}
    assert left_to_watch(inspected, before, seconds=seconds, still=10.0) == left


@dataclass(slots=True)
class Looker:
    """Attempts at the looks of one lane; its chain ends at 0 on the source, and what came back stands at 30 to 39."""

    folder: Path
    log: FakeLog = field(default_factory=lambda: FakeLog(range(100), chunk=10))
    chains: MemoryChains = field(default_factory=MemoryChains)

    def __post_init__(self) -> None:
        self.chains.prepare([run(0, 10, (0, 30, 10), lane=LANES.back, attempt="back")])

    def view(self) -> LaneView:
        """Of a new worker."""
        kept, ends = KeptPlaces(files=open_job_files(str(self.folder)), lane="orders-0"), lambda *_: (0, 100, 100)
        logs = {"source_log": self.log, "target_log": self.log}
        return view_of(self.chains.beside(), **logs, source_ends=ends, target_ends=ends, kept=kept)

    def orphans(self, **changes: Any) -> LaneOrphans:
        """One attempt to find orphans."""
        return self.view().orphans(replace(OrphanTask(settings=SETTINGS, lane=LANES, position=0, until=100), **changes))

    def new(self, **changes: Any) -> LaneInspection:
        """One attempt to count what is new on the target."""
        return self.view().inspect(replace(TASK, count=True, **changes))


@pytest.fixture
def looker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looker:
    monkeypatch.setattr(inspect, "KEPT_EVERY_SECONDS", 0.0)
    return Looker(tmp_path)


def died(looker: Looker, attempt: Callable[[], object], *, at: int) -> None:
    """An attempt whose worker dies; the next one does not."""
    looker.log.dies = at
    with pytest.raises(MirrorlessError):
        attempt()
    looker.log.dies = 1_000


def test_a_task_that_is_started_anew_looks_for_orphans_where_it_was(looker: Looker) -> None:
    died(looker, looker.orphans, at=60)

    found = looker.orphans()

    assert looker.log.reads == [0, 60]
    assert found.stretches == (Stretch(0, 30, 30, 0), Stretch(40, 100, 60, 0))


def test_a_task_that_is_started_anew_counts_what_is_new_where_it_was(looker: Looker) -> None:
    died(looker, looker.new, at=70)

    found = looker.new()

    assert looker.log.reads == [10, 70]
    assert (found.tail, found.tail_records) == (OffsetRange(10, 100), 90)


@pytest.mark.parametrize("changed", [{"position": 5}, {"until": 90}, {"topic_ids": "another"}])
def test_a_look_of_another_state_of_the_lane_begins_anew(looker: Looker, changed: dict[str, Any]) -> None:
    died(looker, looker.orphans, at=60)

    looker.orphans(**changed)

    assert looker.log.reads == [0, changed.get("position", 0)]


def test_a_topic_that_is_made_anew_during_a_run_is_noticed(tmp_path: Path) -> None:
    files = open_job_files(str(tmp_path))
    begun = ids_of_run(files, {"us-east orders": "A"})
    later = ids_of_run(files, {"us-east orders": "B", "eu-west us-east.orders": "C"})

    assert begun == {"us-east orders": "A"}
    assert later == {"us-east orders": "A", "eu-west us-east.orders": "C"}
    assert "its id was A and is B" in made_anew(["us-east orders"], later, {"us-east orders": "B"})
    assert not made_anew(["us-east orders", "eu-west gone"], later, {"us-east orders": "A"})
    assert not made_anew(["us-east orders"], later, {}), "a topic that is not there has another error"
