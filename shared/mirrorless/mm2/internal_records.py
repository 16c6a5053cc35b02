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
from typing import Any, ClassVar, Final, Self, TypeVar

from mirrorless.clock import Deadline
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.ports.kafka import InternalTopics

VERSION: Final = 0
"""Of a checkpoint's and a heartbeat's value. An offset sync has none."""

LONGEST_STRING: Final = 32_767
"""Bytes of UTF-8: the length is an INT16."""


STRING: Final = "string"
INT32: Final = ">i"
INT64: Final = ">q"

Members = tuple[tuple[str, str], ...]
"""The fields of a key or a value in their order, each with its type."""


class _Encoded:
    """What all internal records have: a key and a value of members."""

    __slots__ = ()
    what: ClassVar[str]
    of_key: ClassVar[Members]
    of_value: ClassVar[Members]
    has_version: ClassVar[bool] = True
    """Whether its value begins with a version, an INT16."""

    def key(self) -> bytes:
        """The members of the key.

        Raises:
            ValueError: a member does not fit into its type.
        """
        return self._members(self.of_key)

    def value(self) -> bytes:
        """The version, where it has one, and the members of the value.

        Raises:
            ValueError: a member does not fit into its type.
        """
        return (_packed(">h", "version", VERSION) if self.has_version else b"") + self._members(self.of_value)

    def _members(self, members: Members) -> bytes:
        values = ((name, form, getattr(self, name)) for name, form in members)
        return b"".join(
            _string(each, name) if form == STRING else _packed(form, name, each) for name, form, each in values
        )

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> Self:
        """Read one back; what follows the last member is ignored.

        Raises:
            ValueError: bytes are missing, or are no UTF-8, or the version is another.
        """
        keys, values = _Bytes(key, f"{cls.what}'s key"), _Bytes(value, f"{cls.what}'s value")
        if cls.has_version:
            values.version()
        return cls(**keys.members(cls.of_key), **values.members(cls.of_value))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSync(_Encoded):
    """The record at offset `upstream` of the source was written at offset `downstream` of the target."""

    what = "offset sync"
    of_key = ("topic", STRING), ("partition", INT32)
    of_value = ("upstream", INT64), ("downstream", INT64)
    has_version = False

    topic: str
    """Its name on the source."""
    partition: int
    upstream: int
    downstream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(_Encoded):
    """A group that stands at offset `upstream` of the source may resume at offset `downstream` of the target."""

    what = "checkpoint"
    of_key = ("group", STRING), ("topic", STRING), ("partition", INT32)
    of_value = ("upstream", INT64), ("downstream", INT64), ("metadata", STRING)

    group: str
    topic: str
    """Its name on the target."""
    partition: int
    upstream: int
    downstream: int
    metadata: str = ""
    """What the group committed beside its offset. There is no null in this format; Kafka turns it into empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(_Encoded):
    """The flow from `source` to `target`, both cluster aliases, was alive at `timestamp`."""

    what = "heartbeat"
    of_key = ("source", STRING), ("target", STRING)
    of_value = (("timestamp", INT64),)

    source: str
    target: str
    timestamp: int
    """ms since the epoch. The record's own timestamp is the same."""


def _packed(form: str, member: str, integer: int) -> bytes:
    try:
        return struct.pack(form, integer)
    except struct.error as exc:
        offset = " offset" if member in {"upstream", "downstream"} else ""
        raise ValueError(f"the {member}{offset} does not fit into its type: {integer}") from exc


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

    def members(self, members: Members) -> dict[str, Any]:
        """Read some members, by name."""
        return {name: self.string(name) if form == STRING else self.integer(form, name) for name, form in members}

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
