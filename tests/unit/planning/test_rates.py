"""Rates of topics: the file, and what is made of it."""

from __future__ import annotations

import pytest

from mirrorless.planning.rates import COLUMNS, InvalidRates, TopicRate, flow_loads, read_rates

HEADER = ",".join(COLUMNS)
ORDERS = "orders,6,1200,1200000,1000,3000000"


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


def test_the_columns_are_these() -> None:
    assert HEADER == "topic,partitions,records_per_second,bytes_per_second,average_record_bytes,peak_bytes_per_second"


def test_a_row_is_a_topic() -> None:
    assert read(HEADER, ORDERS) == (
        TopicRate(
            topic="orders",
            partitions=6,
            records_per_second=1_200,
            bytes_per_second=1_200_000,
            average_record_bytes=1_000,
            peak_bytes_per_second=3_000_000,
        ),
    )


def test_a_last_column_may_have_the_size_of_batches() -> None:
    (orders,) = read(f"{HEADER},average_batch_bytes", f"{ORDERS},8200")

    assert orders.average_batch_bytes == 8_200
    assert read(HEADER, ORDERS)[0].average_batch_bytes == 0


@pytest.mark.parametrize(
    ("row", "says"),
    [(ORDERS, "6 values instead of 7"), (f"{ORDERS},many", "average_batch_bytes: 'many' is no number from 0 on")],
)
def test_a_bad_row_with_batches_is_an_error_too(row: str, says: str) -> None:
    assert refused(f"{HEADER},average_batch_bytes", row) == f"line 2: {says}"


def test_a_spreadsheets_file_is_read_too() -> None:
    """With a mark of UTF-8, quotes, spaces, Windows line ends, empty rows, and values in another notation."""
    text = f'\ufeff{HEADER}\r\n\r\n"orders", 6 ,1.2e3,1200000.0,1e3,3000000\r\n,,,,,\r\n'

    assert read_rates(text, origin="rates.csv") == read(HEADER, ORDERS)


def test_a_silent_topic_is_a_row_of_zeros() -> None:
    (silent,) = read(HEADER, "audit,3,0,0,0,0")

    assert silent.load().mb_per_second == 0
    assert silent.load().records_per_topic == 0


@pytest.mark.parametrize(
    ("row", "says"),
    [
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
    ],
)
def test_a_bad_row_is_an_error_with_its_line(row: str, says: str) -> None:
    assert refused(HEADER, "audit,3,0,0,0,0", row) == f"line 3: {says}"


def test_every_bad_row_is_named_up_to_twenty() -> None:
    what = refused(HEADER, *("x" for _ in range(22)))

    assert what.count("values instead of") == 20
    assert what.endswith("line 21: 1 values instead of 6; and 2 more")


def test_a_topic_has_one_row() -> None:
    assert refused(HEADER, ORDERS, "", ORDERS) == "line 4: topic 'orders' has a row already, on line 2"


def test_the_first_row_names_the_columns() -> None:
    assert refused(ORDERS).startswith("line 1: the first row must be topic,partitions,")
    assert refused("", "topic,partitions").startswith("line 2: the first row must be")


@pytest.mark.parametrize("rows", [(), ("", "  ")])
def test_an_empty_file_is_refused(rows: tuple[str, ...]) -> None:
    assert refused(*rows) == "line 1: the file is empty"


def test_a_file_without_topics_is_refused() -> None:
    assert refused(HEADER) == "line 1: no topic follows the names of the columns"


def test_text_that_is_no_csv_is_refused_with_its_line() -> None:
    assert refused(HEADER, ORDERS, '"audit,1').startswith("line 3: this is not CSV")


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
    other = TopicRate(
        topic="b",
        partitions=12,
        records_per_second=1,
        bytes_per_second=1_000,
        average_record_bytes=1_000,
        peak_bytes_per_second=1_000,
    )

    assert sorted(load.partitions for load in flow_loads([rate("a"), other])) == [6, 12]


def test_a_record_that_no_event_carries_needs_a_schedule() -> None:
    assert not rate(size=4_000_000).needs_schedule
    assert rate(size=5_000_000).needs_schedule
