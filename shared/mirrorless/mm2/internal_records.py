"""MirrorMaker 2's internal records, byte for byte.

Kafka's protocol types without tags or padding, big-endian: an INT16 has 2 bytes, an INT32 4, an INT64 8, and a STRING
is an INT16 with its length in bytes before UTF-8. All of them go to partition 0 of a compacted topic, without headers.
Written for the readers that exist: `MirrorClient`, `RemoteClusterUtils`, the console formatters, and MirrorMaker 2
itself. (Kafka, connect/mirror-client: Checkpoint.java, Heartbeat.java; connect/mirror: OffsetSync.java)

The topics of heartbeats, checkpoints and offset syncs, and the circuit breaker of their clusters.

A flow has two clusters, and one that does not answer must not delay the work on the other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

from mirrorless.clock import Deadline
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.ports.kafka import InternalTopics

VERSION: Final = 0
"""Of a checkpoint's and a heartbeat's value. An offset sync has none."""

LONGEST_STRING: Final = 32_767
"""Bytes of UTF-8: the length is an INT16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSync:
    """The record at offset `upstream` of the source was written at offset `downstream` of the target."""

    topic: str
    """Its name on the source."""
    partition: int
    upstream: int
    downstream: int

    def key(self) -> bytes:
        """`topic` STRING, `partition` INT32.

        Raises:
            ValueError: a member does not fit into its type.
        """
        return _string(self.topic, "topic") + _packed(">i", "partition", self.partition)

    def value(self) -> bytes:
        """`upstream` INT64, `downstream` INT64.

        Raises:
            ValueError: a member does not fit into its type.
        """
        return _packed(">qq", "upstream or downstream offset", self.upstream, self.downstream)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Self:
        """Read one back; what follows the last member is ignored.

        Raises:
            ValueError: bytes are missing, or are no UTF-8.
        """
        keys, values = _Bytes(key, "offset sync's key"), _Bytes(value, "offset sync's value")
        return cls(
            topic=keys.string("topic"),
            partition=keys.integer(">i", "partition"),
            upstream=values.integer(">q", "upstream offset"),
            downstream=values.integer(">q", "downstream offset"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A group that stands at offset `upstream` of the source may resume at offset `downstream` of the target."""

    group: str
    topic: str
    """Its name on the target."""
    partition: int
    upstream: int
    downstream: int
    metadata: str = ""
    """What the group committed beside its offset. There is no null in this format; Kafka turns it into empty."""

    def key(self) -> bytes:
        """`group` STRING, `topic` STRING, `partition` INT32.

        Raises:
            ValueError: a member does not fit into its type.
        """
        return _string(self.group, "group") + _string(self.topic, "topic") + _packed(">i", "partition", self.partition)

    def value(self) -> bytes:
        """Version INT16, `upstream` INT64, `downstream` INT64, `metadata` STRING.

        Raises:
            ValueError: a member does not fit into its type.
        """
        offsets = _packed(">hqq", "upstream or downstream offset", VERSION, self.upstream, self.downstream)
        return offsets + _string(self.metadata, "metadata")

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Self:
        """Read one back; what follows the last member is ignored.

        Raises:
            ValueError: bytes are missing, or are no UTF-8, or the version is another.
        """
        keys, values = _Bytes(key, "checkpoint's key"), _Bytes(value, "checkpoint's value")
        values.version()
        return cls(
            group=keys.string("group"),
            topic=keys.string("topic"),
            partition=keys.integer(">i", "partition"),
            upstream=values.integer(">q", "upstream offset"),
            downstream=values.integer(">q", "downstream offset"),
            metadata=values.string("metadata"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The flow from `source` to `target`, both cluster aliases, was alive at `timestamp`."""

    source: str
    target: str
    timestamp: int
    """ms since the epoch. The record's own timestamp is the same."""

    def key(self) -> bytes:
        """`source` STRING, `target` STRING.

        Raises:
            ValueError: a member does not fit into its type.
        """
        return _string(self.source, "source") + _string(self.target, "target")

    def value(self) -> bytes:
        """Version INT16, `timestamp` INT64.

        Raises:
            ValueError: a member does not fit into its type.
        """
        return _packed(">hq", "timestamp", VERSION, self.timestamp)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Self:
        """Read one back; what follows the last member is ignored.

        Raises:
            ValueError: bytes are missing, or are no UTF-8, or the version is another.
        """
        keys, values = _Bytes(key, "heartbeat's key"), _Bytes(value, "heartbeat's value")
        values.version()
        return cls(
            source=keys.string("source"),
            target=keys.string("target"),
            timestamp=values.integer(">q", "timestamp"),
        )


def _packed(form: str, member: str, *integers: int) -> bytes:
    try:
        return struct.pack(form, *integers)
    except struct.error as exc:
        raise ValueError(f"the {member} does not fit into its type: {integers}") from exc


def _string(text: str, member: str) -> bytes:
    data = text.encode()  # a lone surrogate raises UnicodeEncodeError, which is a ValueError
    if len(data) > LONGEST_STRING:
        raise ValueError(f"the {member} has {len(data)} bytes; the format takes at most {LONGEST_STRING}")
    return len(data).to_bytes(2, "big") + data


class _Bytes:
    """The unread part of one record's key or value."""

    __slots__ = ("_at", "_data", "_what")

    def __init__(self, data: bytes, what: str) -> None:
        self._data, self._what, self._at = data, what, 0

    def version(self) -> None:
        """Read the version, and refuse any other: its members may differ too."""
        version = self.integer(">h", "version")
        if version != VERSION:
            raise ValueError(f"the {self._what} has version {version}; only {VERSION} is supported")

    def integer(self, form: str, member: str) -> int:
        """Read one integer of a `struct` format."""
        number: int = struct.unpack(form, self._take(struct.calcsize(form), member))[0]
        return number

    def string(self, member: str) -> str:
        """Read one STRING."""
        length = self.integer(">h", member)
        if length < 0:
            raise ValueError(f"the {self._what} has a null {member}, or one of negative length")
        data = self._take(length, member)
        try:
            return data.decode()
        except UnicodeDecodeError as exc:
            raise ValueError(f"the {member} in the {self._what} is no UTF-8: {data.hex()}") from exc

    def _take(self, size: int, member: str) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise ValueError(f"the {self._what} ends inside its {member}: {self._data.hex()}")
        self._at += size
        return taken


COMPACTED: Final = {"cleanup.policy": "compact"}
"""As in MM2: their readers need the last record of each key."""

CALL_SECONDS: Final = 5.0
"""The time limit of one call."""

OPEN_MS: Final = 15_000
"""How long a cluster that did not answer is not called again."""

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class CircuitBreaker:
    """The calls of one cluster: after one that fails, the cluster is not called for `OPEN_MS`."""

    alias: str
    clock: Callable[[], int]
    """ms since the epoch."""
    behind: CircuitBreaker | None = None
    """Of the whole cluster: while it is open, nothing is asked. What fails here leaves it closed."""
    _open_until: int = 0
    _error: str = ""

    def check(self) -> None:
        """Raise while it is open.

        Raises:
            Retriable: with what the cluster failed by.
        """
        if self.clock() < self._open_until:
            raise Retriable(self._error, where=self.alias)
        if self.behind is not None:
            self.behind.check()

    def call(self, call: Callable[[Deadline], _T], deadline: Deadline) -> _T:
        """Call, within `CALL_SECONDS`.

        Raises:
            Retriable: the cluster does not answer, or the breaker is open.
        """
        self.check()
        try:
            return call(within(CALL_SECONDS, deadline))
        except (Retriable, ConfigurationError) as exc:
            self._open_until, self._error = self.clock() + OPEN_MS, exc.what
            if isinstance(exc, Retriable):
                raise
            # A secret that lacks a member, for one: it must not stop the work on the other cluster either.
            raise Retriable(exc.what, where=exc.where, hint=exc.hint) from exc


@dataclass(slots=True)
class EnsuredTopics:
    """The topics that exist already, so that an environment creates each once."""

    _topics: set[tuple[str, str]] = field(default_factory=set)

    def ensure(
        self, topics: InternalTopics, alias: str, topic: str, *, replication_factor: int, deadline: Deadline
    ) -> None:
        """Create a compacted topic of one partition on a cluster unless it exists.

        Raises:
            Retriable: the cluster does not answer, or refuses.
        """
        if (alias, topic) not in self._topics:
            topics.ensure_topic(topic, replication_factor=replication_factor, configs=COMPACTED, deadline=deadline)
            self._topics.add((alias, topic))

    def forget(self, alias: str, topic: str) -> None:
        """Check again next time: a write failed, so the topic may have been deleted."""
        self._topics.discard((alias, topic))


def within(seconds: float, deadline: Deadline) -> Deadline:
    """A deadline that is at most so many seconds from now."""
    margin = deadline() - seconds
    return deadline if margin <= 0 else lambda: deadline() - margin
