from __future__ import annotations

from hashlib import sha256
from struct import pack_into

import pytest
from cramjam import snappy
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from mirrorless.records.batch_records import last_record, packed, records
from mirrorless.records.record import Record, size_of
from mirrorless.records.record_batch import (
    CODECS,
    BatchUnreadable,
    Codec,
    PassTerms,
    RecordBatch,
    batch_digest,
    batches,
    next_sequence,
    obstacle,
    produced,
)

TERMS = PassTerms(max_message_bytes=1_000_000)
_BYTES = st.none() | st.binary(max_size=40)
_RECORDS = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp=st.integers(-1, 2**62),
        headers=st.lists(st.tuples(st.text(max_size=5), _BYTES), max_size=3),
        key=_BYTES,
        value=_BYTES,
    ),
    min_size=1,
    max_size=30,
)


def in_log(batch: RecordBatch, *, at: int = 0, producer_id: int = 7, attributes: int | None = None) -> bytearray:
    """The batch as a broker appends it."""
    if attributes is not None:
        batch = changed(batch, attributes=attributes)
    header = bytearray(produced(batch, producer_id=producer_id, producer_epoch=3, base_sequence=11))
    pack_into(">q", header, 0, at)
    if attributes is not None:
        pack_into(">h", header, 21, attributes)
        pack_into(">I", header, 17, crc32c(batch.payload, crc32c(header[21:])))
    return header + batch.payload


def of_values(*values: bytes, codec: Codec = "lz4") -> RecordBatch:
    made = [Record(i, 1_700_000_000_000 + i, [], None, value) for i, value in enumerate(values)]
    (batch,) = packed(made, codec, max_bytes=10**6)
    return batch


@given(_RECORDS, st.sampled_from(CODECS), st.integers(0, 2**40))
def test_records_that_were_packed_and_appended_are_read_as_they_were(some: list[Record], codec: Codec, at: int) -> None:
    (batch,) = packed(some, codec, max_bytes=10**6)

    (read,) = batches(memoryview(in_log(batch, at=at)))

    assert records(read) == [changed(each, offset=at + i) for i, each in enumerate(some)]
    assert last_record(read) == records(read)[-1]
    assert (read.codec, read.next, read.size) == (codec, at + len(some), batch.size)
    assert read.max_timestamp == max(each.timestamp for each in some)
    assert batch_digest([read]) == batch_digest([batch])


@given(_RECORDS, st.sampled_from(CODECS))
def test_a_batch_is_produced_with_its_payload_and_a_header_of_the_producer(some: list[Record], codec: Codec) -> None:
    (batch,) = packed(some, codec, max_bytes=10**6)

    header = produced(batch, producer_id=2**40, producer_epoch=9, base_sequence=2**31 - 1)
    (read,) = batches(memoryview(header + batch.payload))

    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (2**40, 9, 2**31 - 1)
    assert (read.base_offset, read.leader_epoch, read.is_transactional, read.is_control) == (0, -1, True, False)
    assert (read.payload, read.base_timestamp) == (batch.payload, batch.base_timestamp)
    assert next_sequence(2**31 - 1, read) == len(some) - 1


def test_what_a_producer_writes_of_the_attributes_is_codec_and_timestamp_type_and_a_transaction() -> None:
    header = produced(changed(of_values(b"a"), attributes=0xFF & ~4), producer_id=1, producer_epoch=0, base_sequence=0)

    assert header[21:23] == bytes([0, 0x1B])


@given(_RECORDS, st.integers(0, 3000))
def test_a_batch_that_is_cut_off_at_the_end_is_left_out(some: list[Record], cut: int) -> None:
    (batch,) = packed(some, "none", max_bytes=10**6)
    first, second = in_log(batch), in_log(batch, at=len(some))
    cut = min(cut, len(second) - 1)

    assert [each.base_offset for each in batches(memoryview(first + second[:cut]))] == [0]
    assert [each.base_offset for each in batches(memoryview(first + second))] == [0, len(some)]


@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_byte_that_changed_on_its_way_is_found(value: bytes, data: st.DataObject) -> None:
    log = in_log(of_values(value, value))
    at = data.draw(st.integers(21, len(log) - 1))
    log[at] ^= data.draw(st.integers(1, 255))

    with pytest.raises(BatchUnreadable, match="checksum"):
        list(batches(memoryview(log)))


