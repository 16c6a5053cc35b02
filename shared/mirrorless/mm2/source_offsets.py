"""The source offsets of MirrorMaker 2, byte for byte: how far its connector has copied, as Connect stores it.

    key    ["MirrorSourceConnector",{"cluster":"A","partition":0,"topic":"orders"}]
    value  {"offset":41}       the last record that was copied: it goes on with the one behind it

The newest record of a key counts, and a null value is a reset. Connect finds a key by its bytes, so it is written as
Connect writes it: without blanks, the members in this order. (Kafka, connect/mirror: MirrorUtils.java)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Self

CONNECTOR: Final = "MirrorSourceConnector"
"""The connector's name where MirrorMaker runs by itself; in a Connect cluster it has any."""


def offsets_topic(alias: str) -> str:
    """The topic on the target where MirrorMaker runs by itself. Args: alias: of the source, as MirrorMaker has it."""
    return f"mm2-offsets.{alias}.internal"


def worker_group(alias: str) -> str:
    """The group of its workers on the target. Args: as `offsets_topic`."""
    return f"{alias}-mm2"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SourcePartition:
    """What a source offset is about."""

    connector: str
    cluster: str
    """The source's alias."""
    topic: str
    """Its name on the source."""
    partition: int

    def key(self) -> bytes:
        """As Connect writes it: what is not ASCII stays as it is."""
        place = {"cluster": self.cluster, "partition": self.partition, "topic": self.topic}
        return json.dumps([self.connector, place], separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def decode(cls, key: bytes) -> Self | None:
        """Read a key back; None for one of another connector's: heartbeats, checkpoints, what is no MirrorMaker."""
        try:
            connector, place = json.loads(key)
            cluster, topic, partition = place["cluster"], place["topic"], place["partition"]
        except (ValueError, TypeError, KeyError):
            return None
        if not all(isinstance(each, str) for each in (connector, cluster, topic)) or type(partition) is not int:
            return None
        return cls(connector=connector, cluster=cluster, topic=topic, partition=partition)


def encode_offset(last: int) -> bytes | None:
    """The value for the last upstream offset that was copied; null for -1: nothing was."""
    return b'{"offset":%d}' % last if last >= 0 else None


def decode_offset(value: bytes | None) -> int | None:
    """The last upstream offset that was copied; None after a reset.

    Raises:
        ValueError: it is neither.
    """
    if value is None:
        return None
    found = json.loads(value)
    last = found.get("offset") if isinstance(found, dict) else None
    if type(last) is not int or last < 0:
        raise ValueError(f"no source offset of MirrorMaker: {value[:80]!r}")
    return last
