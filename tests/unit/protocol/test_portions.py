"""A batch in portions, and what a target that is too slow for a whole event gets: less at once, and more each try."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from msgspec import structs

from mirrorless.chain.lane_state import Stop
from mirrorless.clock import Deadline
from mirrorless.errors import NotAcknowledged, Retriable
from mirrorless.ports.kafka import Delivery, TopicPartition
from mirrorless.protocol.event import Batch
from mirrorless.protocol.outgoing import LaneContent, is_raw
from mirrorless.protocol.portions import (
    BATCH_BYTES,
    LEAST_BATCH_BYTES,
    TransactionBytes,
    bytes_in,
    joined,
    parted,
    side_by_side,
)
from mirrorless.records.record import Record, size_of
from mirrorless.records.record_batch import RecordBatch
from tests.support.batches import batch_of, in_batches
from tests.support.chains import every_run
from tests.support.clusters import MemoryWriter
from tests.support.protocol_world import TOPIC, World, lane, records

EVENT_SECONDS = 60.0
TRANSACTION_SECONDS = 10.0


def noisy(chance: random.Random, *offsets: int, largest: int = 400) -> list[Record]:
    """Records of any size."""
    found = records(*offsets)
    for record in found:
        record.headers = [("noise", chance.randbytes(chance.randint(0, largest)))]
    return found


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_the_portions_of_a_batch_are_all_of_it_in_order_and_none_is_too_large(seed: int, *, raw: bool) -> None:
    chance = random.Random(seed)
    source = {
        (TOPIC, partition): noisy(chance, *sorted(chance.sample(range(200), chance.randint(0, 60))))
        for partition in range(chance.randint(1, 4))
    }
    content: Mapping[TopicPartition, LaneContent] = source
    begins: dict[TopicPartition, int] = {}
    if raw:
        content = {place: in_batches(some, chance, largest=12) if some else [] for place, some in source.items()}
        begins = {place: some[chance.randint(0, 2)].offset for place, some in source.items() if len(some) > 2}
    batch = Batch(records=content, covered=dict.fromkeys(source, 300), begins=begins, epochs=dict.fromkeys(source, 7))
    most = chance.choice([1, 50, 1_000, 5_000])

    came: dict[TopicPartition, list[int]] = {place: [] for place in source}
    ended: list[TopicPartition] = []
    rest: Batch | None = batch
    while rest is not None:
        portion, rest = parted(rest, most)
        whole, count = 0, 0
        for place, some in portion.records.items():
            assert place not in ended
            at = portion.begins.get(place, 0)
            if is_raw(some):
                count += len(some)
                whole += bytes_in(some)
                came[place] += [n for each in some for n in range(max(at, each.base_offset), each.next)]
            else:
                found = [each for each in some if isinstance(each, Record) and each.offset >= at]
                count += len(found)
                whole += sum(map(size_of, found))
                came[place] += [each.offset for each in found]
            if place in portion.covered:
                ended.append(place)
                assert portion.epochs[place] == 7
            else:
                assert portion.epochs.get(place) == (some[-1].leader_epoch if is_raw(some) else None)
        assert whole <= most or count == 1
    assert sorted(ended) == sorted(source)
    for place, stored in source.items():
        wanted = [each.offset for each in stored if each.offset >= begins.get(place, 0)]
        seen = set(came[place])
        assert [n for n in came[place] if n in {each.offset for each in stored}] == wanted, place
        assert len(seen) == len(came[place])


@pytest.mark.parametrize("seed", range(60))
def test_what_was_parted_is_joined_with_all_that_was_known_of_it(seed: int) -> None:
    """A portion, and of it what was left over: whatever is held of it, the others keep where they begin and end."""
    chance = random.Random(seed)
    source = {
        (TOPIC, partition): noisy(chance, *sorted(chance.sample(range(200), chance.randint(1, 30))))
        for partition in range(4)
    }
    damaged = chance.choice(list(source))
    batch = Batch(
        records={**source, damaged: []},
        covered={place: 300 + place[1] for place in source},
        begins={place: some[0].offset for place, some in source.items()},
        epochs={place: place[1] for place in source},
        left_out={damaged: (5, 9)},
    )

    rest, later = parted(batch, chance.randint(1, 8_000))
    held = set(chance.sample(list(source), chance.randint(0, 2)))
    whole = joined(rest, later, held)

    assert whole is not None
    assert rest.left_out == {damaged: (5, 9)}
    for place in source:
        cut = later is not None and place in later.records and place in held
        if place in rest.records and not cut:
            assert whole.begins[place] == batch.begins[place]
            assert whole.covered[place] == batch.covered[place]
            assert whole.epochs[place] == batch.epochs[place]
        elif place in held and place not in rest.records:
            assert place not in whole.records
        elif place in rest.records:
            assert place not in whole.covered, "its end is held"
        else:
            assert (whole.covered[place], whole.epochs[place]) == (batch.covered[place], batch.epochs[place])
        if not cut and place in whole.records:
            assert whole.records[place] == batch.records[place]
    assert whole.left_out == {damaged: (5, 9)}


def test_a_batch_that_fits_is_left_as_it_is() -> None:
    batch = Batch.of_topic(TOPIC, {0: records(1, 2), 1: []}, {1: 7})
    assert parted(batch, 1_000_000) == (batch, None)


@pytest.mark.parametrize("seed", range(10))
def test_lanes_side_by_side_have_their_share_of_each_portion_to_the_end(seed: int) -> None:
    """A request takes one batch of each: a lane alone at the end would wait for the target batch by batch."""
    chance = random.Random(seed)
    content = {(TOPIC, n): in_batches(noisy(chance, *range(200)), chance, largest=3) for n in range(4)}
    content[TOPIC, 4] = []
    rest: Batch | None = Batch(records=content, covered=dict.fromkeys(content, 300))
    came: dict[TopicPartition, list[RecordBatch]] = {place: [] for place in content}
    sizes, most = list[int](), chance.randint(2_000, 9_000)

    while rest is not None:
        left, (portion, rest) = rest, side_by_side(rest, most)
        assert portion.records.keys() == left.records.keys()
        sizes.append(sum(map(bytes_in, portion.records.values())))
        for place, some in portion.records.items():
            came[place] += some  # type: ignore[arg-type]  # batches
            assert (place in portion.covered) == (rest is None or place not in rest.records)

    assert came == content
    assert max(sizes) < most * 2
    assert min(sizes[:-1]) > most / 3
    assert side_by_side(Batch(records=content), sum(sizes)) == (Batch(records=content), None)


def test_less_is_taken_after_a_failure_as_much_as_came_through_and_all_again_once_it_goes_well() -> None:
    size = TransactionBytes()
    size.failed(4_000_000, 0.5)
    assert size.most == 1_000_000
    size.failed(1_000_000, 0.0)
    assert size.most == 500_000
    for _ in range(20):
        size.failed(500, 0.01)
    assert size.most == LEAST_BATCH_BYTES
    size.went_well(6.0)
    assert size.most == LEAST_BATCH_BYTES
    for _ in range(11):
        size.went_well(4.0)
    assert size.is_usual
    assert size.most == BATCH_BYTES


def test_a_small_lane_that_nobody_takes_makes_transactions_only_a_little_smaller() -> None:
    """The size of what was tried is hardly the reason."""
    size = TransactionBytes()
    size.failed(500, 0.0)
    assert size.most == BATCH_BYTES // 32


@dataclass(slots=True)
class SlowTarget:
    """A target whose quota lets through so many bytes a second: what takes longer than a transaction may is lost."""

    there: World
    bytes_per_second: float
    says: Callable[[float], float] = lambda share: share
    """Of what was acknowledged, what its client knows."""
    tries: int = 0

    def write(
        self, write: Callable[..., dict[TopicPartition, Delivery]]
    ) -> Callable[..., dict[TopicPartition, Delivery]]:
        """The writer's method in front of this target."""

        def slow(
            writer: MemoryWriter, lanes: Mapping[TopicPartition, LaneContent], deadline: Deadline, meanwhile: object
        ) -> dict[TopicPartition, Delivery]:
            self.tries += 1
            tried = sum(map(bytes_in, lanes.values()))
            took = tried / self.bytes_per_second
            self.there.now += int(1000 * min(took, TRANSACTION_SECONDS, max(0.0, deadline())))
            writer.throttled_ms = int(1000 * took)
            if took > min(TRANSACTION_SECONDS, deadline()):
                share = self.says(TRANSACTION_SECONDS / took)
                raise NotAcknowledged("too slow", partitions=lanes, tried=tried, share=share)
            return write(writer, lanes, deadline, meanwhile)

        return slow


