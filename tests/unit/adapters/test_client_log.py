"""A log by the Kafka client, of which each call gives a part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, Message

from mirrorless.adapters.kafka.log import PULL, KafkaLog
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.log import Arrivals
from mirrorless.records.record_batch import BatchUnreadable

ONE, OTHER = ("orders", 0), ("orders", 1)


class FakeConsumer:
    """Gives messages in the parts in which they are given to it: the first of a part alone, as the client does."""

    def __init__(self, *parts: list[Message]) -> None:
        self.parts = list(parts)
        self.assigned: dict[tuple[str, int], int] = {}

    def poll(self, _seconds: float) -> Message | None:
        """The first message of the next part."""
        return self.parts[0].pop(0) if self.parts else None

    def consume(self, _count: int, *, timeout: float) -> list[Message]:
        """The others; then nothing."""
        assert timeout == 0
        rest = self.parts[0]
        if rest:
            self.parts[0] = []
        else:
            self.parts.pop(0)
        return rest

    def incremental_assign(self, partitions: Iterable[Any]) -> None:
        """Of partitions that are not assigned yet."""
        for each in partitions:
            assert (each.topic, each.partition) not in self.assigned
            self.assigned[each.topic, each.partition] = each.offset

    def incremental_unassign(self, partitions: Iterable[Any]) -> None:
        """Of partitions that are assigned: the client refuses others."""
        for each in partitions:
            del self.assigned[each.topic, each.partition]


def log_of(*parts: list[Message]) -> tuple[KafkaLog, FakeConsumer]:
    consumer = FakeConsumer(*parts)
    log = KafkaLog(ClusterSettings(alias="a", bootstrap="a:9092"), flow="a->b", tuning=PULL)
    log._consumer = cast("Consumer", consumer)
    return log, consumer


def record(offset: int, place: tuple[str, int] = ONE, *, epoch: int = 1) -> Message:
    return Message(*place, offset, value=b"v", timestamp=(1, 0), leader_epoch=epoch)


def event(code: int, offset: int = 0, place: tuple[str, int] = ONE) -> Message:
    return Message(*place, offset, error=KafkaError(code))


def arrivals(log: KafkaLog) -> Arrivals:
    return log.arrivals(0, records=100, size=100)


def offsets(found: Arrivals) -> dict[tuple[str, int], list[int]]:
    return {place: [each.offset for each in some] for place, some in found.records.items()}


def test_what_lies_behind_what_is_wanted_is_left_out_and_its_partition_let_go() -> None:
    log, consumer = log_of([record(0), record(1, epoch=2), record(5, epoch=3), record(0, OTHER), record(6, epoch=3)])
    log.follow({ONE: 0, OTHER: 0}, {ONE: 4})

    found = arrivals(log)

    assert offsets(found) == {ONE: [0, 1], OTHER: [0]}
    assert (found.covered, found.epochs, found.bytes) == ({ONE: 4, OTHER: 1}, {ONE: 2, OTHER: 1}, 3)
    assert consumer.assigned == {OTHER: 0}
    log.leave([ONE, OTHER])
    log.follow({ONE: 7})
    assert consumer.assigned == {ONE: 7}


@pytest.mark.parametrize("together", [True, False])
def test_a_log_that_ends_behind_what_is_wanted_is_not_said_to_be_read_to_its_end(*, together: bool) -> None:
    """Nothing was taken of what lies between: whoever took it for read would leave it out."""
    records, end = [record(0), record(1), record(5)], [event(KafkaError._PARTITION_EOF, 9)]
    log, _ = log_of(records + end) if together else log_of(records, end)
    log.follow({ONE: 0}, {ONE: 4})

    found = arrivals(log)

    assert (offsets(found), found.covered, found.ended.get(ONE, 4)) == ({ONE: [0, 1]}, {ONE: 4}, 4)


def test_a_log_that_ends_below_what_is_wanted_is_said_to() -> None:
    log, _ = log_of([record(0), event(KafkaError._PARTITION_EOF, 3)])
    log.follow({ONE: 0}, {ONE: 4})

    assert arrivals(log).ended == {ONE: 3}


REFUSED = KafkaError._AUTO_OFFSET_RESET


@pytest.mark.parametrize("made_up", [12, 40])
def test_a_fetch_that_is_refused_late_is_none_of_where_the_partition_is_followed_again(made_up: int) -> None:
    """The client goes on behind a batch that it cannot read, at an offset that it makes up."""
    log, _ = log_of([record(2)], [event(REFUSED, made_up), record(5)], [event(REFUSED, made_up)])
    log.follow({ONE: 2}, {ONE: 3})
    arrivals(log)
    log.leave([ONE])
    log.follow({ONE: 5})

    found = arrivals(log)

    assert (offsets(found), found.out_of_range) == ({ONE: [5]}, set())
    assert arrivals(log).out_of_range == {ONE}, "of a partition of which something came"


@pytest.mark.parametrize("again", [False, True])
def test_an_offset_that_the_log_does_not_hold_is_told(*, again: bool) -> None:
    log, _ = log_of([event(REFUSED, 5)])
    if again:
        log.follow({ONE: 2})
        log.leave([ONE])
    log.follow({ONE: 5})

    assert arrivals(log).out_of_range == {ONE}


def test_a_partition_that_may_not_be_read_leaves_the_others_and_so_does_what_names_none() -> None:
    denied = event(KafkaError.TOPIC_AUTHORIZATION_FAILED, place=OTHER)
    nameless = Message(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    log, _ = log_of([nameless, denied, record(0)])
    log.follow({ONE: 0, OTHER: 0})

    found = arrivals(log)

    assert (offsets(found), list(found.refused)) == ({ONE: [0]}, [OTHER])
    assert "orders-1" in str(found.refused[OTHER])


def test_nothing_is_taken_from_behind_a_damaged_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client itself goes on there."""
    log, _ = log_of([record(0), event(KafkaError._BAD_MSG, 1), record(9), record(0, OTHER)], [record(10)])
    monkeypatch.setattr(log, "_damage", lambda _place, offset: BatchUnreadable("damaged", offset=offset))
    log.follow({ONE: 0, OTHER: 0})

    found = arrivals(log)

    assert (offsets(found), found.covered) == ({ONE: [0], OTHER: [0]}, {ONE: 1, OTHER: 1})
    assert found.unreadable[ONE].offset == 1
    assert not arrivals(log)