@pytest.mark.parametrize(("magic", "old"), [(0, True), (1, True), (3, False), (37, False)])
def test_a_batch_of_another_format_ends_the_reading_behind_those_before_it(magic: int, *, old: bool) -> None:
    """Only a format that there was is left to the Kafka client."""
    log = in_log(of_values(b"a")) + in_log(of_values(b"b"), at=1)
    log[len(log) // 2 + 16] = magic
    read = batches(memoryview(log))

    assert next(read).base_offset == 0
    with pytest.raises(BatchUnreadable) as caught:
        next(read)
    assert (caught.value.offset, caught.value.old_format) == (1, old)


def test_the_length_of_a_damaged_batch_ends_the_reading_instead_of_going_round() -> None:
    log = in_log(of_values(b"a"))
    pack_into(">i", log, 8, -12)

    with pytest.raises(BatchUnreadable, match="length"):
        list(batches(memoryview(log)))


def test_the_payload_is_a_view_of_what_was_read() -> None:
    log = in_log(of_values(b"a"))
    (read,) = batches(memoryview(log))

    assert read.payload.obj is log


# What keeps a batch from being copied as it is


def appended(*values: bytes, codec: Codec = "lz4", attributes: int | None = None, at: int = 100) -> RecordBatch:
    batch = of_values(*values, codec=codec)
    bits = batch.attributes if attributes is None else batch.attributes | attributes
    (read,) = batches(memoryview(in_log(batch, at=at, attributes=bits)))
    return read


def test_a_whole_batch_of_the_lane_passes() -> None:
    batch = appended(b"a", b"b")

    assert obstacle(batch, TERMS, position=100) is None
    assert obstacle(batch, TERMS, position=99, end=102) is None
    assert obstacle(appended(b"a", attributes=0x10), TERMS, position=100) is None


@pytest.mark.parametrize(("position", "end"), [(101, None), (102, None), (100, 101), (0, 100)])
def test_a_batch_that_reaches_beyond_what_is_wanted_is_cut(position: int, end: int | None) -> None:
    assert obstacle(appended(b"a", b"b"), TERMS, position=position, end=end) == "cut"


def test_what_a_broker_would_refuse_or_change_does_not_pass() -> None:
    batch = appended(b"a", b"b")
    limit = batch.size

    assert obstacle(appended(b"a", attributes=0x30), TERMS, position=0) == "control"
    assert obstacle(changed(batch, records_count=0), TERMS, position=0) == "empty"
    assert obstacle(changed(batch, records_count=1), TERMS, position=0) == "thinned"
    assert obstacle(appended(b"a", attributes=0x08), TERMS, position=0) == "log_append_time"
    assert obstacle(batch, PassTerms(max_message_bytes=limit), position=0) is None
    assert obstacle(batch, PassTerms(max_message_bytes=limit - 1), position=0) == "too_large"
    assert obstacle(batch, PassTerms(max_message_bytes=limit, by_record=True), position=0) == "by_record"


@pytest.mark.parametrize("codec", CODECS)
def test_a_remote_topic_that_compresses_anew_takes_only_batches_of_its_own_codec(codec: Codec) -> None:
    batch = appended(b"a", codec=codec)

    for name in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"):
        found = obstacle(batch, PassTerms(max_message_bytes=10**6, compression_type=name), position=0)
        fits = name in ("producer", "uncompressed" if codec == "none" else codec)
        assert found == (None if fits else "compressed_anew"), name


# Digests


def test_the_digest_holds_everything_a_producer_could_get_wrong() -> None:
    batch = of_values(b"a", b"b")
    log = bytearray(batch.payload)
    log[-1] ^= 1
    others = [
        changed(batch, base_timestamp=batch.base_timestamp + 86_400_000),
        changed(batch, attributes=4),
        changed(batch, last_offset_delta=2),
        changed(batch, records_count=3),
        changed(batch, payload=memoryview(log)),
    ]
    lists = [[batch], [], [batch, batch], *([each] for each in others), [*others], [*others[::-1]]]

    assert len({batch_digest(each) for each in lists}) == len(lists)


def test_the_digest_of_known_batches_never_changes() -> None:
    """Chains of earlier versions are proved by it."""
    known = changed(
        of_values(b"a"), attributes=3, base_timestamp=1_700_000_000_000, last_offset_delta=4, records_count=2
    )
    known = changed(known, payload=memoryview(b"payload"))
    header = bytes.fromhex("03000000040000018bcfe568000000000200000007")

    assert batch_digest([known, known]) == sha256((header + b"payload") * 2).digest()


def test_the_digest_leaves_out_what_the_target_gives_anew() -> None:
    batch = of_values(b"a", b"b")
    read = appended(b"a", b"b", at=4711, attributes=0x10)

    assert batch_digest([changed(read, max_timestamp=5, leader_epoch=6)]) == batch_digest([batch])


# Records


def test_what_does_not_fit_into_one_batch_goes_into_several_in_order() -> None:
    some = [Record(i, i, [("h", b"x" * (i % 9))], b"k" * (i % 7), bytes([i % 256]) * (i % 300)) for i in range(500)]

    made = list(packed(some, "none", max_bytes=2000))

    assert len(made) > 20
    assert all(batch.size <= 2000 for batch in made)
    read = [each for batch in made for each in records(batch)]
    assert [changed(each, offset=0) for each in read] == [changed(each, offset=0) for each in some]


def test_a_record_larger_than_a_batch_gets_one_of_its_own() -> None:
    some = [Record(0, 0, [], None, b"a"), Record(1, 0, [], None, b"b" * 5000), Record(2, 0, [], None, b"c")]

    assert [batch.records_count for batch in packed(some, "none", max_bytes=1000)] == [1, 1, 1]
    assert size_of(some[1]) > 1000


def test_no_records_make_no_batch() -> None:
    assert list(packed([], "lz4", max_bytes=1000)) == []


def test_the_time_of_records_that_the_log_stamped_is_that_of_the_log() -> None:
    read = appended(b"a", b"b", attributes=0x08)

    assert {each.timestamp for each in records(read)} == {read.max_timestamp}


def test_snappy_as_java_frames_it_is_read() -> None:
    """Java's clients and aiokafka frame each 32 KB apart."""
    plain = of_values(*(b"%d" % i * 500 for i in range(100)), codec="none")
    blocks = [
        bytes(snappy.compress_raw(plain.payload[at : at + 32_768])) for at in range(0, len(plain.payload), 32_768)
    ]
    frame = b"\x82SNAPPY\x00" + (1).to_bytes(4) * 2 + b"".join(len(each).to_bytes(4) + each for each in blocks)

    assert len(blocks) > 2
    assert records(changed(plain, attributes=CODECS.index("snappy"), payload=memoryview(frame))) == records(plain)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.data())
