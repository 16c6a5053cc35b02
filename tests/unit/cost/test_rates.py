"""Rates of topics: the file, and what is made of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace

import pytest

from mirrorless.cost.rates import (
    COLUMNS,
    READS,
    InvalidRates,
    RecordSample,
    SampledRates,
    TopicRate,
    flow_loads,
    ranges_to_sample,
    read_rates,
    sample_rates,
)
from mirrorless.cost.rates import EndsAt as Ends
from mirrorless.errors import Retriable
from mirrorless.ports.kafka import TopicPartition

HEADER = ",".join(COLUMNS)
ORDERS = "orders,6,1200,1200000,1000,3000000"
BATCHES = f"{HEADER},average_batch_bytes"


def read(*rows: str) -> tuple[TopicRate, ...]:
    return read_rates("\n".join(rows), origin="rates.csv")


def refused(*rows: str) -> str:
    with pytest.raises(InvalidRates) as caught:
        read(*rows)
    assert caught.value.where == "rates.csv"
    return caught.value.what


def rate(topic: str = "orders", *, records: float = 1.0, size: float = 1_000, peak: float = 1.0) -> TopicRate:
    return TopicRate(
        topic=topic,
        partitions=6,
        records_per_second=records,
        bytes_per_second=records * size,
        average_record_bytes=size,
        peak_bytes_per_second=records * size * peak,
    )


def test_a_row_is_a_topic() -> None:
    (orders,) = read(
        "topic,partitions,records_per_second,bytes_per_second,average_record_bytes,peak_bytes_per_second", ORDERS
    )

    assert orders == rate(records=1_200, peak=2.5)


def test_a_last_column_may_have_the_size_of_batches() -> None:
    (orders,) = read(BATCHES, f"{ORDERS},8200")

    assert orders.average_batch_bytes == 8_200
    assert read(HEADER, ORDERS)[0].average_batch_bytes == 0


def test_a_spreadsheets_file_is_read_too() -> None:
    """With a mark of UTF-8, quotes, spaces, Windows line ends, empty rows, and values in another notation."""
    text = f'\ufeff{HEADER}\r\n\r\n"orders", 6 ,1.2e3,1200000.0,1e3,3000000\r\n,,,,,\r\n'

    assert read_rates(text, origin="rates.csv") == read(HEADER, ORDERS)


def test_a_silent_topic_is_a_row_of_zeros() -> None:
    (silent,) = read(HEADER, "audit,3,0,0,0,0")

    assert silent.load().mb_per_second == 0
    assert silent.load().records_per_topic == 0


ROWS = [
    ("orders,6,1200", "3 values instead of 6"),
    (f"{ORDERS},7", "7 values instead of 6"),
    ("or ders,6,1,1,1,1", "'or ders' is no name of a topic"),
    ("orders,0,1,1,1,1", "partitions: '0' is no whole number from 1 on"),
    ("orders,1.5,1,1,1,1", "partitions: '1.5' is no whole number from 1 on"),
    ("orders,٣,1,1,1,1", "partitions: '٣' is no whole number from 1 on"),
    ("orders,1,-1,1,1,1", "records_per_second: '-1' is no number from 0 on"),
    ("orders,1,1,nan,1,1", "bytes_per_second: 'nan' is no number from 0 on"),
    ("orders,1,1,1,inf,1", "average_record_bytes: 'inf' is no number from 0 on"),
    ("orders,1,1,1,1,", "peak_bytes_per_second: '' is no number from 0 on"),
    ("orders,1,1_000,1,1,1", "records_per_second: '1_000' is no number from 0 on"),
    ("orders,1,0,1000,1000,1000", "records_per_second and bytes_per_second: one of them is 0 and the other is not"),
    ("orders,1,10,1000,1000,1000", "bytes_per_second is 1000, and 10 records a second of 1000 bytes are 10000"),
    ("orders,1,1,1000,1000,999", "peak_bytes_per_second is 999, which is less than bytes_per_second, 1000"),
]
FILES = [
    *(([HEADER, "audit,3,0,0,0,0", row], f"line 3: {says}") for row, says in ROWS),
    ([BATCHES, ORDERS], "line 2: 6 values instead of 7"),
    ([BATCHES, f"{ORDERS},many"], "line 2: average_batch_bytes: 'many' is no number from 0 on"),
    ([HEADER, ORDERS, "", ORDERS], "line 4: topic 'orders' has a row already, on line 2"),
    ([ORDERS], "line 1: the first row must be topic,partitions,"),
    (["", "topic,partitions"], "line 2: the first row must be"),
    ([], "line 1: the file is empty"),
    (["", "  "], "line 1: the file is empty"),
    ([HEADER], "line 1: no topic follows the names of the columns"),
    ([HEADER, ORDERS, '"audit,1'], "line 3: this is not CSV"),
]


@pytest.mark.parametrize(("rows", "says"), FILES)
def test_a_file_that_is_wrong_is_refused_with_its_line(rows: list[str], says: str) -> None:
    assert refused(*rows).startswith(says)


def test_every_bad_row_is_named_up_to_twenty() -> None:
    what = refused(HEADER, *("x" for _ in range(22)))

    assert what.count("values instead of") == 20
    assert what.endswith("line 21: 1 values instead of 6; and 2 more")


def test_a_topic_that_the_flow_does_not_replicate_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidRates, match="line 2: topic 'orders': it is excluded"):
        read_rates(f"{HEADER}\n{ORDERS}\n", origin="rates.csv", refused=lambda _: "it is excluded")


def test_a_load_keeps_the_rate_the_size_and_the_peak() -> None:
    load = rate(records=500, size=200, peak=3).load()

    assert (load.mb_per_second, load.record_bytes, load.peak, load.topics, load.partitions) == (0.1, 200, 3, 1, 6)


def test_topics_that_are_alike_become_one_load_and_others_their_own() -> None:
    loads = flow_loads([rate("a", records=100), rate("b", records=101), rate("c", records=200), rate("d", records=0)])

    assert sorted(load.topics for load in loads) == [1, 1, 2]
    assert sum(load.mb_per_second for load in loads) == pytest.approx(0.401)
    assert sum(load.topics * load.records_per_topic for load in loads) == pytest.approx(401)


def test_topics_with_other_partitions_are_not_alike() -> None:
    other = replace(rate("b"), partitions=12)

    assert sorted(load.partitions for load in flow_loads([rate("a"), other])) == [6, 12]


def test_a_record_that_no_event_carries_needs_a_schedule() -> None:
    assert not rate(size=4_000_000).needs_schedule
    assert rate(size=5_000_000).needs_schedule


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


def batches(count: int, size: int) -> RecordSample:
    return RecordSample(records=10, offsets=10, bytes=2_000, batches=count, batch_bytes=size)


SILENT = [0] * READS
MEASURED: dict[str, tuple[list[int], RecordSample, tuple[float, ...]]] = {
    "what logs grew by in the window": ([15] * READS, SIZE, (1.5, 300, 200, 300, 900, 0)),
    "the peak is the part with the most": ([0, 0, 120, 0, 0, 0], SIZE, (2, 400, 200, 2_400, 900, 0)),
    # A transaction of one record each takes two offsets.
    "offsets without records do not count": (
        [12] * READS,
        RecordSample(records=25, offsets=50, bytes=2_500, largest=100),
        (0.6, 60, 100, 60, 100, 0),
    ),
    "records without a byte still count": (
        [6] * READS,
        RecordSample(records=10, offsets=10),
        (0.6, 0.6, 1, 0.6, 0, 0),
    ),
    "a log that was created anew meanwhile counts as silent": ([-10, 0, 0, 0, 0, 0], SIZE, (0, 0, 200, 0, 900, 0)),
    "a batch is as large as those that were read": (SILENT, batches(4, 1_000), (0, 0, 200, 0, 0, 250)),
}
"""Growth in each part of a minute, what was read; records and bytes a second, a record's, the peak, the largest, a
batch."""


@pytest.mark.parametrize(("growth", "sample", "expected"), MEASURED.values(), ids=MEASURED)
def test_a_rate_is_measured(growth: list[int], sample: RecordSample, expected: tuple[float, ...]) -> None:
    found = Source({("orders", 0): growth}, {"orders": sample}).sampled()

    orders, audit = found.topics
    assert [getattr(orders, each.name) for each in fields(orders)[2:]] == pytest.approx(expected)
    assert (audit.records_per_second, audit.bytes_per_second, audit.peak_bytes_per_second) == (0, 0, 0)
    assert found.unseen == ()


def test_a_rate_is_that_of_all_partitions_together() -> None:
    growth = {("orders", 0): [10] * READS, ("orders", 1): [5] * READS}

    assert Source(growth, {"orders": SIZE}).sampled().topics[0].records_per_second == pytest.approx(1.5)


def test_the_window_is_as_long_as_it_should_be_and_looked_at_in_parts() -> None:
    source = Source({})

    assert source.sampled(30.0).seconds == pytest.approx(30)
    assert source.waits == [pytest.approx(30 / READS)] * READS


def test_a_look_that_takes_its_time_shortens_the_wait_for_the_next() -> None:
    source = Source({})
    ends = source.ends

    def slow(places: Collection[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        found = ends(places)
        source.now += 2
        return found

    source.ends = slow  # type: ignore[method-assign]  # of this source alone
    source.sampled(60.0)

    assert source.waits[1] == pytest.approx(60 / READS - 2)


def test_a_topic_that_showed_no_record_has_the_size_of_the_others_and_is_named() -> None:
    growth = {("orders", 0): [6] * READS, ("audit", 0): [6] * READS}

    found = Source(growth, {"orders": SIZE}).sampled()

    assert found.unseen == ("audit",)
    assert found.topics[1].average_record_bytes == 200
    assert Source(growth).sampled().topics[1].average_record_bytes == 1_000


def test_a_partition_without_an_answer_counts_as_silent_and_a_topic_without_any_ends_the_sample() -> None:
    source = Source({("orders", 0): [6] * READS}, {"orders": SIZE})
    del source.ends_now["orders", 1]
    assert source.sampled().topics[0].records_per_second == pytest.approx(6 * READS / 60)

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