def slow_world(bytes_per_second: float, monkeypatch: pytest.MonkeyPatch, **target: object) -> tuple[World, SlowTarget]:
    """Two lanes with 4 MB together."""
    there = World({partition: records(*range(0, 200, 2)) for partition in (0, 1)})
    for record in (each for some in there.source.values() for each in some):
        record.headers = [("noise", bytes(20_000))]
    slow = SlowTarget(there, bytes_per_second, **target)  # type: ignore[arg-type]  # of its fields
    monkeypatch.setattr(MemoryWriter, "write", slow.write(MemoryWriter.write))
    return there, slow


def deadline_of(there: World) -> Deadline:
    ends = there.now + EVENT_SECONDS * 1000
    return lambda: (ends - there.now) / 1000


@pytest.mark.parametrize("at_least_once", [False, True])
@pytest.mark.parametrize("bytes_per_second", [300_000, 150_000])
def test_an_event_that_is_too_much_for_a_quota_comes_through_in_portions(
    bytes_per_second: int, monkeypatch: pytest.MonkeyPatch, *, at_least_once: bool
) -> None:
    there, slow = slow_world(bytes_per_second, monkeypatch)
    forwarder = there.environment(at_least_once=at_least_once)

    outcome = forwarder.replicate(there.whole(), request="r", deadline=deadline_of(there))

    assert sum(run.records for run in outcome.runs) == 200
    assert [there.visible(partition) for partition in (0, 1)] == [list(range(0, 200, 2))] * 2
    assert max(run.throttled_ms for run in outcome.runs) > 0
    if not at_least_once:
        there.assert_invariants()
    before = slow.tries
    there.source[0] += records(*range(200, 400, 2))
    forwarder.replicate(there.batch(p0=list(range(200, 400, 2))), request="r", deadline=deadline_of(there))
    assert slow.tries == before + 1  # what is small goes at once