def test_content_that_is_damaged_is_an_error_that_names_the_batch(codec: Codec, data: st.DataObject) -> None:
    batch = changed(of_values(b"abc" * 20, b"def" * 20, codec=codec), base_offset=77)
    end = data.draw(st.integers(0, len(batch.payload) - 1))

    with pytest.raises(BatchUnreadable, match="77"):
        records(changed(batch, payload=batch.payload[:end]))
    with pytest.raises(BatchUnreadable, match="77"):
        records(changed(batch, records_count=1))
    with pytest.raises(BatchUnreadable, match="77"):
        last_record(changed(batch, records_count=3))


def test_a_header_whose_name_is_not_utf_8_is_an_error_and_not_another_name() -> None:
    (batch,) = packed([Record(0, 0, [("né", b"")], None, b"")], "none", max_bytes=1000)
    payload = bytes(batch.payload).replace("é".encode(), b"\xff\xfe")

    with pytest.raises(BatchUnreadable, match="not UTF-8"):
        last_record(changed(batch, payload=memoryview(payload)))
    assert records(changed(batch, payload=memoryview(payload)))[0].headers == [("n\ufffd\ufffd", b"")]


def test_an_unknown_codec_is_an_error() -> None:
    with pytest.raises(BatchUnreadable, match="unknown codec 5"):
        records(changed(of_values(b"a"), attributes=5))


@pytest.mark.parametrize("byte", [25, 70], ids=["of its last offset", "of its records"])
@pytest.mark.parametrize("followed", [True, False])
def test_a_damaged_batch_is_named_with_where_the_next_one_begins(byte: int, *, followed: bool) -> None:
    some = [Record(offset=i, timestamp=1, headers=[], value=b"value %d" % i) for i in range(3)]
    (batch,) = packed(some, "none", max_bytes=10_000)
    first, second = bytearray(in_log(batch, at=40)), in_log(batch, at=45)
    first[byte] ^= 0x40

    with pytest.raises(BatchUnreadable, match="compare its replicas") as raised:
        list(batches(memoryview(bytes(first) + second * followed)))

    exc = raised.value
    assert (exc.offset, exc.cause, exc.old_format) == (40, "DAMAGED", False)
    if followed:
        assert exc.next == 45, "what compaction removed between them is not known to have been there"
    else:
        assert exc.next == (43 if byte == 70 else None), "a wrong one would pass over records that nobody has read"
