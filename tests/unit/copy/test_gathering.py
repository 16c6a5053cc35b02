"""When what has come of a shard's lanes is written, and with which others."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest

from mirrorless.copy.gathering import BATCH_RECORDS, EARLY, Gathering
from mirrorless.copy.shards import LANES_OF_TRANSACTION
from mirrorless.ports.kafka import TopicPartition
from mirrorless.ports.log import Arrivals
from mirrorless.protocol.portions import BATCH_BYTES
from mirrorless.records.record import Record
from mirrorless.records.record_batch import BatchUnreadable
from tests.support.batches import batch_of
from tests.support.protocol_world import records

WINDOW = 4.0


def arrived(*places: TopicPartition, size: int = 10, **news: object) -> Arrivals:
    """A record of each lane."""
    content = {place: [Record(0, 0, [], None, bytes(size))] for place in places}
    return Arrivals(records=dict(content), bytes=size * len(places), **news)  # type: ignore[arg-type]  # fields of it


def lanes(topic: str, count: int) -> list[TopicPartition]:
    return [(topic, partition) for partition in range(count)]


def test_a_journal_is_written_at_once_and_then_once_in_a_window() -> None:
    gathering = Gathering(WINDOW)
    gathering.add(arrived(("orders", 0)))
    assert gathering.take(10.0).records.keys() == {("orders", 0)}

    gathering.add(arrived(("orders", 1)))

    assert gathering.due_at == 10.0 + WINDOW
    assert not gathering.take(13.9).records
    gathering.add(arrived(("orders", 0)))
    assert gathering.take(14.0).records.keys() == {("orders", 0), ("orders", 1)}


def test_many_lanes_are_due_one_transaction_after_the_other_and_none_waits_for_all() -> None:
    """A record a second comes of each of 600 lanes, and a transaction takes 0.2 s: all ten take half a window."""
    gathering, topics, now = Gathering(WINDOW), [lanes(f"topic-{number}", 6) for number in range(100)], 0.0
    came: dict[TopicPartition, float] = {}
    waits: list[float] = []
    written: dict[TopicPartition, list[float]] = {}
    while now < 60:
        new = [place for topic in topics for place in topic if place not in came]
        gathering.add(arrived(*new))
        came |= dict.fromkeys(new, now)
        taken = gathering.take(now).records
        assert len(taken) <= LANES_OF_TRANSACTION
        now += 0.2 if taken else 0.05
        for place in taken:
            written.setdefault(place, []).append(now)
            wait = now - came.pop(place)
            if now > 10:
                waits.append(wait)

    assert max(waits) <= WINDOW + 2 * 0.2
    assert all(
        after - before >= WINDOW * (1 - EARLY) - 0.01 for at in written.values() for before, after in pairwise(at)
    )


def test_a_journal_that_is_due_soon_goes_with_one_that_is_due() -> None:
    gathering = Gathering(WINDOW)
    for topic, at in (("one", 0.0), ("two", 0.4), ("three", 0.6)):
        gathering.add(arrived((topic, 0)))
        gathering.take(at)
    gathering.add(arrived(("one", 0), ("two", 0), ("three", 0)))

    assert gathering.take(WINDOW).records.keys() == {("one", 0), ("two", 0)}
    assert gathering.due_at == WINDOW + 0.6


@pytest.mark.parametrize(("count", "size"), [(BATCH_RECORDS, 1), (8, BATCH_BYTES // 8)])
def test_what_is_enough_is_written_before_its_window_ends(count: int, size: int) -> None:
    gathering = Gathering(WINDOW)
    gathering.add(arrived(("orders", 0)))
    gathering.take(0.0)
    one = Record(0, 0, [], None, bytes(size))
    gathering.add(Arrivals(records={("orders", 0): [one] * (count - 1)}, bytes=size * (count - 1)))
    assert (gathering.is_full, bool(gathering.take(0.1).records)) == (False, False)

    gathering.add(arrived(("orders", 0), size=size))

    assert gathering.is_full
    assert min(gathering.room) == 0
    assert len(gathering.take(0.1).records["orders", 0]) == count
    assert gathering.room == (BATCH_RECORDS, BATCH_BYTES)


def test_without_windows_all_that_came_is_taken_together_whenever_that_is() -> None:
    gathering = Gathering(inf)
    gathering.add(arrived(("orders", 0), ("orders", 20), ("users", 0)))

    gathering.drop([("users", 0)])

    assert gathering.due_at == inf
    assert gathering.take(1.0).records.keys() == {("orders", 0), ("orders", 20)}


def test_batches_count_by_their_bytes() -> None:
    gathering, batch = Gathering(WINDOW), batch_of(records(0, 1))
    for topic in ("orders", "payments"):
        gathering.add(Arrivals(records={(topic, 0): [batch]}, bytes=batch.size))
        gathering.take(0.0 if topic == "orders" else 1.0)
    gathering.add(Arrivals(records={(each, 0): [batch] for each in ("orders", "payments")}, bytes=2 * batch.size))

    assert gathering.take(WINDOW).bytes == batch.size
    assert gathering.room[1] == BATCH_BYTES - batch.size


def test_trouble_of_a_log_comes_behind_its_records_and_both_at_once() -> None:
    gathering, place = Gathering(WINDOW), ("orders", 0)
    gathering.add(arrived(place))
    gathering.take(0.0)
    gathering.add(arrived(place, ("orders", 1)))
    assert not gathering.has_news

    gathering.add(Arrivals(truncated={place: 7}, out_of_range={("payments", 0)}))

    assert gathering.has_news
    found = gathering.take(0.1)
    assert found.records.keys() == {place, ("orders", 1)}
    assert (found.truncated, found.out_of_range) == ({place: 7}, {("payments", 0)})


def test_trouble_of_more_lanes_than_a_transaction_takes_waits_with_their_records() -> None:
    gathering = Gathering(WINDOW)
    places = [(f"topic-{number:02}", 0) for number in range(LANES_OF_TRANSACTION + 3)]
    gathering.add(arrived(*places))
    *_, outside, cut, damaged = places
    unreadable = BatchUnreadable("it is damaged", offset=3)
    gathering.add(Arrivals(out_of_range={outside}, truncated={cut: 7}, unreadable={damaged: unreadable}))

    first, then = gathering.take(0.0), gathering.take(0.0)

    assert first.records.keys() | then.records.keys() == set(places)
    for place in (outside, cut, damaged):
        (found,) = (each for each in (first, then) if place in each.records)
        other = then if found is first else first
        assert place in found.out_of_range | found.truncated.keys() | found.unreadable.keys()
        assert place not in other.out_of_range | other.truncated.keys() | other.unreadable.keys()


def test_the_end_of_a_log_is_held_back_with_the_records_before_it() -> None:
    gathering, waits, silent = Gathering(WINDOW), ("orders", 0), ("payments", 0)
    gathering.add(arrived(waits))
    gathering.take(0.0)
    gathering.add(arrived(waits, ended={waits: 2, silent: 5}))

    assert gathering.take(0.1).ended == {silent: 5}
    assert gathering.take(WINDOW).ended == {waits: 2}


def test_lanes_that_are_left_are_dropped_with_all_that_came_of_them() -> None:
    gathering, left, stays = Gathering(WINDOW), ("orders", 0), ("payments", 0)
    gathering.add(arrived(left, stays))
    gathering.take(0.0)
    gathering.add(arrived(left, stays, ended={left: 3, stays: 4}))

    gathering.drop([left, ("unheard", 0)])

    assert gathering.room == (BATCH_RECORDS - 1, BATCH_BYTES - 10)
    found = gathering.take(WINDOW)
    assert (set(found.records), found.ended) == ({stays}, {stays: 4})

    gathering.add(arrived(left))
    gathering.drop([left])
    assert gathering.due_at == inf


def test_nothing_is_due_of_what_was_forgotten() -> None:
    gathering = Gathering(WINDOW)
    gathering.add(arrived(("orders", 0), ended={("orders", 0): 1, ("payments", 0): 2}))

    gathering.clear()

    assert gathering.due_at == inf
    assert gathering.room == (BATCH_RECORDS, BATCH_BYTES)
    assert not gathering.has_news
    assert not gathering.take(100.0).records
