"""The scheduled function of heartbeats, checkpoints, offset syncs and the lane check.

A schedule starts it once a minute; inside the minute its tasks run in rounds. The schedule's input is the whole
configuration, see mirrorless.flow.settings.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec

from mirrorless.adapters.aws.metrics import emit_overdue, emit_report, emit_standby
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.adapters.kafka.committed_log import KafkaCommittedLog
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.adapters.kafka.log_epochs import KafkaLogEpochs
from mirrorless.adapters.kafka.records import KafkaRecords
from mirrorless.adapters.kafka.source_log import KafkaSourceLog
from mirrorless.adapters.kafka.target import KafkaTarget
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.adapters.replicator import flow_rules
from mirrorless.chain.lane import Lane
from mirrorless.clock import Deadline, now_ms
from mirrorless.flow.counts import Watched
from mirrorless.flow.naming import LOOK_GROUP
from mirrorless.flow.settings import FlowSettings, control_settings
from mirrorless.flow.triggers import MAPPING
from mirrorless.groups.checkpoints import Direction
from mirrorless.groups.clusters import GroupSide, Sides
from mirrorless.groups.round import CheckpointRound
from mirrorless.lanes.foreign import ForeignCheck
from mirrorless.lanes.gap_check import GapCheck
from mirrorless.lanes.lane_check import LaneCheck
from mirrorless.lanes.log_comparison import LogComparison
from mirrorless.lanes.log_ends import LogEndCheck
from mirrorless.mm2.heartbeats import Heartbeats
from mirrorless.mm2.internal_records import EnsuredTopics
from mirrorless.mm2.offset_syncs import OffsetSyncs
from mirrorless.ports.stores import StateStore
from mirrorless.protocol.map_reads import MapReads, StopMemory
from mirrorless.protocol.replay_check import Changed, not_at_hand
from mirrorless.scheduled.functions import CONTROL, overdue_tasks, tasks_of_run
from mirrorless.scheduled.runner import HeldLease, LeasedDocuments, Task, TaskRunner
from mirrorless.scheduled.scope import FlowScope
from mirrorless.scheduled.standby import RegionClock
from mirrorless.topics.scheduled_topics import read_scheduled_topics
from mirrorless.topics.topic_state import StoredTopics


class ControlWiring:
    """The warm clients of a flow's tasks. Of what was read they keep settled entries of journals only."""

    def __init__(self, settings: FlowSettings) -> None:
        """Make the clients; none of them connects here."""
        self.settings = flow = settings
        dynamodb = dynamodb_client(flow.target.region, flow.tables_role)
        self.scope = FlowScope.of(flow)
        self.documents = DynamoDbDocuments(dynamodb, flow.tables.control)
        self.checkpoints = DynamoDbDocuments(dynamodb, flow.tables.checkpoints)
        self.chains = DynamoDbChains(dynamodb, flow.tables.offset_map, retention_days=flow.offset_map_retention_days)
        self.states = DynamoDbLaneStates(dynamodb, flow.tables.lanes)
        self.ledger = DynamoDbLossLedger(dynamodb, flow.tables.loss_ledger)
        self.rules = flow_rules(flow, dynamodb)
        self.source, self.target = (
            GroupSide(
                alias=cluster.alias,
                groups=KafkaGroups(cluster, flow=flow.flow),
                topics=KafkaRecords(cluster, flow=flow.flow, client_role="internal-topics"),
            )
            for cluster in (flow.source, flow.target)
        )
        self.source_log = KafkaSourceLog(flow.source, flow=flow.flow)
        self.counterpart: DynamoDbChains | None = None
        self.target_log: KafkaSourceLog | None = None
        if (table := flow.counterpart_map) is not None:
            self.counterpart = DynamoDbChains(dynamodb_client(flow.source.region), table)
            self.target_log = KafkaSourceLog(flow.target, flow=flow.flow)
        self.topics = KafkaTopics(flow.target, flow=flow.flow, role="remote-topics")
        self.ensured = EnsuredTopics()
        self.log_ends = self._log_ends() if flow.stops_at_oversize else None
        self.groups_left: set[tuple[Direction, str]] = set()
        """See `GroupSync.left`."""

    def partitions(self, deadline: Deadline) -> dict[str, int]:
        """Partition counts of the target's remote topics of this flow, by source topic."""
        found = {}
        for remote, count in self.topics.partitions(deadline).items():
            topic = self.scope.source_topic(remote)
            if topic is not None:
                found[topic] = count
        return found

    def mapped_partitions(self, deadline: Deadline) -> dict[str, int]:
        """The same of topics that mappings read, and `pull` does not."""
        scheduled = read_scheduled_topics(self.documents, self.settings.name)
        return {
            topic: count
            for topic, count in self.partitions(deadline).items()
            if self.settings.triggers.of(topic) == MAPPING and topic not in scheduled
        }

    def tasks(self, lease: HeldLease | None = None) -> list[Task]:
        """The tasks that the settings switch on, for one run: each starts with empty caches.

        Args:
            lease: of the run, under which they write their documents; None where no other run is possible.
        """
        documents, checkpoints = (
            store if lease is None else LeasedDocuments(store, lease, now_ms)
            for store in (self.documents, self.checkpoints)
        )
        return tasks_of_run(
            self.settings,
            {
                "heartbeats": lambda: self._heartbeats().act,
                "checkpoints": lambda: self._checkpoints(checkpoints).act,
                "offset-syncs": lambda: self._offset_syncs(documents).act,
                "lanes": lambda: self._lanes(documents).act,
            },
        )

    def _heartbeats(self) -> Heartbeats:
        return Heartbeats(
            flow=self.settings.name,
            source=self.source.topics if self.settings.emit_heartbeats_source_enabled else None,
            target=self.target.topics,
            replication_factor=self.settings.heartbeats_topic_replication_factor,
            clock=now_ms,
            ensured=self.ensured,
            prefix=self.settings.policy.prefix,
        )

    def _checkpoints(self, documents: StateStore) -> CheckpointRound:
        return CheckpointRound.of(
            self.settings,
            Sides(source=self.source, target=self.target, clock=now_ms),
            documents,
            chains=self._map_reads(),
            source_log=self.source_log,
            counterpart=self.counterpart,
            target_log=self.target_log,
            ensured=self.ensured,
            groups_left=self.groups_left,
        )

    def _map_reads(self) -> MapReads:
        return MapReads(chains=self.chains, stops=StopMemory(flow=self.settings.name, lanes=self.states).read)

    def _lanes(self, documents: StateStore) -> LaneCheck:
        flow = self.settings
        return LaneCheck(
            flow=self.settings.name,
            remote_topic=self.scope.remote_topic,
            topics=self.partitions,
            ends=self.target.topics,
            gaps=GapCheck(
                source=KafkaSourceLog(flow.source, flow=flow.flow), ledger=self.ledger, states=self.states, clock=now_ms
            ),
            logs=LogComparison(
                chains=self.chains,
                epochs=KafkaLogEpochs(flow.source, flow=flow.flow),
                log=KafkaCommittedLog(flow.source, flow=flow.flow),
                changed_of=self._changed_of,
            ),
            chains=self.chains,
            states=self.states,
            target=KafkaTarget(flow, environment=f"lanes.{uuid4().hex}"),
            documents=documents,
            foreign=self.foreign() if flow.delivery == "exactly_once" else None,
            log_ends=self.log_ends,
            clock=now_ms,
            transaction_timeout_ms=flow.transaction_timeout_ms,
            map_retention_days=flow.offset_map_retention_days,
        )

    def _changed_of(self, lane: Lane) -> Changed:
        """By the flow's rules. The standby is not at the source, and has no keys."""
        rules = None if self.settings.stands_by else self.rules
        return partial(rules.changed, lane.topic, lane.partition) if rules is not None else not_at_hand

    def foreign(self) -> ForeignCheck:
        """The look for records that the flow has not written, of a flow that writes in transactions."""
        flow = self.settings

        def alone(topics: Collection[str]) -> Collection[str]:
            """Without those that both clusters produce to under one name, and those that the source does not have."""
            known = set(self.settings.topic_filter.literals)
            if self.settings.refresh_topics_enabled:
                stored = StoredTopics.of(self.documents.read(self.settings.name, "topic/")).topics.values()
                known = {each.topic for each in stored if each.gone_at is None}
            return {topic for topic in topics if topic in known and flow.origin_rule(topic) is None}

        return ForeignCheck(
            remote_topic=self.scope.remote_topic,
            target=KafkaSourceLog(flow.target, flow=flow.flow, group=LOOK_GROUP),
            states=self.states,
            alone=alone,
        )

    def _log_ends(self) -> LogEndCheck:
        flow = self.settings
        return LogEndCheck(
            flow=self.settings.name,
            topics=self.mapped_partitions,
            consumer_group=self.settings.consumer_group,
            history_first=flow.begins_with_history,
            from_log_start=flow.start == "earliest",
            ends=self.source.topics,
            groups=self.source.groups,
            log=KafkaCommittedLog(flow.source, flow=flow.flow),
            chains=self.chains,
            states=self.states,
            clock=now_ms,
        )

    def _offset_syncs(self, documents: StateStore) -> OffsetSyncs:
        return OffsetSyncs(
            scope=self.scope,
            partitions=self.partitions,
            target=self.target.topics,
            chains=self._map_reads(),
            documents=documents,
            replication_factor=self.settings.offset_syncs_topic_replication_factor,
            clock=now_ms,
            ensured=self.ensured,
        )


