"""Which group of Connect's workers runs a connector, by what brokers answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import pack

import pytest
from confluent_kafka import KafkaError

from mirrorless.adapters.kafka.wire.cluster import WireCluster
from mirrorless.adapters.kafka.wire.connection import ApiKey
from mirrorless.adapters.kafka.wire.group_members import DESCRIBE_GROUPS, LIST_GROUPS, running_group
from mirrorless.adapters.kafka.wire.requests import AnswerReader, string
from mirrorless.clock import deadline_in
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings

REAL = bytes.fromhex(
    "00000007636f6e6e6563740006537461626c650007636f6e6e656374000973657373696f6e65640000000100016d00016300"
    "022f68000000000000005b0002000000066c65616465720009687474703a2f2f6c2f00000000000000070000000200066f72"
    "6465727300000003ffffffff0000000000000001000370617900000001000000000000000100017800000001ffffffff0000"
    "0000"
)
"""The group `connect` as Kafka 3.9 and 4.1 write it: one member with two tasks of `orders`, and one of `pay`."""

Tasks = dict[str, list[int]]


def assignment(given: Tasks, taken: Tasks | None = None, delay: int = 0) -> bytes:
    """As the leader writes it; `given` and `taken` by connector."""
    packed = pack(">hh", 2, 0) + string("leader") + string("http://leader") + pack(">q", 7)
    for tasks in (given, taken):
        packed += pack(">i", -1 if tasks is None else len(tasks))
        for connector, numbers in (tasks or {}).items():
            packed += string(connector) + pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return packed + pack(">i", delay)


def joined(tasks: Tasks) -> bytes:
    """What a member of the cooperative protocol says when it joins."""
    had = assignment(tasks)
    return pack(">h", 2) + string("http://worker") + pack(">qi", 7, len(had)) + had


EAGER = pack(">h", 0) + string("http://worker") + pack(">q", 7)
"""What one of the eager protocol says."""


@dataclass
class Group:
    """A group as its coordinator describes it.

    Each member has the tasks of its connectors, or None before it has any, or what it said when it joined, and its
    assignment.
    """

    members: list[Tasks | tuple[bytes, bytes] | None] = field(default_factory=list)
    state: str = "Stable"
    kind: str = "connect"
    error: int = 0
    raw: bytes = b""

    def described(self, name: str) -> bytes:
        """Of version 0."""
        if self.raw:
            return self.raw
        found = pack(">h", self.error) + b"".join(map(string, (name, self.state, self.kind, "sessioned")))
        found += pack(">i", len(self.members))
        for member in self.members:
            said, has = member if isinstance(member, tuple) else (b"", b"" if member is None else assignment(member))
            found += b"".join(map(string, ("member", "client", "/127.0.0.1")))
            found += pack(">i", len(said)) + said + pack(">i", len(has)) + has
        return found


class Brokers(WireCluster):
    """Each with the groups that it coordinates."""

    def __init__(self, *brokers: dict[str, Group], listing: int = 0, no_groups: bool = False) -> None:
        super().__init__(ClusterSettings(alias="b", bootstrap="127.0.0.1:1"), flow="f", client_role="t", needed=())
        self._groups, self._listing = brokers, listing
        self._errors = {"__consumer_offsets": KafkaError.UNKNOWN_TOPIC_OR_PART} if no_groups else {}
        self._brokers = {number: ("127.0.0.1", number) for number in range(len(brokers))}

    def refresh(self, topics: Iterable[str], _: float) -> None:
        """They are known."""
        self.topic_errors = {name: self._errors[name] for name in topics if name in self._errors}

    def ask(self, node: int, api: ApiKey, body: object, _: float) -> memoryview:
        """The answer of one."""
        groups = self._groups[node]
        if api == LIST_GROUPS:
            listed = [string(name) + string(group.kind) for name, group in groups.items()]
            return memoryview(pack(">hi", self._listing, len(listed)) + b"".join(listed))
        assert api == DESCRIBE_GROUPS
        reader = AnswerReader(memoryview(body))  # type: ignore[arg-type]  # bytes
        names = [reader.text() for _ in reader.array()]
        elsewhere = Group(error=KafkaError.NOT_COORDINATOR, state="")
        return memoryview(pack(">i", len(names)) + b"".join(groups.get(n, elsewhere).described(n) for n in names))


OURS, OTHER = {"orders": [-1, 0, 1]}, {"payments": [0]}


@pytest.mark.parametrize(
    ("brokers", "alone", "found"),
    [
        ([{}, {"a-mm2": Group([OTHER])}], "a-mm2", "a-mm2"),  # any member of its own counts
        ([{"a-mm2": Group(state="Empty")}, {}], "a-mm2", ""),
        ([{"a-mm2": Group(state="Dead", error=KafkaError.GROUP_ID_NOT_FOUND)}], "a-mm2", ""),
        ([{"b-mm2": Group([OURS])}, {"a-mm2": Group(state="Empty")}], "a-mm2", ""),
        ([{"x": Group([OTHER])}, {"connect": Group([OTHER, OURS])}], "", "connect"),
        ([{"connect": Group([{"orders": [-1]}, OTHER])}], "", ""),  # it is stopped, and has no task
        ([{"connect": Group([OTHER, {}])}, {}], "", ""),
        ([{"connect": Group(raw=REAL)}], "", "connect"),
        ([{"connect": Group(raw=REAL.replace(b"orders", b"others"))}], "", ""),
        ([{"connect": Group([(joined(OURS), assignment({}))])}], "", "connect"),  # nothing has changed since it joined
        ([{"connect": Group([(joined(OURS), assignment({}, {"orders": [0]}))])}], "", "connect"),  # one is left
        ([{"connect": Group([(joined(OURS), assignment({}, {"orders": [-1, 0, 1]}))])}], "", ""),
        ([{"connect": Group([(joined(OTHER), assignment(OURS))])}], "", "connect"),
        ([{"connect": Group([(EAGER, assignment(OURS))])}], "", "connect"),
        ([{"connect": Group([(EAGER, assignment(OTHER))])}], "", ""),
        ([{"connect": Group([(joined(OTHER), assignment({}, delay=300_000))])}], "", "connect"),  # a worker was killed
        ([{"connect": Group([None], state="PreparingRebalance")}], "", "connect"),
        ([{"connect": Group([], state="Empty")}], "", ""),
        ([{"shop": Group([OURS], kind="consumer")}], "", ""),
    ],
)
def test_the_group_is_that_whose_members_have_tasks_of_the_connector(
    brokers: list[dict[str, Group]], alone: str, found: str
) -> None:
    assert running_group(Brokers(*brokers), "orders", alone, deadline_in(10)) == found


def test_a_cluster_that_never_had_a_group_has_none() -> None:
    assert running_group(Brokers({}, {}, no_groups=True), "orders", "a-mm2", deadline_in(10)) == ""


@pytest.mark.parametrize(
    ("brokers", "alone", "says"),
    [
        (Brokers({}, {}), "a-mm2", "no broker coordinates it now"),
        (Brokers({"a-mm2": Group(error=KafkaError.GROUP_AUTHORIZATION_FAILED)}), "a-mm2", "GROUP_AUTHORIZATION_FAILED"),
        (Brokers({}, listing=KafkaError.COORDINATOR_LOAD_IN_PROGRESS), "", "COORDINATOR_LOAD_IN_PROGRESS"),
    ],
)
def test_a_group_that_cannot_be_seen_is_no_group_without_members(brokers: Brokers, alone: str, says: str) -> None:
    with pytest.raises(Retriable, match=says):
        running_group(brokers, "orders", alone, deadline_in(10))
