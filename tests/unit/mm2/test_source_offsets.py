"""MirrorMaker 2's source offsets, held to what a real one of Kafka 4.1.1 wrote."""

from __future__ import annotations

import pytest

from mirrorless.mm2.source_offsets import SourcePartition, decode_offset, encode_offset

ORDERS = SourcePartition(connector="MirrorSourceConnector", cluster="us-east", topic="orders", partition=2)
KEY = b'["MirrorSourceConnector",{"cluster":"us-east","partition":2,"topic":"orders"}]'


def test_a_key_is_written_as_connect_writes_it_and_read_back() -> None:
    assert ORDERS.key() == KEY
    assert SourcePartition.decode(KEY) == ORDERS
    assert decode_offset(encode_offset(41)) == 41
    assert encode_offset(41) == b'{"offset":41}'
    assert (encode_offset(-1), decode_offset(None)) == (None, None)


@pytest.mark.parametrize(
    "key",
    [
        b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"a","targetClusterAlias":"b"}]',
        b'["MirrorCheckpointConnector",{"group":"g","partition":0,"topic":"t"}]',
        b'["file-source",{"filename":"x"}]',
        b'["MirrorSourceConnector",{"cluster":"a","partition":true,"topic":"t"}]',
        b'"text"',
        b"\xff",
    ],
)
def test_a_key_of_another_connector_is_none_of_ours(key: bytes) -> None:
    assert SourcePartition.decode(key) is None


@pytest.mark.parametrize("value", [b'{"offset":-1}', b'{"offset":"3"}', b"3", b'{"position":3}'])
def test_what_is_no_offset_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="no source offset"):
        decode_offset(value)
