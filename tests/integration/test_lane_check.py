"""The lane check on real Kafka and DynamoDB Local: each kind of gap as it comes about, doubts, a hanging partition."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import msgspec
import pytest
from control import ControlWiring

from mirrorless.adapters.kafka.source_log import KafkaSourceLog
from mirrorless.clock import deadline_in
from mirrorless.lanes.gaps import Cleanup
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.topic_state import TopicState
from tests.support.lane_stage import Crash, LaneStage, at_step, crash, numbered
from tests.support.readback import await_settled, read_topic
from tests.support.topics import begin_transaction, delete_before, transaction, transactional
from tests.support.tries import some_of

pytestmark = pytest.mark.integration

DOUBTS = pytest.mark.soak(
    "tests/unit/lanes/test_lane_check.py::test_a_doubt_is_left_alone_for_as_long_as_its_writer_could_commit",
    "tests/unit/lanes/test_lane_check.py::test_an_abandoned_run_in_doubt_is_settled",
)


@dataclass(slots=True, kw_only=True)
class Checks:
    """The scheduled task beside a stage, with a clock that can be put ahead."""

    stage: LaneStage
    wiring: ControlWiring
    """The scheduled function's own."""
    ahead_ms: int = 0

    @property
    def log(self) -> KafkaSourceLog:
        """The source's."""
        return self.wiring.source_log

    def round(self) -> RoundReport:
        """One round."""
        report, check = RoundReport(), self.wiring._lanes(self.wiring.documents)
        gaps = replace(check.gaps, clock=self._now)
        replace(check, topics=lambda _: {self.stage.topic: 1}, clock=self._now, gaps=gaps).act(report, deadline_in(15))
        return report

    def losses(self) -> list[tuple[int, int, str]]:
        """What the ledger says is missing."""
        return [(loss.first, loss.next, loss.cause) for loss in self.stage.ledger.read(self.stage.lane())]

    def harmless(self) -> dict[str, int]:
        """What the ledger says of the other gaps."""
        return {str(cause): n for cause, n in self.stage.ledger.summary(self.stage.lane(), 0).offsets.items()}

    def _now(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


@pytest.fixture
def checks(stage: LaneStage) -> Checks:
    settings = stage.settings
    aliases = (settings.source.alias, settings.target.alias)
    return Checks(stage=stage, wiring=ControlWiring(msgspec.structs.replace(settings, aliases=aliases)))


# Gaps


def test_markers_and_aborted_records_of_a_transactional_source_are_harmless(checks: Checks) -> None:
    """Offsets: 0 1 [2] (3 4 5 aborted) [6] 7 [8] 9 [10] 11: a marker closes each transaction."""
    stage = checks.stage
    stage.create(stage.source, stage.topic)
    producer = transactional(stage.source.bootstrap)
    transaction(producer, stage.topic, *numbered(0, 1))
    transaction(producer, stage.topic, *numbered(3, 4, 5), commit=False)
    for number in (7, 9):
        transaction(producer, stage.topic, *numbered(number))
    await_settled(stage.source.bootstrap, stage.topic)
    stage.write(b"11")
    environment = stage.environment()
    stage.replicate(environment, stage.event(p0=[0, 1, 7]))
    stage.replicate(environment, stage.event())

    first, second = checks.round(), checks.round()

    assert first.troubles == []
    assert checks.losses() == []
    assert checks.harmless() == {"aborted": 3, "transaction_marker": 4}
    assert (first.counts["offsets-explained"], first.counts["gaps-waiting"]) == (7, 0)
    assert (second.counts["lanes-checked"], second.counts["offsets-explained"]) == (0, 0)


def test_what_compaction_removed_is_harmless(checks: Checks) -> None:
    stage = checks.stage
    stage.create(
        stage.source, stage.topic, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.001"
    )
    stage.write(b"first", key=b"a")
    stage.write(*numbered(*range(20)), key=b"b")
    environment = stage.environment()
    stage.replicate(environment, stage.event(p0=[0]))
    deadline = time.monotonic() + 60
    last = 20
    while len(kept := [seen.offset for seen in read_topic(stage.source.bootstrap, stage.topic)[0]]) > 5:
        assert time.monotonic() < deadline, f"the cleaner did not come: {kept}"
        time.sleep(0.5)  # between two looks at a condition with a deadline
        stage.write(b"roll", key=b"c")  # a new segment, which makes the one before it ready to be cleaned
        last += 1
    stage.replicate(environment, stage.event())

    checks.round()

    assert checks.losses() == []
    run = stage.chains.heads([stage.lane()])[stage.lane()].run
    assert run is not None
    replicated = {offset for span in run.spans for offset in range(span.upstream, span.upstream + span.length)}
    assert checks.harmless() == {"compaction": run.next - 1 - len(replicated)}
    assert run.next > last - 3


def test_records_removed_before_they_were_forwarded_are_lost(checks: Checks) -> None:
    stage = checks.stage
    stage.create(stage.source, stage.topic, retention_ms="604800000")
    stage.write(*numbered(*range(10)))
    environment = stage.environment()
    stage.replicate(environment, stage.event(p0=[0, 1]))
    delete_before(stage.source.bootstrap, stage.topic, 6)
    stage.replicate(environment, stage.event())

    report = checks.round()

    assert checks.losses() == [(2, 6, "retention")]
    assert report.counts["offsets-lost"] == 4
    assert f"{stage.lane()} @ 2: 4 upstream offsets up to 5 are not on the target: retention" in report.troubles[0]
    assert checks.harmless() == {}


# The bounded read


def test_what_an_open_transaction_hides_is_not_taken_for_read(checks: Checks) -> None:
    stage = checks.stage
    stage.create(stage.source, stage.topic)
    stage.write(*numbered(0, 1))
    producer = transactional(stage.source.bootstrap)
    begin_transaction(producer, stage.topic, b"2")
    stage.write(b"3")
    place = (stage.topic, 0)

    def look(*, committed: bool) -> tuple[int, list[int]]:
        seen = checks.log.look({place: [(1, 4)]}, committed=committed, deadline=lambda: 20.0)[place]
        return seen.until, list(seen.visible)

    assert look(committed=False) == (4, [1, 2, 3])
    assert look(committed=True) == (2, [1])
    producer.commit_transaction(20)
    await_settled(stage.source.bootstrap, stage.topic)
    assert look(committed=True) == (4, [1, 2, 3])


def test_what_does_not_exist_is_left_out(checks: Checks) -> None:
    stage = checks.stage
    stage.create(stage.source, stage.topic, cleanup_policy="compact")
    places = [(stage.topic, 0), (stage.topic, 7), ("nowhere", 0)]

    assert checks.log.starts(places, lambda: 20.0) == {(stage.topic, 0): 0}
    assert checks.log.cleanup([stage.topic, "nowhere"], lambda: 20.0) == {
        stage.topic: Cleanup(compacts=True, expires=False)
    }


def test_a_range_below_the_logs_start_is_not_taken_for_read(checks: Checks) -> None:
    """Retention may be faster than we, between two questions."""
    stage = checks.stage
    stage.create(stage.source, stage.topic)
    stage.write(*numbered(*range(10)))
    delete_before(stage.source.bootstrap, stage.topic, 6)

    seen = checks.log.look({(stage.topic, 0): [(3, 4), (7, 8)]}, committed=False, deadline=lambda: 20.0)

    assert (seen[stage.topic, 0].until, seen[stage.topic, 0].visible) == (-1, {})


# Doubts


@pytest.mark.parametrize("step", some_of(("prepared", "committed"), "committed", others=DOUBTS))
def test_a_doubt_left_by_a_crash_is_settled_after_the_timeout_and_not_before(checks: Checks, step: str) -> None:
    stage = checks.stage
    stage.create(stage.source, stage.topic)
    stage.write(*numbered(0, 1, 2))
    with at_step("committed" if step == "committed" else "prepared", crash), pytest.raises(Crash):
        stage.replicate(stage.environment(transaction_timeout_ms=60_000), stage.event())

    early = checks.round()
    assert stage.chains.heads([stage.lane()])[stage.lane()].in_doubt
    assert (early.counts["doubts-settled"], early.counts["doubts-open"]) == (0, 0)

    checks.ahead_ms = stage.settings.transaction_timeout_ms + 10_500
    late = checks.round()

    head = stage.chains.heads([stage.lane()])[stage.lane()]
    assert (head.in_doubt, head.position) == (False, 3 if step == "committed" else 0)
    assert late.counts["doubts-settled"] == 1
    stage.replicate(stage.environment(), stage.event())
    stage.assert_mirrored()


# Records of other producers


def test_records_of_another_producer_are_said_and_what_it_aborted_is_not(checks: Checks) -> None:
    stage = checks.stage
    stage.create(stage.source, stage.topic)
    environment = stage.environment()
    state = TopicState(topic=stage.topic, topic_id="id", partitions=1, first_seen=1)
    checks.wiring.documents.write(stage.settings.name, {f"topic/{stage.topic}": msgspec.json.encode(state)})

    def copied(*numbers: int) -> RoundReport:
        stage.write(*numbered(*numbers))
        stage.replicate(environment, stage.event())
        await_settled(stage.target.bootstrap, stage.remote_topic)
        return checks.round()

    assert copied(0, 1).counts["lanes-foreign"] == 0
    other = transactional(stage.target.bootstrap)
    transaction(other, stage.remote_topic, b"aborted", b"aborted", commit=False)
    assert copied(2).counts["lanes-foreign"] == 0
    transaction(other, stage.remote_topic, b"foreign")
    await_settled(stage.target.bootstrap, stage.remote_topic)
    at_rest = checks.round()
    between = copied(3)

    assert [report.counts["lanes-foreign"] for report in (at_rest, between)] == [1, 1]
    first = next(each.offset for each in stage.on_target()[0] if each.content.value == b"foreign")
    assert f"partition and downstream offset 0 @ {first} on" in at_rest.troubles[0]
    assert between.troubles == at_rest.troubles


# A partition that hangs


def test_a_partition_whose_stable_offset_hangs_is_reported_until_it_moves(checks: Checks) -> None:
    stage = checks.stage
    stage.create(stage.source, stage.topic)
    stage.write(*numbered(0, 1))
    environment = stage.environment()
    stage.replicate(environment, stage.event())
    hanging = transactional(stage.target.bootstrap)
    begin_transaction(hanging, stage.remote_topic, b"never ends")

    first = checks.round()
    checks.ahead_ms = stage.settings.transaction_timeout_ms + 20_000
    later = checks.round()
    hanging.abort_transaction(20)
    await_settled(stage.target.bootstrap, stage.remote_topic)
    after = checks.round()

    assert [report.counts["stuck-partitions"] for report in (first, later, after)] == [0, 1, 0]
    assert f"{stage.remote_topic}-0 on eu-west: the last stable offset has stood at 3" in later.troubles[0]
    assert checks.round().counts["lanes-checked"] == 0
