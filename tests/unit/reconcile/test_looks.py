"""Looks that a task begins anew: they go on where they were, and only where nothing else is looked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.errors import MirrorlessError, RecordsGone
from mirrorless.jobs.copy_task import Chunk, OffsetRange
from mirrorless.jobs.topic_ids import ids_of_run, made_anew
from mirrorless.ports.kafka import Deadline
from mirrorless.reconcile import looks
from mirrorless.reconcile.findings import InspectTask, LaneInspection, LaneNames, LaneOrphans, OrphanTask
from mirrorless.reconcile.inspect import LaneView
from mirrorless.reconcile.looks import KeptPlaces
from mirrorless.reconcile.orphans import Stretch
from mirrorless.record import Record
from tests.support.chains import LANE, MemoryChains, MemoryLaneStates, run
from tests.unit.reconcile.test_inspect import SETTINGS

NAMES = LaneNames(topic=LANE.topic, partition=0, remote="us-east.orders", generation=0)
REMOTE = "us-east.orders"


@dataclass(slots=True)
class DyingLog:
    """A log of a hundred records, ten of a chunk; a worker dies where it reads beyond an offset."""

    dies: int = 1_000
    reads: list[int] = field(default_factory=list)

    def bounds(self, topic: str, partition: int, deadline: Deadline) -> OffsetRange:  # noqa: ARG002  the port's
        """See `LaneLog.bounds`."""
        return OffsetRange(0, 100)

    def read(self, topic: str, partition: int, wanted: OffsetRange, deadline: Deadline) -> Iterator[Chunk]:  # noqa: ARG002  the port's
        """See `LaneLog.read`."""
        self.reads.append(wanted.first)
        for first in range(wanted.first, wanted.next, 10):
            if first >= self.dies:
                raise RecordsGone("the worker dies here")
            following = min(first + 10, wanted.next)
            yield Chunk(
                [Record(offset=offset, timestamp=1, headers=[]) for offset in range(first, following)], following
            )


@dataclass(slots=True)
class Looker:
    """Attempts at the looks of one lane; its chain ends at 0 on the source, and what came back stands at 30 to 39."""

    folder: Path
    log: DyingLog = field(default_factory=DyingLog)
    chains: MemoryChains = field(default_factory=MemoryChains)

    def __post_init__(self) -> None:
        self.chains.prepare([run(0, 10, (0, 30, 10), lane=NAMES.of(SETTINGS.name).back, attempt="back")])

    def view(self) -> LaneView:
        """Of a new worker."""
        return LaneView(
            chains=self.chains.beside(),
            states=MemoryLaneStates(),
            target=cast("Any", None),
            source_log=self.log,
            target_log=self.log,
            source_ends=lambda *_: (0, 100, 100),
            target_ends=lambda *_: (0, 100, 100),
            kept=KeptPlaces(files=open_job_files(str(self.folder)), lane="orders-0"),
        )

    def orphans(self, **changes: Any) -> LaneOrphans:
        """One attempt to find orphans."""
        return self.view().orphans(
            replace(OrphanTask(settings=SETTINGS, names=NAMES, position=0, until=100), **changes)
        )

    def new(self, **changes: Any) -> LaneInspection:
        """One attempt to count what is new on the target."""
        task = InspectTask(settings=SETTINGS, topic=LANE.topic, partition=0, remote_topic=REMOTE, count=True)
        return self.view().inspect(replace(task, **changes))


@pytest.fixture
def looker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looker:
    monkeypatch.setattr(looks, "KEPT_EVERY_SECONDS", 0.0)
    return Looker(tmp_path)


def test_a_task_that_is_started_anew_looks_for_orphans_where_it_was(looker: Looker) -> None:
    looker.log.dies = 60
    with pytest.raises(MirrorlessError):
        looker.orphans()
    looker.log.dies = 1_000

    found = looker.orphans()

    assert looker.log.reads == [0, 60]
    assert found.stretches == (Stretch(0, 30, 30, 0), Stretch(40, 100, 60, 0))


def test_a_task_that_is_started_anew_counts_what_is_new_where_it_was(looker: Looker) -> None:
    looker.log.dies = 70
    with pytest.raises(MirrorlessError):
        looker.new()
    looker.log.dies = 1_000

    found = looker.new()

    assert looker.log.reads == [10, 70]
    assert (found.tail, found.tail_records) == (OffsetRange(10, 100), 90)


@pytest.mark.parametrize("changed", [{"position": 5}, {"until": 90}, {"topic_ids": "another"}])
def test_a_look_of_another_state_of_the_lane_begins_anew(looker: Looker, changed: dict[str, Any]) -> None:
    looker.log.dies = 60
    with pytest.raises(MirrorlessError):
        looker.orphans()
    looker.log.dies = 1_000

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
