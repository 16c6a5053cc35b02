"""MirrorMaker 2's records, held to bytes that Kafka's own classes wrote."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorless.mm2.internal_records import LONGEST_STRING, Checkpoint, Heartbeat, OffsetSync

Internal = OffsetSync | Checkpoint | Heartbeat

SYNC = OffsetSync(topic="topic-1", partition=2, upstream=3, downstream=4)
CHECKPOINT = Checkpoint(group="group-1", topic="topic-2", partition=3, upstream=4, downstream=5, metadata="metadata-6")
HEARTBEAT = Heartbeat(source="source-1", target="target-2", timestamp=1_234_567_890)

KAFKAS_OWN = {
    "offset sync": (SYNC, "0007746f7069632d3100000002", "00000000000000030000000000000004"),
    "checkpoint": (
        CHECKPOINT,
        "000767726f75702d310007746f7069632d3200000003",
        "000000000000000000040000000000000005000a6d657461646174612d36",
    ),
    "checkpoint without metadata": (
        replace(CHECKPOINT, metadata=""),
        "000767726f75702d310007746f7069632d3200000003",
        "0000000000000000000400000000000000050000",
    ),
    "heartbeat": (HEARTBEAT, "0008736f757263652d3100087461726765742d32", "000000000000499602d2"),
}

kafkas_own = pytest.mark.parametrize(("record", "key", "value"), KAFKAS_OWN.values(), ids=KAFKAS_OWN)
every_kind = pytest.mark.parametrize("record", [SYNC, CHECKPOINT, HEARTBEAT], ids=lambda each: type(each).__name__)

strings = st.text(st.characters(codec="utf-8"), max_size=50)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@kafkas_own
def test_we_write_the_bytes_that_kafka_writes(record: Internal, key: str, value: str) -> None:
    assert (record.key().hex(), record.value().hex()) == (key, value)


@kafkas_own
def test_we_read_the_bytes_that_kafka_writes(record: Internal, key: str, value: str) -> None:
    assert type(record).decode(bytes.fromhex(key), bytes.fromhex(value)) == record


@given(
    st.builds(OffsetSync, topic=strings, partition=int32, upstream=int64, downstream=int64)
    | st.builds(
        Checkpoint, group=strings, topic=strings, partition=int32, upstream=int64, downstream=int64, metadata=strings
    )
    | st.builds(Heartbeat, source=strings, target=strings, timestamp=int64)
)
def test_what_is_written_is_read_back(record: Internal) -> None:
    assert type(record).decode(record.key(), record.value()) == record


@every_kind
def test_what_a_later_version_appends_is_ignored(record: Internal) -> None:
    assert type(record).decode(record.key() + b"new", record.value() + b"new") == record


@every_kind
def test_a_record_cut_short_anywhere_is_refused(record: Internal) -> None:
    key, value = record.key(), record.value()

    for length in range(len(key)):
        with pytest.raises(ValueError, match="key ends inside its"):
            type(record).decode(key[:length], value)
    for length in range(len(value)):
        with pytest.raises(ValueError, match="value ends inside its"):
            type(record).decode(key, value[:length])


@pytest.mark.parametrize("record", [CHECKPOINT, HEARTBEAT], ids=["checkpoint", "heartbeat"])
def test_another_version_is_refused(record: Checkpoint | Heartbeat) -> None:
    with pytest.raises(ValueError, match="has version 1; only 0 is supported"):
        type(record).decode(record.key(), b"\0\1" + record.value()[2:])


def test_a_null_string_is_refused() -> None:
    with pytest.raises(ValueError, match="null metadata"):
        Checkpoint.decode(CHECKPOINT.key(), replace(CHECKPOINT, metadata="").value()[:-2] + b"\xff\xff")


def test_a_string_that_is_no_utf_8_is_refused() -> None:
    with pytest.raises(ValueError, match="the topic in the offset sync's key is no UTF-8: ff"):
        OffsetSync.decode(b"\0\1\xff\0\0\0\0", SYNC.value())


def test_a_string_is_measured_in_bytes_and_may_have_as_many_as_an_int16_can_say() -> None:
    longest = "é" * (LONGEST_STRING // 2) + "e"

    fits = replace(CHECKPOINT, metadata=longest)
    too_long = replace(CHECKPOINT, metadata=longest + "e")

    assert Checkpoint.decode(fits.key(), fits.value()) == fits
    with pytest.raises(ValueError, match="the metadata has 32768 bytes"):
        too_long.value()


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="the partition does not fit"):
        replace(SYNC, partition=2**31).key()
    with pytest.raises(ValueError, match="offset does not fit"):
        replace(CHECKPOINT, upstream=2**63).value()
    with pytest.raises(ValueError, match="the timestamp does not fit"):
        replace(HEARTBEAT, timestamp=2**63).value()
