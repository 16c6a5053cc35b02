"""The checkpoint rounds of a flow, with their ports: for the scheduled function, and for a failover's command."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirrorless.clock import now_ms
from mirrorless.flow.settings import FlowSettings
from mirrorless.groups.checkpoints import Direction
from mirrorless.groups.clusters import GroupSide, Sides
from mirrorless.groups.offset_translation import OffsetTranslator
from mirrorless.groups.readiness import Rereads
from mirrorless.groups.round import CheckpointRound
from mirrorless.groups.state import CheckpointStore
from mirrorless.groups.sync import GroupSync
from mirrorless.lanes.gaps import SourceLog
from mirrorless.mm2.internal_records import EnsuredTopics
from mirrorless.ports.stores import Chains, StateStore
from mirrorless.protocol.map_reads import MapReads, StopMemory, StoppedLanes
from mirrorless.protocol.translate import OffsetMap
from mirrorless.scheduled.scope import FlowScope


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWiring:
    """What rounds need; warm for as long as its environment."""

    settings: FlowSettings
    scope: FlowScope
    source: GroupSide
    target: GroupSide
    chains: Chains
    states: StoppedLanes
    source_log: SourceLog
    counterpart: Chains | None = None
    """Of the flow in the other direction, where both keep the names of topics."""
    target_log: SourceLog | None = None
    """With a counterpart."""
    ensured: EnsuredTopics = field(default_factory=EnsuredTopics)
    groups_left: set[tuple[Direction, str]] = field(default_factory=set)
    """See `GroupSync.left`."""

    def rounds(
        self, documents: StateStore, *, commits_every_seconds: float | None, reverse: bool | None = None
    ) -> CheckpointRound:
        """Rounds with empty caches.

        Args:
            documents: where the groups' checkpoints are kept, under the lease of the run.
            commits_every_seconds: between commits on the target; None for no commits.
            reverse: whether offsets are committed on the source, too; None: as the flow has it.
        """
        settings = self.settings
        sides = Sides(source=self.source, target=self.target, clock=now_ms)
        store = CheckpointStore(flow=settings.name, documents=documents, clock=now_ms)
        chains = MapReads(chains=self.chains, stops=StopMemory(flow=settings.name, lanes=self.states).read)
        return CheckpointRound(
            scope=self.scope,
            sides=sides,
            store=store,
            translator=OffsetTranslator(
                chains=chains,
                source_partition=self.scope.source_partition,
                remote_partition=self.scope.remote_partition,
                source_ends=self.source.topics.ends,
                source_partitions=self.source.topics.partitions,
                target_ends=self.target.topics.ends,
                source_log=self.source_log,
                transactional=settings.delivery == "exactly_once",
                from_earliest=settings.start == "earliest",
                counterpart=self.counterpart,
                at_source=sides.ask_source_log,
                target_log=self.target_log,
            ),
            rereads=Rereads(
                offset_map=OffsetMap(chains),
                counterpart=OffsetMap(self.counterpart) if self.counterpart is not None else None,
            ),
            sync=GroupSync(
                scope=self.scope,
                sides=sides,
                store=store,
                clock=now_ms,
                every_ms=None if commits_every_seconds is None else int(commits_every_seconds * 1000),
                reverse=settings.sync_group_offsets_reverse_enabled if reverse is None else reverse,
                grace_ms=int(settings.group_grace_seconds * 1000),
                left=self.groups_left,
            ),
            replication_factor=settings.checkpoints_topic_replication_factor,
            ensured=self.ensured,
        )
