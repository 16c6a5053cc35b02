"""Rates from samples of a cluster that is a dict."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pytest

from mirrorless.errors import Retriable
from mirrorless.planning.sampling import LOOKS, RecordSample, SampledRates, ranges_to_sample, sample_rates
from mirrorless.planning.sampling import EndsAt as Ends
from mirrorless.ports.kafka import TopicPartition

STARTS = {("orders", 0): 10, ("orders", 1): 0, ("audit", 0): 0}


@dataclass
class Source:
    """A source whose logs grow by so much in each part of the window, one after the other."""

    growth: Mapping[TopicPartition, list[int]]
    samples: Mapping[str, RecordSample] = field(default_factory=dict)
    ends_now: dict[TopicPartition, int] = field(default_factory=lambda: dict(STARTS))
    now: float = 1_000.0
    waits: list[float] = field(default_factory=list)
    asked: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)

    def clock(self) -> float:
        """Seconds."""
        return self.now

    def wait(self, seconds: float) -> None:
        """Let the logs grow."""
        for place, added in self.growth.items():
            self.ends_now[place] += added[len(self.waits)]
        self.waits.append(seconds)
        self.now += seconds

    def ends(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """See `RateSource.ends`."""
        return {place: (0, self.ends_now[place]) for place in places if place in self.ends_now}

    def sample(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[str, RecordSample]:
        """See `RateSource.sample`."""
        self.asked = ranges
        return self.samples

    def sampled(self, seconds: float = 60.0) -> SampledRates:
        """The rates of its two topics."""
        topics = {"orders": 2, "audit": 1}
        return sample_rates(self, topics, seconds=seconds, clock=self.clock, wait=self.wait)


SIZE = RecordSample(records=10, offsets=10, bytes=2_000, largest=900)


def test_a_rate_is_what_logs_grew_by_in_the_window() -> None:
    growth = {("orders", 0): [10] * LOOKS, ("orders", 1): [5] * LOOKS}
    source = Source(growth, {"orders": SIZE})

    orders, audit = source.sampled().topics

    assert orders.records_per_second == pytest.approx(15 * LOOKS / 60)
    assert orders.average_record_bytes == 200
    assert orders.bytes_per_second == pytest.approx(200 * 15 * LOOKS / 60)
    assert orders.peak_bytes_per_second == pytest.approx(orders.bytes_per_second)
    assert orders.largest_record_bytes == 900
    assert (audit.records_per_second, audit.bytes_per_second, audit.peak_bytes_per_second) == (0, 0, 0)


def test_a_batch_is_as_large_as_those_that_were_read() -> None:
    source = Source({}, {"orders": RecordSample(records=10, offsets=10, bytes=2_000, batches=4, batch_bytes=1_000)})
    source.growth = {("orders", 0): [0] * LOOKS}

    orders, audit = source.sampled().topics

    assert (orders.average_batch_bytes, audit.average_batch_bytes) == (250, 0)


def test_the_window_is_as_long_as_it_should_be_and_looked_at_in_parts() -> None:
    source = Source({})

    assert source.sampled(30.0).seconds == pytest.approx(30)
    assert source.waits == [pytest.approx(30 / LOOKS)] * LOOKS


def test_a_look_that_takes_its_time_shortens_the_wait_for_the_next() -> None:
    source = Source({})
    ends = source.ends

    def slow(places: Collection[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        found = ends(places)
        source.now += 2
        return found

    source.ends = slow  # type: ignore[method-assign]  # of this source alone
    source.sampled(60.0)

    assert source.waits[1] == pytest.approx(60 / LOOKS - 2)


def test_the_peak_is_the_part_with_the_most() -> None:
    growth = {("orders", 0): [0, 0, 60, 0, 0, 0], ("orders", 1): [0, 0, 60, 0, 0, 0]}

    orders, _ = Source(growth, {"orders": SIZE}).sampled().topics

    assert orders.records_per_second == pytest.approx(2)
    assert orders.peak_bytes_per_second == pytest.approx(120 / 10 * 200)


def test_offsets_without_records_do_not_count() -> None:
    """A transaction of one record each takes two offsets."""
    half = RecordSample(records=25, offsets=50, bytes=25 * 100, largest=100)

    orders, _ = Source({("orders", 0): [12] * LOOKS}, {"orders": half}).sampled().topics

    assert orders.records_per_second == pytest.approx(12 * LOOKS / 60 / 2)
    assert orders.bytes_per_second == pytest.approx(100 * 12 * LOOKS / 60 / 2)


def test_a_topic_that_showed_no_record_has_the_size_of_the_others_and_is_named() -> None:
    growth = {("orders", 0): [6] * LOOKS, ("audit", 0): [6] * LOOKS}

    found = Source(growth, {"orders": SIZE}).sampled()

    assert found.unseen == ("audit",)
    assert found.topics[1].average_record_bytes == 200
    assert Source(growth).sampled().topics[1].average_record_bytes == 1_000


def test_a_silent_topic_of_which_nothing_was_read_is_not_named() -> None:
    assert Source({("orders", 0): [6] * LOOKS}, {"orders": SIZE}).sampled().unseen == ()


def test_records_without_a_byte_still_count() -> None:
    empty = RecordSample(records=10, offsets=10, bytes=0, largest=0)

    orders, _ = Source({("orders", 0): [6] * LOOKS}, {"orders": empty}).sampled().topics

    assert orders.records_per_second > 0
    assert orders.load().records_per_topic == pytest.approx(orders.records_per_second)


def test_a_log_that_was_created_anew_meanwhile_counts_as_silent() -> None:
    assert Source({("orders", 0): [-10, 0, 0, 0, 0, 0]}, {"orders": SIZE}).sampled().topics[0].records_per_second == 0


def test_a_partition_without_an_answer_counts_as_silent_and_a_topic_without_any_ends_the_sample() -> None:
    source = Source({("orders", 0): [6] * LOOKS}, {"orders": SIZE})
    del source.ends_now["orders", 1]
    assert source.sampled().topics[0].records_per_second == pytest.approx(6 * LOOKS / 60)

    gone = Source({})
    del gone.ends_now["audit", 0]
    with pytest.raises(Retriable, match="audit"):
        gone.sampled()


def test_records_are_read_from_the_partitions_that_grew_most_at_their_ends() -> None:
    before = Ends(seconds=0, ends={("orders", partition): (0, 100) for partition in range(6)})
    after = Ends(seconds=1, ends={("orders", partition): (70, 100 + partition) for partition in range(6)})

    assert ranges_to_sample({"orders": 6}, [before, after]) == {
        ("orders", 5): (70, 105),
        ("orders", 4): (70, 104),
        ("orders", 3): (70, 103),
    }


def test_of_a_long_log_the_newest_offsets_are_read_and_of_an_empty_one_none() -> None:
    look = Ends(seconds=0, ends={("orders", 0): (0, 1_000), ("orders", 1): (7, 7)})

    assert ranges_to_sample({"orders": 3}, [look, look]) == {("orders", 0): (950, 1_000)}