def test_a_commit_that_a_quotas_pauses_outlast_is_tried_again_with_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """All records were acknowledged; the request for the commit came behind the end of the transaction's time."""
    there, slow = slow_world(450_000, monkeypatch)
    commit, failed = MemoryWriter.commit, list[int]()

    def paused(writer: MemoryWriter, deadline: Deadline) -> None:
        if len(failed) < 2:
            failed.append(slow.tries)
            there.cluster.time_transactions_out()
            raise Retriable("the cluster did not commit: fenced")
        commit(writer, deadline)

    monkeypatch.setattr(MemoryWriter, "commit", paused)

    outcome = there.environment().replicate(there.whole(), request="r", deadline=deadline_of(there))

    assert len(failed) == 2
    assert sum(run.records for run in outcome.runs) == 200
    assert [there.visible(partition) for partition in (0, 1)] == [list(range(0, 200, 2))] * 2
    there.assert_invariants()


@pytest.mark.parametrize("says", [lambda share: share, lambda _: 0.0], ids=["known", "unknown"])
@pytest.mark.parametrize("bytes_per_second", [100_000, 50_000])
def test_each_delivery_gets_on_whether_its_environment_lives_or_is_new(
    bytes_per_second: int, says: Callable[[float], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was committed stays, also where a function's time is over before all of an event has come through."""
    there, _ = slow_world(bytes_per_second, monkeypatch, says=says)
    positions = [0]
    while positions[-1] < 200:
        try:
            there.environment().replicate(there.whole(), request="r", deadline=deadline_of(there))
        except Retriable:
            there.now += 1_000
        there.cluster.time_transactions_out()
        positions.append(len(there.visible(0)) + len(there.visible(1)))
        assert positions[-1] > positions[-2]
    there.assert_invariants()


def test_a_job_comes_back_with_less_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own tries are longer than a transaction, and it may have to keep its lease between them."""
    there, slow = slow_world(100_000, monkeypatch)
    there.lease(0)
    job = there.environment(job="backfill-1")
    with pytest.raises(NotAcknowledged):
        job.replicate(there.chunk(0, 200), request="backfill-1", deadline=deadline_of(there))
    assert slow.tries == 1
    job.replicate(there.chunk(0, 200), request="backfill-1", deadline=deadline_of(there))
    assert there.visible(0) == list(range(0, 200, 2))


def test_a_lane_that_stops_or_waits_in_one_portion_gets_nothing_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    there, _ = slow_world(1e9, monkeypatch)
    there.lease(1, seconds=5)
    there.states.stop(lane(0), Stop(reason="refused", upstream_offset=20, detail="", at=there.now))
    forwarder = there.environment()
    forwarder.size.most = 200_000
    write = MemoryWriter.write

    def later(*arguments: object) -> dict[TopicPartition, Delivery]:
        there.now += 60_000  # the lease of the other lane is over by then
        return write(*arguments)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(MemoryWriter, "write", later)
    whole = there.whole()
    mixed = Batch(records={place: whole.records[place] for place in sorted(whole.records, reverse=True)})
    outcome = forwarder.replicate(mixed, request="r", deadline=lambda: 600.0)

    assert (list(outcome.stopped), list(outcome.waiting)) == ([(TOPIC, 0)], [(TOPIC, 1)])
    assert there.visible(0) == list(range(0, 20, 2))
    assert there.cluster.visible("us-east.orders", 1) == []


@pytest.mark.parametrize("slow", [False, True])
def test_a_run_of_whole_batches_is_of_one_leader_epoch(*, slow: bool) -> None:
    """A log that was cut off shows where one of its epochs ended, so what of a run it still has is all or nothing."""
    there = World({partition: records(*range(8)) for partition in (0, 1)})
    epochs = {0: (0, 0, 2, 5), 1: (3, 3, 3, 3)}
    content = {
        (TOPIC, partition): [
            structs.replace(batch_of(some[at : at + 2]), leader_epoch=epoch)
            for at, epoch in zip(range(0, 8, 2), epochs[partition], strict=True)
        ]
        for partition, some in there.source.items()
    }
    newest = {place: batches[-1].leader_epoch for place, batches in content.items()}
    environment = there.environment()
    if slow:
        environment.size.most = bytes_in(content[TOPIC, 1]) // 2

    environment.replicate(Batch(records=content, epochs=newest), request="r", deadline=deadline_of(there))

    ends = {run.epoch: run.next for run in every_run(there.chains, lane(0))}
    assert ends == {0: 4, 2: 6, 5: 8}
    assert {run.epoch for run in every_run(there.chains, lane(1))} == {3}
    assert [there.visible(partition) for partition in (0, 1)] == [list(range(8))] * 2
    there.assert_invariants()


def test_markers_of_a_later_epoch_behind_its_records_do_not_give_a_run_theirs() -> None:
    """Of them nothing is copied: where the log is cut off between, it still has all records of the run."""
    there = World({0: records(*range(8))})
    batch = structs.replace(batch_of(there.source[0]), leader_epoch=3)
    content = {(TOPIC, 0): [batch]}

    there.environment().replicate(
        Batch(records=content, covered={(TOPIC, 0): 20}, epochs={(TOPIC, 0): 5}),
        request="r",
        deadline=deadline_of(there),
    )

    assert [(each.next, each.known_to, each.epoch) for each in every_run(there.chains, lane(0))] == [(20, 8, 3)]
