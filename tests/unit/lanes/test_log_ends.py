"""Mapped lanes that stand before the end of their log: which of them stop, and where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from mirrorless.chain.lane_state import RUNNING, Lease, Stop
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.lanes.gaps import MOST_BYTES
from mirrorless.lanes.log_ends import POSITIONS_MS, STANDING_MS, LogEndCheck
from mirrorless.ports.kafka import LogEnds, OffsetAndMetadata, TopicPartition
from mirrorless.protocol.undelivered import LARGE_BYTES
from mirrorless.records.record import Record
from mirrorless.scheduled.runner import RoundReport
from tests.support.chains import FLOW
from tests.support.oversize_world import MemoryCommittedLog, large
from tests.support.protocol_world import TOPIC, World, lane, records, replicate


@dataclass
class Mapped:
    """One partition whose first three records are replicated, the mapping's group, and rounds of the check."""

    there: World
    group_at: int | None = 3
    stable: int = 6
    start: int = 0
    from_log_start: bool = True
    silent: bool = False
    log: MemoryCommittedLog = field(init=False)
    check: LogEndCheck = field(init=False)

    def __post_init__(self) -> None:
        self.log = MemoryCommittedLog(self.there)
        self.check = LogEndCheck(
            flow=FLOW,
            topics=lambda _: {TOPIC: len(self.there.source)},
            consumer_group=lambda topic: f"group-of-{topic}",
            history_first=lambda _: self.there.history_first,
            from_log_start=self.from_log_start,
            ends=self,
            groups=self,  # type: ignore[arg-type]  # what the check asks for
            log=self.log,
            chains=self.there.chains.beside(),
            states=self.there.states,
            clock=lambda: self.there.now,
        )

    def ends(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, LogEnds]:
        """See `PartitionEnds.ends`."""
        if self.silent:
            raise Retriable("it does not answer", where="us-east")
        return dict.fromkeys(places, (self.start, self.stable, self.stable))

    def committed(
        self, groups: Iterable[str], deadline: Deadline
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """See `Groups.committed`."""
        offsets = {} if self.group_at is None else {(TOPIC, 0): OffsetAndMetadata(self.group_at)}
        return dict.fromkeys(groups, offsets)

    def round(self, later_ms: int = STANDING_MS) -> RoundReport:
        """One round, so long after what was before."""
        self.there.now += later_ms
        report = RoundReport()
        self.check.look(report, lambda: 60.0)
        return report

    def reads(self) -> int:
        """The reads of the log until the end of one more round."""
        self.round()
        return self.log.reads

    @property
    def stop(self) -> Stop | None:
        """Of the lane."""
        return self.there.states.read([lane()]).get(lane(), RUNNING).stop

    @property
    def stands_at(self) -> int | None:
        """Where it is stopped."""
        return None if self.stop is None else self.stop.upstream_offset


def begun(*behind: Record, delivered: int = 3) -> World:
    there = World({0: [*records(*range(delivered)), *behind]})
    there.cluster.batch_bytes = 1 << 40
    if delivered:
        replicate(there.environment(), there.batch(p0=[*range(delivered)]))
    return there


TOO_LARGE = MOST_BYTES + 1
"""In an event: what surely no mapping delivers."""


@pytest.mark.parametrize(
    ("behind", "group_at", "stands_at"),
    [
        # The mapping stands there, or has passed it.
        ([large(3, TOO_LARGE)], 3, 3),
        ([large(3, TOO_LARGE)], 4, 3),
        ([large(4, TOO_LARGE)], 4, 4),
        ([large(5, TOO_LARGE)], 3, 5),
        ([large(5, TOO_LARGE)], 6, 5),
        # What was passed is large from half an event on; what the mapping stands before may yet be delivered.
        ([large(3, LARGE_BYTES + 1)], 4, 3),
        ([large(3, LARGE_BYTES + 1)], 3, None),
        ([*records(3), large(4, TOO_LARGE)], 3, None),
        ([*records(3, 4), large(5, TOO_LARGE)], 6, 5),
        ([*records(3, 4, 5)], 6, None),
        ([], 3, None),
    ],
)
def test_a_lane_stops_before_what_its_mapping_passed_or_stands_before(
    behind: list[Record], group_at: int, stands_at: int | None
) -> None:
    mapped = Mapped(begun(*behind), group_at=group_at)

    report = mapped.round()

    assert mapped.stands_at == stands_at
    assert report.counts == {"stopped-lanes": int(stands_at is not None)}
    if stands_at is not None:
        assert mapped.stop is not None
        assert mapped.stop.reason == "undelivered"
        assert report.troubles == [f"{lane().at(stands_at)}: {mapped.stop.detail}"]


def test_a_batch_that_nobody_can_read_stops_the_lane_where_its_mapping_stands() -> None:
    mapped = Mapped(begun())
    mapped.there.damaged[0] = (3, 5)

    mapped.round()

    assert mapped.stands_at == 3
    assert "nobody can read: its checksum is another one" in (mapped.stop.detail if mapped.stop else "")


def test_a_stop_counts_in_each_round_until_the_lane_goes_on() -> None:
    mapped = Mapped(begun(large(3, TOO_LARGE)))
    reads = [mapped.reads() for _ in range(3)]
    report = mapped.round()

    assert (report.counts["stopped-lanes"], report.troubles) == (1, [])
    assert reads == [1, 1, 1]

    mapped.there.states.resume(lane())
    replicate(mapped.there.environment(job="pull"), mapped.there.chunk(3, 6))
    assert mapped.round().counts["stopped-lanes"] == 0


def test_a_lane_that_moved_waits_for_a_job_or_is_stopped_is_left_alone() -> None:
    there = begun(large(3, TOO_LARGE))
    mapped = Mapped(there)
    mapped.round(STANDING_MS - 1)
    assert mapped.stands_at is None

    there.states.take(lane(), Lease(holder="backfill-1", until=there.now + 120_000), now=there.now)
    mapped.round()
    assert mapped.stands_at is None

    there.states.states.clear()
    held = Stop(reason="held", upstream_offset=3, detail="ticket", at=1)
    there.states.stop(lane(), held)
    assert mapped.round().counts["stopped-lanes"] == 0
    assert mapped.stop is not None
    assert mapped.stop.reason == "held"


def test_what_was_delivered_while_the_groups_were_asked_is_not_taken_for_passed() -> None:
    """The group's offset is newer than the chain that was read before it."""
    there = begun(large(3, LARGE_BYTES + 1))
    mapped = Mapped(there, group_at=4)
    committed = mapped.committed

    def meanwhile(groups: Iterable[str], deadline: Deadline) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        replicate(there.environment(), there.batch(p0=[3]))
        return committed(groups, deadline)

    mapped.committed = meanwhile  # type: ignore[method-assign]
    mapped.round()

    assert there.head().position == 4
    assert mapped.stop is None


@pytest.mark.parametrize(
    ("from_log_start", "history_first", "group_at", "stands_at"),
    [
        (True, False, None, 0),
        (True, False, 1, 0),
        (False, False, None, None),
        (False, False, 0, 0),
        (False, False, 1, None),
        (True, True, 0, None),
    ],
)
def test_where_a_lane_without_a_chain_begins_decides_what_its_mapping_passed(
    group_at: int | None, stands_at: int | None, *, from_log_start: bool, history_first: bool
) -> None:
    there = begun(large(0, TOO_LARGE), delivered=0)
    there.history_first = history_first
    mapped = Mapped(there, group_at=group_at, stable=1, from_log_start=from_log_start)

    mapped.round()

    assert mapped.stands_at == stands_at


def test_what_retention_took_is_not_looked_for() -> None:
    mapped = Mapped(begun(large(5, TOO_LARGE)), start=5, group_at=None)

    mapped.round()

    assert mapped.stands_at == 5


def test_a_log_that_ends_with_markers_is_read_once_and_again_when_an_operator_may_have_reset_the_lane() -> None:
    mapped = Mapped(begun())

    assert [mapped.reads() for _ in range(3)] == [1, 1, 1]

    mapped.round(POSITIONS_MS)
    assert mapped.log.reads == 2
    mapped.stable = 7
    mapped.round()
    assert mapped.log.reads == 3


def test_what_is_not_read_in_time_goes_on_in_the_next_round_and_is_a_trouble_where_nothing_was() -> None:
    mapped = Mapped(begun(large(5, TOO_LARGE)), group_at=6)
    mapped.log.ends_at = 4
    assert "was not read in time" in mapped.round().troubles[0]

    mapped.log.ends_at = 1 << 40
    mapped.round()
    assert mapped.stands_at == 5


def test_a_source_that_does_not_answer_is_looked_at_in_a_later_round() -> None:
    mapped = Mapped(begun(large(3, TOO_LARGE)), silent=True)

    report = mapped.round()

    assert report.troubles == ["the ends of logs wait to be looked at: us-east: it does not answer (a retry may help)."]
    assert mapped.stop is None


def test_a_group_that_does_not_show_its_offsets_is_a_trouble() -> None:
    mapped = Mapped(begun(large(3, TOO_LARGE)))
    mapped.committed = lambda *_: {}  # type: ignore[method-assign]

    assert mapped.round().troubles == [f"{lane()}: its mapping's group does not show its offsets"]