_wired: dict[bytes, ControlWiring] = {}
"""By the schedule's input: one environment may serve the schedules of several flows."""


def wire(settings: FlowSettings) -> ControlWiring:
    """The wiring of these settings, made once per environment."""
    key = msgspec.json.encode(settings)
    if key not in _wired:
        _wired[key] = ControlWiring(settings)
    return _wired[key]


def _works(settings: FlowSettings, wiring: ControlWiring) -> bool:
    """Whether this run does the tasks. It stores its time where the flow has a standby, which goes by it."""
    if settings.standby_region is None:
        return True
    regions = RegionClock(
        flow=settings.name,
        documents=wiring.documents,
        clock=now_ms,
        after_seconds=settings.standby_after_seconds,
    )
    if not settings.stands_by:
        regions.home_runs(settings.function_region or "")
        return True
    works = regions.standby_works(settings.standby_region)
    if works:
        emit_standby(settings.name, f"{settings.function_region} is silent, so {settings.standby_region} works")
    return works


def handler(event: Any, context: Any) -> dict[str, Any]:
    """Do one run.

    Args:
        event: the schedule's input.
        context: Lambda's context: the time that is left.

    Returns:
        the last report of each task; empty when another run of the flow is active, and for a standby whose home runs.
    """
    settings = control_settings(event)
    wiring = wire(settings)
    if not _works(settings, wiring):
        return {}
    # A flow without heartbeats is missed by the rounds of its tasks.
    always: tuple[Watched, ...] = () if settings.emit_heartbeats_enabled else ("task-errors",)
    lease = HeldLease()
    rounds = TaskRunner(
        flow=settings.name,
        function=CONTROL.name,
        documents=wiring.documents,
        clock=now_ms,
        sleep=time.sleep,
        holder=uuid4().hex,
        lease=lease,
        idle_after_seconds=settings.idle_after_seconds,
        on_report=lambda report: emit_report(settings.name, report, always=always),
        # Before the first round, which a defect may end. A standby does not do what is done at home only.
        on_start=lambda last: (
            None if settings.stands_by else emit_overdue(settings.name, overdue_tasks(settings, last, now_ms()))
        ),
    )
    reports = rounds.run(
        wiring.tasks(lease),
        window_seconds=settings.window_seconds,
        deadline=lambda: context.get_remaining_time_in_millis() / 1000,
    )
    return {name: msgspec.to_builtins(report) for name, report in reports.items()}
