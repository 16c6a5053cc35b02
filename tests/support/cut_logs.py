"""A stopped broker's log that is changed on its disk: as one that was restored, or is as old as its first broker."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from struct import pack, unpack_from

from lab.servers.kafka import KafkaCluster

_FRONT = 12
_LAST_DELTA_AT = 23


def cut_off(cluster: KafkaCluster, topic: str, partition: int, at: int) -> None:
    """Let a partition of one segment end before the batch that begins at an offset. The broker is not running."""
    (path,) = sorted(_folder(cluster, topic, partition).glob("*.log"))
    data, place = path.read_bytes(), 0
    while place + _FRONT < len(data):
        base, length = unpack_from(">qi", data, place)
        if base == at:
            break
        if base + unpack_from(">i", data, place + _LAST_DELTA_AT)[0] >= at:
            raise ValueError(f"a batch of {topic}-{partition} begins at {base}, and reaches over {at}")
        place += _FRONT + length
    path.write_bytes(data[:place])
    for kind in ("*.index", "*.timeindex", "*.snapshot"):
        for each in path.parent.glob(kind):
            each.unlink()


def _folder(cluster: KafkaCluster, topic: str, partition: int) -> Path:
    (broker,) = cluster.brokers
    return broker.log.parent / "data" / f"{topic}-{partition}"


def replace_by_format_1(cluster: KafkaCluster, topic: str, partition: int, values: Sequence[bytes]) -> None:
    """Let a partition hold these records as a broker of 2016 wrote them, some compressed. It is not running."""
    folder, half = _folder(cluster, topic, partition), len(values) // 2
    for each in folder.glob("0*"):
        each.unlink()
    plain = b"".join(_message(offset, value) for offset, value in enumerate(values[:half]))
    inner = gzip.compress(b"".join(_message(offset, value) for offset, value in enumerate(values[half:])))
    (folder / f"{0:020}.log").write_bytes(plain + _message(len(values) - 1, inner, attributes=1, key=None))


def _message(offset: int, value: bytes, *, attributes: int = 0, key: bytes | None = b"k") -> bytes:
    keyed = pack(">i", -1) if key is None else pack(">i", len(key)) + key
    body = pack(">bbq", 1, attributes, 1_500_000_000_000) + keyed + pack(">i", len(value)) + value
    return pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body
