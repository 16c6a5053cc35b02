"""Heartbeats: a small record at an interval, on the target and on the source, in MM2's format and topics.

The heartbeat on the target names the flow that replicates there. The one on the source is what MM2's connector of the
opposite flow would write: this flow then replicates it to `<source>.heartbeats`, so its age there is the age of the
whole path, and `MirrorClient.replicationHops` and `upstreamClusters` find the source by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.policy import HEARTBEATS_TOPIC
from mirrorless.mm2.internal_records import CircuitBreaker, EnsuredTopics, Heartbeat
from mirrorless.ports.kafka import InternalTopics
from mirrorless.scheduled.runner import RoundReport


def beat_of(flow: FlowName, prefix: Callable[[str], str] = str, *, at: int = 0) -> Heartbeat:
    """Return a flow's heartbeat. Args: prefix: what MM2 calls a cluster, by its alias. at: ms since the epoch."""
    return Heartbeat(source=prefix(flow.source), target=prefix(flow.target), timestamp=at)


@dataclass(slots=True, kw_only=True)
class Heartbeats:
    """The task `heartbeats` of one flow."""

    flow: FlowName
    source: InternalTopics | None
    """None where the flow writes nothing to its source."""
    target: InternalTopics
    replication_factor: int
    clock: Callable[[], int]
    """ms since the epoch."""
    ensured: EnsuredTopics = field(default_factory=EnsuredTopics)
    prefix: Callable[[str], str] = str
    """What MM2 calls a cluster, by its alias."""
    _breakers: dict[str, CircuitBreaker] = field(default_factory=dict)

    def act(self, report: RoundReport, deadline: Deadline) -> None:
        """Emit one heartbeat on each side; a failure of one side does not stop the other.

        Raises:
            Retriable: both sides failed.
        """
        # The target first: it matters most when the source is gone.
        beats = [(self.target, self.flow)] + ([(self.source, self.flow.turned)] if self.source is not None else [])
        failures: list[Retriable] = []
        for topics, flow in beats:
            try:
                self._emit(topics, flow, deadline)
            except Retriable as exc:
                failures.append(exc)
        report.counts["heartbeats-emitted"] = len(beats) - len(failures)
        if len(failures) == len(beats):
            raise failures[0]
        report.troubles += [f"no heartbeat: {failure}" for failure in failures]

    def _emit(self, topics: InternalTopics, flow: FlowName, deadline: Deadline) -> None:
        alias = flow.target
        breaker = self._breakers.setdefault(alias, CircuitBreaker(alias=alias, clock=self.clock))

        def write(limit: Deadline) -> None:
            self.ensured.ensure(
                topics, alias, HEARTBEATS_TOPIC, replication_factor=self.replication_factor, deadline=limit
            )
            now = self.clock()
            beat = beat_of(flow, self.prefix, at=now)
            try:
                topics.write([(HEARTBEATS_TOPIC, beat.key(), beat.value(), now)], limit)
            except Retriable:
                self.ensured.forget(alias, HEARTBEATS_TOPIC)
                raise

        breaker.call(write, deadline)
