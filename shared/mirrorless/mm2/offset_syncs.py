"""Offset syncs for MM2's own tools, an option; Mirrorless itself does not read them.

MM2 keeps its map in `mm2-offset-syncs.<source>.internal`: now and then one pair of offsets. Ours is the chain of runs.
For tools that read only MM2's, the last record of each lane that moved is written there, on the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head
from mirrorless.clock import Deadline
from mirrorless.mm2.internal_records import EnsuredTopics, OffsetSync
from mirrorless.ports.kafka import InternalTopics, LogEnds
from mirrorless.ports.stores import StateStore
from mirrorless.protocol.map_reads import MapReads
from mirrorless.protocol.translate import is_lost
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.scope import FlowScope

PREFIX: Final = "offset-syncs/"
"""Of keys in the control table, before the source topic: by partition, the upstream offset that was written last."""


def sync_of(lane: Lane, head: Head) -> OffsetSync | None:
    """The pair of a lane's last record; None when its newest run has none or is in doubt, or the map is not true."""
    run = head.run
    if run is None or head.in_doubt or not run.spans:
        return None
    last = run.spans[-1]
    beyond = last.length - 1
    if is_lost(head, last.upstream + beyond):
        return None
    return OffsetSync(
        topic=lane.topic, partition=lane.partition, upstream=last.upstream + beyond, downstream=last.downstream + beyond
    )


@dataclass(slots=True, kw_only=True)
class OffsetSyncs:
    """The task `offset-syncs` of one flow."""

    scope: FlowScope
    partitions: Callable[[Deadline], Mapping[str, int]]
    """Partition counts of the target's remote topics of this flow, by source topic."""
    target: InternalTopics
    chains: MapReads
    documents: StateStore
    """The control table."""
    replication_factor: int
    clock: Callable[[], int]
    """ms since the epoch."""
    ensured: EnsuredTopics = field(default_factory=EnsuredTopics)
    _written: dict[str, dict[int, int]] | None = None
    _ends: dict[Lane, LogEnds] = field(default_factory=dict)

    def act(self, report: RoundReport, deadline: Deadline) -> None:
        """Write an offset sync of every lane whose head has moved.

        Raises:
            Retriable: the target or a store does not answer.
        """
        flow = self.scope.flow
        if self._written is None:
            self._written = {
                key.removeprefix(PREFIX): msgspec.json.decode(text, type=dict[int, int])
                for key, text in self.documents.read(flow, PREFIX).items()
            }
        lanes = [
            Lane(flow, topic, partition)
            for topic, count in self.partitions(deadline).items()
            for partition in range(count)
        ]
        # A lane whose remote partition has not grown has not moved: one read of the ends saves a read of each head.
        remote = {lane: self.scope.remote_partition(lane) for lane in lanes}
        found = self.target.ends(remote.values(), deadline)
        ends = {lane: found[partition] for lane, partition in remote.items() if partition in found}
        grown = [lane for lane, end in ends.items() if self._ends.get(lane) != end]
        heads = self.chains.heads(grown)

        written = {topic: dict(partitions) for topic, partitions in self._written.items()}
        topic, now, syncs = self.scope.policy.offset_syncs_topic(flow.source), self.clock(), []
        for lane, head in heads.items():
            sync = sync_of(lane, head)
            if sync is not None and written.get(lane.topic, {}).get(lane.partition) != sync.upstream:
                written.setdefault(lane.topic, {})[lane.partition] = sync.upstream
                syncs.append((topic, sync.key(), sync.value(), now))
            # Read before its run is confirmed, the partition grows no more: read the head again until it is settled.
            if head.in_doubt:
                del ends[lane]
        if syncs:
            self.ensured.ensure(
                self.target, flow.target, topic, replication_factor=self.replication_factor, deadline=deadline
            )
            self.target.write(syncs, deadline)
            self.documents.write(
                flow,
                {
                    PREFIX + topic: msgspec.json.encode(partitions)
                    for topic, partitions in written.items()
                    if partitions != self._written.get(topic)
                },
            )
            self._written = written
        self._ends = ends
        report.counts["offset-syncs-emitted"] = len(syncs)
        report.moved = bool(syncs)
