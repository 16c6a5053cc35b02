"""Heartbeats on both sides, independent of each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from mirrorless.errors import ConfigurationError, MirrorlessError, Retriable
from mirrorless.mm2.heartbeats import Heartbeats
from mirrorless.mm2.internal_records import COMPACTED, OPEN_MS, CircuitBreaker, Heartbeat, within
from mirrorless.scheduled.runner import RoundReport
from tests.support.chains import FLOW
from tests.support.group_cluster import MemoryTopics


@dataclass
class Beating:
    """A flow with heartbeats on both sides."""

    source: MemoryTopics = field(default_factory=MemoryTopics)
    target: MemoryTopics = field(default_factory=MemoryTopics)
    on_source: bool = True
    prefix: Callable[[str], str] = str
    now: int = 1_763_686_800_123

    def __post_init__(self) -> None:
        self.task = Heartbeats(
            flow=FLOW,
            source=self.source if self.on_source else None,
            target=self.target,
            replication_factor=3,
            clock=lambda: self.now,
            prefix=self.prefix,
        )

    def beat(self) -> RoundReport:
        """One round, a second after the one before."""
        self.now += 1_000
        report = RoundReport()
        self.task.act(report, lambda: 60.0)
        return report


def beats(topics: MemoryTopics) -> list[tuple[str, str, int, int]]:
    """Source, target, the value's timestamp and the record's."""
    found = []
    for topic, key, value, timestamp in topics.written:
        beat = Heartbeat.decode(key, value)
        assert topic == "heartbeats"
        found.append((beat.source, beat.target, beat.timestamp, timestamp))
    return found


def test_each_side_gets_a_heartbeat_of_the_other_and_the_source_none_where_that_is_switched_off() -> None:
    flow = Beating()
    for _ in range(2):
        assert flow.beat().counts == {"heartbeats-emitted": 2}

    first, second = 1_763_686_801_123, 1_763_686_802_123
    assert beats(flow.target) == [("us-east", "eu-west", first, first), ("us-east", "eu-west", second, second)]
    assert beats(flow.source) == [("eu-west", "us-east", first, first), ("eu-west", "us-east", second, second)]
    assert flow.target.created == flow.source.created == {"heartbeats": (1, 3, COMPACTED)}

    one_sided = Beating(on_source=False)
    assert one_sided.beat().counts == {"heartbeats-emitted": 1}
    assert (one_sided.source.created, one_sided.source.written) == ({}, [])

    named = Beating(prefix={"us-east": "A", "eu-west": "B"}.__getitem__)
    named.beat()
    assert [beats(side)[0][:2] for side in (named.target, named.source)] == [("A", "B"), ("B", "A")]


@pytest.mark.parametrize("silent", ["source", "target"])
def test_a_side_that_is_gone_does_not_stop_the_other_and_no_heartbeat_at_all_is_an_error(silent: str) -> None:
    flow = Beating()
    gone, there = (flow.source, flow.target) if silent == "source" else (flow.target, flow.source)
    gone.silent = True

    report = flow.beat()
    assert report.counts == {"heartbeats-emitted": 1}
    assert report.troubles == ["no heartbeat: the cluster does not answer (a retry may help)."]
    flow.beat()
    assert len(there.written) == 2

    there.silent = True
    with pytest.raises(Retriable):
        flow.beat()

    there.silent = gone.silent = False
    flow.now += OPEN_MS
    assert flow.beat().troubles == []


def test_a_topic_that_was_deleted_is_made_again() -> None:
    flow = Beating()
    flow.beat()
    flow.target.created.clear()
    flow.target.refuses = True
    flow.beat()
    flow.target.refuses = False
    flow.now += OPEN_MS

    assert flow.beat().troubles == []
    assert "heartbeats" in flow.target.created


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Retriable("the cluster does not answer"), "the cluster does not answer"),
        (ConfigurationError("the secret has no 'password'", where="arn"), "arn: the secret has no 'password'"),
    ],
    ids=["it is silent", "a secret that cannot be used"],
)
def test_a_cluster_whose_call_failed_is_not_called_for_a_while(error: MirrorlessError, said: str) -> None:
    """A time-out takes seconds; the work for the other side must not wait for it in every round."""
    calls: list[int] = []
    clock = [0]

    def fail(_: object) -> None:
        calls.append(clock[0])
        raise error

    breaker = CircuitBreaker(alias="us-east", clock=lambda: clock[0])
    for moment in (0, 1, OPEN_MS - 1, OPEN_MS, OPEN_MS + 1):
        clock[0] = moment
        with pytest.raises(Retriable, match=said if moment in {0, OPEN_MS} else said.removeprefix("arn: ")):
            breaker.call(fail, lambda: 60.0)

    assert calls == [0, OPEN_MS]


def test_a_shortened_deadline_runs_with_the_original_one() -> None:
    left = 60.0
    cut = within(5.0, lambda: left)
    assert cut() == 5.0
    left = 57.0
    assert cut() == 2.0
    left = 3.0
    assert within(5.0, lambda: left)() == 3.0
