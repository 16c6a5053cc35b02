"""Which record of the source is which on the target, as MM2's tools read it? An option; nothing of ours reads it.

MM2 keeps its map in `mm2-offset-syncs.<source>.internal`: now and then one pair of offsets. Ours is the chain of runs.
For tools that know only MM2's, the last record of each lane that moved is written there, on the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mirrorless.lane import Lane
from mirrorless.lane_state import Head
from mirrorless.mm2.internal_records import OffsetSync
from mirrorless.mm2.internal_topics import Ensured
from mirrorless.ports.kafka import Deadline, InternalTopics, LogEnds
from mirrorless.ports.stores import Chains, StateStore
from mirrorless.scheduled.parallel_reads import side_by_side
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.scope import FlowScope

DOCUMENT: Final = "offset-syncs"
"""Its key in the control table: by source topic and partition, the upstream offset that was told last."""


def sync_of(lane: Lane, head: Head) -> OffsetSync | None:
    """The pair of a lane's last record; None when its newest run has none, or is in doubt."""
    run = head.run
    if run is None or head.in_doubt or not run.spans:
        return None
    last = run.spans[-1]
    beyond = last.length - 1
    return OffsetSync(
        topic=lane.topic, partition=lane.partition, upstream=last.upstream + beyond, downstream=last.downstream + beyond
    )


@dataclass(slots=True, kw_only=True)
class OffsetSyncs:
    """The task `offset-syncs` of one flow."""

    followed: FlowScope
    partitions: Callable[[Deadline], Mapping[str, int]]
    """Partition counts of the target's remote topics of this flow, by source topic."""
    target: InternalTopics
    chains: Chains
    documents: StateStore
    """The control table."""
    replication_factor: int
    clock: Callable[[], int]
    """ms since the epoch."""
    ensured: Ensured = field(default_factory=Ensured)
    _told: dict[str, dict[int, int]] | None = None
    _ends: dict[Lane, LogEnds] = field(default_factory=dict)

    def act(self, report: RoundReport, deadline: Deadline) -> None:
        """Tell of every lane whose head has moved.

        Raises:
            Retriable: the target or a store does not answer.
        """
        flow = self.followed.flow
        if self._told is None:
            stored = self.documents.read(flow, DOCUMENT).get(DOCUMENT, b"{}")
            self._told = msgspec.json.decode(stored, type=dict[str, dict[int, int]])
        lanes = [
            Lane(flow, topic, partition)
            for topic, count in self.partitions(deadline).items()
            for partition in range(count)
        ]
        # A lane whose remote partition has not grown has not moved: one look at the target spares a read of each head.
        places = {lane: self.followed.place_on_target(lane) for lane in lanes}
        found = self.target.ends(places.values(), deadline)
        ends = {lane: found[place] for lane, place in places.items() if place in found}
        grown = [lane for lane, end in ends.items() if self._ends.get(lane) != end]
        heads = side_by_side(lambda lane: self.chains.heads([lane])[lane], grown)

        told = {topic: dict(partitions) for topic, partitions in self._told.items()}
        topic, now, news = self.followed.policy.offset_syncs_topic(flow.source), self.clock(), []
        for lane, head in zip(grown, heads, strict=True):
            sync = sync_of(lane, head)
            if sync is not None and told.get(lane.topic, {}).get(lane.partition) != sync.upstream:
                told.setdefault(lane.topic, {})[lane.partition] = sync.upstream
                news.append((topic, sync.key(), sync.value(), now))
            # Seen before its run is confirmed, the partition grows no more: look again until the head tells.
            if head.in_doubt:
                del ends[lane]
        if news:
            self.ensured.ensure(
                self.target, flow.target, topic, replication_factor=self.replication_factor, deadline=deadline
            )
            self.target.write(news, deadline)
            self.documents.write(flow, {DOCUMENT: msgspec.json.encode(told)})
            self._told = told
        self._ends = ends
        report.figures["offset-syncs-emitted"] = len(news)
