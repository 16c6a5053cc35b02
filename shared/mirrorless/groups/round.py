"""A checkpoint round: read, translate, decide, write, record.

    read       the groups' commits on both sides                        clusters
    translate  each committed offset to the other side                  offset_translation
    decide     the checkpoints that are new, the offsets that are due   checkpoints
    write      checkpoints to their topics                              here
    write      offsets for groups without members on the other side     sync
    record     one document a group: its readiness, the state of the
               next round, the source of `mirrorless groups`            readiness, state

Every step takes frozen values and returns new ones. A crash between two writes is harmless: a checkpoint is emitted
again, and an offset that is already there is not written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Self

from mirrorless.chain.lane import by_topic
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable, few
from mirrorless.flow.rate_limit import in_parallel
from mirrorless.flow.settings import FlowSettings
from mirrorless.groups.checkpoints import (
    CommittedOffsets,
    Direction,
    GroupCheckpoints,
    TranslatedGroup,
    checkpoints_to_emit,
    translated_by_name,
)
from mirrorless.groups.clusters import DIRECTIONS, Sides, group_states, read_committed
from mirrorless.groups.offset_translation import OffsetTranslator, offsets_of, translated_groups
from mirrorless.groups.ownership import Ownership
from mirrorless.groups.readiness import Rereads, assess, found_by
from mirrorless.groups.state import CheckpointStore
from mirrorless.groups.sync import GroupSync, SyncedGroup
from mirrorless.lanes.gaps import LogLooks
from mirrorless.mm2.internal_records import EnsuredTopics
from mirrorless.ports.kafka import Written
from mirrorless.ports.stores import Chains, StateStore
from mirrorless.protocol.map_reads import MapReads
from mirrorless.protocol.past import PastStore
from mirrorless.protocol.translate import OffsetMap
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.scope import FlowScope

JOURNALS_PER_SECOND: Final = 80
"""Journals of the offset map that rounds read, on average: each is a read unit, and these are $26 a month."""


@dataclass(slots=True, kw_only=True)
class CheckpointRound:
    """The task `checkpoints` of one flow: checkpoints, group offsets in both directions, readiness."""

    scope: FlowScope
    sides: Sides
    store: CheckpointStore
    translator: OffsetTranslator
    rereads: Rereads
    sync: GroupSync
    replication_factor: int
    """Of the checkpoints topics."""
    ensured: EnsuredTopics = field(default_factory=EnsuredTopics)

    @classmethod
    def of(
        cls,
        settings: FlowSettings,
        sides: Sides,
        documents: StateStore,
        *,
        chains: MapReads,
        source_log: LogLooks,
        counterpart: Chains | None = None,
        target_log: LogLooks | None = None,
        ensured: EnsuredTopics | None = None,
        groups_left: set[tuple[Direction, str]] | None = None,
    ) -> Self:
        """A flow's rounds, with empty caches.

        Args:
            settings: of the flow.
            sides: both clusters.
            documents: where the groups' checkpoints are kept, under the lease of the run.
            chains: the map.
            source_log: the source's logs.
            counterpart: the chains of the flow in the other direction, where both keep the names of topics.
            target_log: the target's logs, with a counterpart.
            ensured: topics that are there, of a warm environment.
            groups_left: see `GroupSync.left`.
        """
        scope, every = FlowScope.of(settings), settings.sync_group_offsets_seconds
        past, store = (
            PastStore(documents=documents),
            CheckpointStore(flow=settings.name, documents=documents, clock=sides.clock),
        )
        return cls(
            scope=scope,
            sides=sides,
            store=store,
            translator=OffsetTranslator(
                chains=chains,
                past=past,
                scope=scope,
                sides=sides,
                source_log=source_log,
                target_log=target_log,
                counterpart=counterpart,
                transactional=settings.delivery == "exactly_once",
                from_earliest=settings.start == "earliest",
                at_source=sides.ask_source_log,
            ),
            rereads=Rereads(
                offset_map=OffsetMap(chains, past), counterpart=None if counterpart is None else OffsetMap(counterpart)
            ),
            sync=GroupSync(
                scope=scope,
                sides=sides,
                store=store,
                clock=sides.clock,
                every_ms=None if every is None else int(every * 1000),
                reverse=settings.sync_group_offsets_reverse_enabled,
                grace_ms=int(settings.group_grace_seconds * 1000),
                left=set() if groups_left is None else groups_left,
            ),
            replication_factor=settings.checkpoints_topic_replication_factor,
            ensured=ensured or EnsuredTopics(),
        )

    def act(self, report: RoundReport, deadline: Deadline) -> None:
        """Do one round.

        Raises:
            Retriable: the target or a store does not answer.
        """
        if self.store.load():
            self.translator.forget()
            self.rereads.forget()

        # 1. Read, before anything else, what the groups have committed.
        committed = self._read(report, deadline)

        # 2. Translate.
        ownership = Ownership(flow=self.scope.flow, previous=self.store.get, reverse=self.sync.reverse)
        translations = self.translator.translate(
            offsets_of("forward", committed) | offsets_of("reverse", committed) | ownership.to_compare(committed),
            deadline,
        )
        self.rereads.both = self.translator.answered
        if not self.translator.answered:
            report.troubles.append(
                f"the map of {self.scope.flow.turned} does not answer, and groups keep the offsets found before: "
                f"{self.translator.trouble}"
            )
        elif self.translator.log_trouble and committed.source_answered:
            report.troubles.append(f"a log cannot be read, and groups at its end wait: {self.translator.log_trouble}")
        report.rest_seconds = self.translator.journals_read / JOURNALS_PER_SECOND
        groups = [
            ownership.of(group, translations)
            for direction in DIRECTIONS
            for group in translated_groups(direction, committed, translations, self.store.get)
        ]

        # 3. Write the checkpoints that are new.
        emitted = {
            direction: self._emit(direction, groups, report, deadline)
            for direction in (DIRECTIONS if self.sync.reverse else ("forward",))
        }
        report.counts["checkpoints-emitted"] = sum(count or 0 for count in emitted.values())

        # 4. Write the group offsets that are due.
        there_read: Sequence[Direction] = DIRECTIONS if committed.source_answered else ("forward",)
        states = group_states(self.sides, groups, there_read, report, deadline)
        synced, report.counts["offsets-committed"] = self.sync.sync(groups, states, report, deadline)

        self.store.watches_claims = any(map(self.sync.waits, synced.values()))

        # 5. Record.
        complete = {direction for direction, count in emitted.items() if count is not None}
        documents = in_parallel(partial(self._document, complete), list(synced.values()))
        if any(_new(document, self.store.get(document.direction, document.group)) for document in documents):
            self.store.expire()
        changed = self.store.write({document.key: document for document in documents})
        report.moved = bool(changed or report.counts["checkpoints-emitted"] or report.counts["offsets-committed"])
        report.troubles += self._committed_by_lost_maps(synced.values())
        answered = DIRECTIONS if committed.source_answered else ("reverse",)
        self.store.drop_others({document.key for document in documents}, answered)
        _count(documents, report)

    def _read(self, report: RoundReport, deadline: Deadline) -> CommittedOffsets:
        """The groups' commits. A source that does not answer keeps those read last: its groups can still move."""
        on_source, on_target = read_committed(self.sides, self.scope, report, deadline)
        return CommittedOffsets(
            source=self.store.commits_on_source() if on_source is None else on_source,
            target=on_target,
            source_answered=on_source is not None,
        )

    def _emit(
        self, direction: Direction, groups: Iterable[TranslatedGroup], report: RoundReport, deadline: Deadline
    ) -> int | None:
        """Write the new checkpoints of one direction. What cannot be written now is written in a later round.

        Returns:
            how many were written; None when the topic cannot be written.
        """
        cluster = self.sides.there(direction)
        topic = self.scope.policy.checkpoints_topic(self.sides.here(direction).alias)
        now = self.sides.clock()
        records: list[Written] = []
        for group in translated_by_name(direction, groups).values():
            for lane, checkpoint in checkpoints_to_emit(direction, group.name, group.offsets, group.previous).items():
                there = self.scope.remote_topic(lane.topic) if direction == "forward" else lane.topic
                renamed = replace(checkpoint, topic=there)
                records.append((topic, renamed.key(), renamed.value(), now))

        def write(limit: Deadline) -> None:
            self.ensured.ensure(
                cluster.topics, cluster.alias, topic, replication_factor=self.replication_factor, deadline=limit
            )
            cluster.topics.write(records, limit)

        if records:
            try:
                self.sides.call(cluster, write, deadline)
            except Retriable as exc:
                self.ensured.forget(cluster.alias, topic)
                report.troubles.append(f"{len(records)} checkpoints wait, because {topic} cannot be written: {exc}")
                return None
        return len(records)

    def _committed_by_lost_maps(self, groups: Iterable[SyncedGroup]) -> Iterator[str]:
        """One sentence for each remote topic that is not the one of the map: what this flow had committed there.

        Kafka drops the offsets of a deleted topic, so those on one that was made anew were committed since.
        """
        found: dict[str, list[str]] = {}
        for group in groups:
            for lane, offset in sorted(group.translated.offsets.items()):
                there = group.there.get(lane)
                if offset.state == "map_lost" and there is not None and there.offset in group.own.get(lane, ()):
                    found.setdefault(lane.topic, []).append(
                        f"{group.translated.name} at {there.offset} of partition {lane.partition}"
                    )
        for topic, offsets in sorted(found.items()):
            yield (
                f"{self.scope.flow} {topic}: offsets on {self.scope.remote_topic(topic)} were committed by a map of "
                f"records that are gone: {few(offsets)}. Once its lanes are reset and replicated, "
                f"`mirrorless groups '{self.scope.flow}'` says which would skip records, and how to move them back"
            )

    def _document(self, emitted: Collection[Direction], synced: SyncedGroup) -> GroupCheckpoints:
        """The round's result for a group."""
        group = synced.translated
        reread = skip = 0
        if not synced.active_there:
            reread, skip = self.rereads.count(
                group.direction, group.name, group.offsets, synced.there, synced.comparable
            )
        return GroupCheckpoints(
            group=group.name,
            direction=group.direction,
            at=self.sides.clock(),
            readiness=assess(
                group.direction,
                group.offsets,
                active_there=synced.active_there,
                reread=reread,
                skip=skip,
                independent=self.sync.commits(group.direction) and synced.independent,
            ),
            offsets=by_topic(group.offsets),
            by=found_by(group.offsets, synced.there),
            reread=reread + group.reread,
            skip=skip,
            ahead=group.ahead,
            carried=by_topic(synced.carried()),
            own=by_topic(synced.own),
            left_at=synced.left_at,
            emitted=group.direction in emitted,
        )


def _new(document: GroupCheckpoints, before: GroupCheckpoints | None) -> bool:
    """Whether a group has become independent: a claim may say otherwise."""
    return document.readiness == "independent" and (before is None or before.readiness != "independent")


def _count(documents: Iterable[GroupCheckpoints], report: RoundReport) -> None:
    """Fill in the counts of the forward direction, for alarms and the operator."""
    forward = [document for document in documents if document.direction == "forward"]
    not_ready = [document for document in forward if document.readiness not in {"ready", "active_on_target"}]
    report.counts["groups"] = len(forward)
    report.counts["groups-not-ready"] = len(not_ready)
    report.counts["groups-need-operator"] = sum(document.needs_operator for document in forward)
    report.counts["reread-records-max"] = max((document.reread for document in forward), default=0)
