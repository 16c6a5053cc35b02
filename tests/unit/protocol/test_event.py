"""What a Kafka event source mapping sends arrives as the bytes that stood on the source, or not at all."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from msgspec.structs import astuple

from mirrorless.errors import EventError
from mirrorless.ports.kafka import TopicPartition
from mirrorless.protocol.event import Batch, decode_event
from mirrorless.records.record import Headers, Record

EVENTS = Path(__file__).parents[2] / "events"
AT = 1763686800123


def read(name: str) -> bytes:
    return (EVENTS / f"{name}.json").read_bytes()


def record(*, key: bytes | None = None, value: bytes | None = b"v", headers: Headers | None = None) -> Record:
    return Record(offset=41, timestamp=AT, headers=headers or [], key=key, value=value)


def plain(batch: Batch) -> dict[TopicPartition, list[tuple[object, ...]]]:
    """The batch as tuples: the decoder's records are of a class of their own, and equal none of ours."""
    return {place: [astuple(each) for each in records] for place, records in batch.records.items()}


@pytest.fixture(autouse=True, params=["plain", "large", "very large"])
def _all_decoders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are decoded in three ways, by the size of their records, to the same records and errors."""
    never = 1 << 30
    monkeypatch.setattr("mirrorless.protocol.event.LARGE_RECORD_BYTES", never if request.param == "plain" else 0)
    monkeypatch.setattr(
        "mirrorless.protocol.event.VERY_LARGE_RECORD_BYTES", 0 if request.param == "very large" else never
    )


ALONE = {
    "self_managed_cluster": record(key=b"k"),
    "self_managed_cluster_in_older_samples": record(key=b"k"),
    "tombstone": record(key=b"k", value=None),
    "tombstone_written_as_null": record(key=b"k", value=None),
    "null_key": record(key=None),
    "empty_key_and_value": record(key=b"", value=b""),
    "repeated_headers": record(headers=[("a", b"1"), ("b", b"2"), ("a", b"1"), ("a", b"3")]),
    "headers_with_every_byte": record(headers=[("signed", bytes(range(256))), ("unsigned", bytes(range(256)))]),
    "headers_left_out": record(),
    "headers_written_as_null": record(),
    "header_with_null_value": record(headers=[("nothing", None), ("empty", b"")]),
    "header_names_beyond_ascii": record(headers=[("größe-尺寸-📦", b"1"), ("", b"2")]),
}

REFUSED = {
    "two_topics": "['orders', 'payments']",
    "out_of_order": "offset 41 after 42",
    "the_same_offset_twice": "offset 42 after 42",
    "value_that_is_not_base64": "value",
    "header_byte_out_of_range": "header",
    "no_records": "the topics []",
    "records_key_without_partition": "'orders' is not a topic and a partition",
    "another_service": "eventSource",
    "another_event_source": "aws:kinesis",
    "no_offset": "offset",
}


def test_a_batch_of_two_partitions_arrives_with_every_byte_null_and_gap_in_place() -> None:
    """The whole sample at once: repeated and non-ASCII headers, a tombstone, a null key, an empty value, a gap."""
    batch = decode_event(read("two_partitions_of_a_msk_topic"))

    trace: Headers = [("trace", b"ab"), ("trace", b"c"), ("city", "Köln".encode()), ("binary", b"\x00\xff\x7f\x80")]
    assert plain(batch) == plain(
        Batch.of_topic(
            "orders-eu",
            {
                0: [
                    Record(offset=41, timestamp=AT, headers=trace, key=b"order-1", value=b'{"id":1}'),
                    Record(offset=43, timestamp=1763686800200, headers=[], key=b"order-1", value=None),
                ],
                1: [
                    Record(offset=7, timestamp=1763686799000, headers=[], key=None, value=b"\x00\xff"),
                    Record(offset=8, timestamp=1763686799001, headers=[], key=b"k", value=b""),
                ],
            },
        )
    )


@pytest.mark.parametrize("name", ALONE)
def test_a_record_arrives_as_it_stood_on_the_source(name: str) -> None:
    batch = decode_event(read(name))

    assert plain(batch) == {("orders-eu", 0): [astuple(ALONE[name])]}


@pytest.mark.parametrize("name", [*ALONE, "two_partitions_of_a_msk_topic", "topic_with_hyphens_and_digits"])
def test_an_event_that_the_runtime_has_parsed_already_is_the_same_event(name: str) -> None:
    """Where the runtime has no hook for our decoder, the handler gets a dict."""
    event = read(name)

    assert plain(decode_event(json.loads(event))) == plain(decode_event(event))


def test_the_last_hyphen_parts_topic_and_partition() -> None:
    batch = decode_event(read("topic_with_hyphens_and_digits"))

    assert list(batch.records) == [("orders-2024-eu", 12)]
    assert batch.topics == ["orders-2024-eu"]


@pytest.mark.parametrize("name", REFUSED)
def test_an_event_that_no_mapping_sends_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(EventError) as refused:
        decode_event(read(name))

    assert REFUSED[name] in str(refused.value)
    assert not refused.value.retriable


def test_every_captured_event_is_in_a_test() -> None:
    tested = {*ALONE, *REFUSED, "two_partitions_of_a_msk_topic", "topic_with_hyphens_and_digits"}

    assert {path.stem for path in EVENTS.glob("*.json")} == tested


def event_of(*values: str) -> bytes:
    records = [f'{{"offset":{i},"timestamp":1,"value":{value}}}' for i, value in enumerate(values)]
    return f'{{"eventSource":"aws:kafka","records":{{"orders-0":[{",".join(records)}]}}}}'.encode()


def values_in(batch: Batch) -> list[bytes | None]:
    return [each.value for each in batch.records["orders", 0] if isinstance(each, Record)]


def test_a_value_in_escaped_characters_is_the_same_value() -> None:
    batch = decode_event(event_of('"ab/+"', r'"ab\/+"', r'"\u0061b/+"'))

    assert values_in(batch) == [b"i\xbf\xfe"] * 3


def test_a_value_that_is_null_or_left_out_is_none_among_values_in_base64() -> None:
    event = event_of('"YQ=="', "null", "1").replace(b',"value":1', b"")

    assert values_in(decode_event(event)) == [b"a", None, None]


@pytest.mark.parametrize("key", ["orders", "12", "orders-", "orders-x", "orders-1x"])
def test_a_key_that_is_no_topic_and_partition_number_is_refused(key: str) -> None:
    event = event_of('"YQ=="').replace(b"orders-0", key.encode())

    with pytest.raises(EventError, match=f"{key!r} is not a topic and a partition number"):
        decode_event(event)


@pytest.mark.parametrize("value", ["5", "[]", '"abc"', '"a=bc"', '"ab c"', '"ab cd"', '"größe"', '"尺寸"', "true"])
def test_a_value_that_is_no_base64_is_refused(value: str) -> None:
    with pytest.raises(EventError, match="value"):
        decode_event(event_of('"YQ=="', value))


@pytest.mark.parametrize(
    "event",
    [
        event_of('"YQ=="', '"Yg=="').replace(b'"value":"Yg', b'"value": "Yg'),
        event_of('"YQ=="', '"Yg=="').replace(b'"aws:kafka"', b'"aws:kafka","other":{"value":"Yw=="}'),
        event_of('"YQ=="', '"Yg=="')
        .replace(b'"value":"Yg', b'"value": "Yg')
        .replace(b':kafka"', b':kafka","value":""'),
    ],
    ids=["a space", "another value", "both"],
)
def test_an_event_that_is_written_otherwise_has_the_same_values(event: bytes) -> None:
    assert [each.value for each in decode_event(event).records_of(("orders", 0))] == [b"a", b"b"]


def test_a_header_with_the_name_and_the_text_of_a_value_is_no_value() -> None:
    headers = r'[{"value":[1]},{"\"value\":\"YQ==\"":[2]}]'
    event = event_of('"YQ=="', '"Yg=="').replace(b'"timestamp":1', f'"timestamp":1,"headers":{headers}'.encode())

    for each, value in zip(decode_event(event).records_of(("orders", 0)), (b"a", b"b"), strict=True):
        assert each.headers == [("value", b"\x01"), ('"value":"YQ=="', b"\x02")]
        assert each.value == value


def test_only_large_values_are_decoded_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    apart: list[int] = []

    def decode(value: str | memoryview, _: None = None, validate: bool = False) -> bytes:  # noqa: FBT001, FBT002 -- pybase64's
        apart.append(len(value) if isinstance(value, str) else -len(value))
        return base64.b64decode(value, validate=validate)

    monkeypatch.setattr("pybase64.b64decode", decode)

    decode_event(event_of(*[f'"{"YWJj" * 166}"'] * 200))
    assert not apart
    decode_event(event_of(*[f'"{"YWJj" * 400}"'] * 200))
    assert apart == [1_600] * 200
    apart.clear()
    decode_event(event_of(*[f'"{"YWJj" * 1_500}"'] * 200))
    assert apart == [-6_000] * 200
