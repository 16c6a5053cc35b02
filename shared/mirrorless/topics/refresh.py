"""The task `topics`: one round of topic discovery, change detection, remote topics and event source mappings.

    1. Discover  the source's topics, which of them the flow takes, their ids and ends.
    2. Compare   with the stored state: lanes of re-created and truncated topics stop before anything else.
    3. Create    remote topics are created and grown, before any record needs them; lanes of re-created ones stop, and
                 lanes whose record was refused by other configs than those of now try again.
    4. Start     offsets where the flow does not begin at the first record; then the list of scheduled topics, which
                 `pull` reads, and event source mappings.

Each step can be interrupted and repeated. The failure of one topic is reported and does not affect the others; only
the failure of a whole cluster or store ends the round.

The sync of remote topics with their source topics is here: existence, partition counts, configs. And so are lanes with
a refused record, which try again once the configs of their remote topic are others. A record that was too large, or
that had no key, may fit by now: the sync of configs came later than the record, an operator has set what the stop
advised, or a deployment changed the producers. So it is kept when the configs were last seen to change, and a lane that
stopped before that is let go. If the record is refused again, the lane stops again, later than the change, and waits
for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Protocol

import msgspec

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.clock import Deadline
from mirrorless.flow.filters import TIMESTAMP_TYPE
from mirrorless.flow.settings import FlowSettings
from mirrorless.ports.stores import StateStore
from mirrorless.ports.topics import ConfigChange, ConfigEntry, NewRemoteTopic, SourceTopics, TargetTopics
from mirrorless.protocol.map_reads import StoppedLanes
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.change_detection import ChangeDetector, SourceSnapshot
from mirrorless.topics.configs import Creation, configs_to_copy, create_topics, drift, rewriting_configs
from mirrorless.topics.discovery import Discovery, awaits_heartbeats, discover, plan_remote_topics, some
from mirrorless.topics.mapping_plan import enabled_topics
from mirrorless.topics.mapping_sync import MappingSync
from mirrorless.topics.pause import MappingPause
from mirrorless.topics.scheduled_topics import ScheduledTopicSync

DOCUMENT: Final = "remote-configs"

SKEW_MS: Final = 10_000
"""By which the clock of a function that stops a lane may be ahead of this one."""


class RefusedStops(StoppedLanes, Protocol):
    """The stopped lanes of a flow, which can be let go."""

    def retry(self, lane: Lane, stop: Stop) -> bool:
        """Let a lane try again, if this is its stop still. Returns whether it was.

        Raises:
            Retriable: when the store does not answer.
        """
        ...


class SeenConfigs(msgspec.Struct, frozen=True, array_like=True):
    """The configs of one remote topic as they were seen last."""

    digest: str
    changed_at: int
    """ms since the epoch, when they were first seen so; 0 where they were never seen otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedLanes:
    """The lanes of one flow that stopped at a refused record."""

    settings: FlowSettings
    target: TargetTopics
    documents: StateStore
    states: RefusedStops
    clock: Callable[[], int]
    """ms since the epoch."""

    def look(self, topics: Iterable[str], report: RoundReport, deadline: Deadline) -> None:
        """Look at the remote topics of lanes that are stopped, and let lanes try again. Args: topics: of the source.

        Raises:
            Retriable: the target or a store does not answer.
        """
        taken, stops = frozenset(topics), self._stops()
        remote = {self.settings.remote_topic(lane.topic) for lane in stops if lane.topic in taken}
        if remote:
            configs, _ = self.target.configs(remote, deadline)
            self._compare(configs, stops, report)

    def saw(self, configs: Mapping[str, Iterable[ConfigEntry]], report: RoundReport) -> None:
        """The same, by what the sync of configs has read, before it changes anything. Args: configs: by remote topic.

        Raises:
            Retriable: a store does not answer.
        """
        self._compare(configs, self._stops(), report)

    def _compare(
        self, configs: Mapping[str, Iterable[ConfigEntry]], stops: Mapping[Lane, Stop], report: RoundReport
    ) -> None:
        flow, now = self.settings.name, self.clock()
        stored = self.documents.read(flow, DOCUMENT).get(DOCUMENT)
        known = msgspec.json.decode(stored, type=dict[str, SeenConfigs]) if stored else {}
        seen = dict(known)
        for name, entries in configs.items():
            digest, before = self._digest(entries), known.get(name)
            if before is None or before.digest != digest:
                seen[name] = SeenConfigs(digest, 0 if before is None else now)
        if seen != known:
            self.documents.write(flow, {DOCUMENT: msgspec.json.encode(seen)})
        tried = [
            lane
            for lane, stop in stops.items()
            if (name := self.settings.remote_topic(lane.topic)) in configs
            and stop.at < seen[name].changed_at + SKEW_MS
            and seen[name].changed_at
            and self.states.retry(lane, stop)
        ]
        if tried:
            report.counts["lanes-tried-again"] = report.counts.get("lanes-tried-again", 0) + len(tried)

    def _stops(self) -> dict[Lane, Stop]:
        return {
            lane: state.stop
            for lane, state in self.states.stopped(self.settings.name).items()
            if state.stop is not None and state.stop.reason == "refused" and not lane.is_of_a_job
        }

    def _digest(self, entries: Iterable[ConfigEntry]) -> str:
        """Of all that decides whether a record is taken: the topic's configs, and the flow's own producers."""
        values = sorted((entry.name, entry.value) for entry in entries)
        text = msgspec.json.encode([values, sorted(self.settings.producer.items())])
        return sha256(text).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTopicSync:
    """Creates, grows and configures the remote topics of one flow."""

    settings: FlowSettings
    source: SourceTopics
    target: TargetTopics
    refused: RefusedLanes | None = None
    """Gets what is read of the target's configs, before they are changed."""

    def create_and_grow(self, taken: Mapping[str, int], report: RoundReport, deadline: Deadline) -> dict[str, int]:
        """Create and grow remote topics.

        Args:
            taken: the source topics, with the numbers of their partitions.
            report: gets what went wrong, topic by topic.
            deadline: seconds that are left.

        Returns:
            the source topics whose remote topic exists, with the number of partitions that both have.

        Raises:
            Retriable: a cluster does not answer.
        """
        on_target, remote_of = self.target.partitions(deadline), self.settings.remote_topic
        plan = plan_remote_topics(taken, on_target, self.settings)
        created = self._create(plan.create, deadline) if plan.create else {}
        not_created = {topic: outcome.error for topic, outcome in created.items() if outcome.error}
        grown = self.target.grow({remote_of(topic): count for topic, count in plan.grow.items()}, deadline)
        not_grown = {topic: error for topic in plan.grow if (error := grown.get(remote_of(topic)))}
        flow = self.settings.name
        report.troubles += [f"{flow} {topic}: not created: {error}" for topic, error in not_created.items()]
        report.troubles += [
            f"{flow} {topic}: created without {some(outcome.left_out)}: the target refuses it"
            for topic, outcome in created.items()
            if outcome.left_out
        ]
        report.troubles += [f"{flow} {topic}: not grown: {error}" for topic, error in not_grown.items()]
        report.counts |= {
            "topics-created": len(plan.create) - len(not_created),
            "topics-grown": len(plan.grow) - len(not_grown),
        }
        return {
            topic: min(count, on_target[remote_of(topic)]) if topic in not_grown else count
            for topic, count in taken.items()
            if topic not in not_created
        }

    def sync_configs(self, report: RoundReport, deadline: Deadline) -> None:
        """Bring the remote topics' configs back to their source topics', and report what rewrites records.

        Where the flow does not synchronise configs, nothing is changed.

        Raises:
            Retriable: a cluster does not answer.
        """
        settings, flow = self.settings, self.settings.name
        on_source, on_target = self.source.partitions(deadline), self.target.partitions(deadline)
        remote = {
            topic: name
            for topic in discover(on_source, settings).taken
            if (name := self.settings.remote_topic(topic)) in on_target
        }
        source_configs, source_errors = self.source.configs(remote, deadline)
        target_configs, target_errors = self.target.configs(remote.values(), deadline)
        report.troubles += [f"{flow} {topic}: the source: {error}" for topic, error in source_errors.items()]
        report.troubles += [f"{flow} {name}: the target: {error}" for name, error in target_errors.items()]
        if self.refused is not None:
            self.refused.saw(target_configs, report)
        changes: dict[str, ConfigChange] = {}
        rewriting = 0
        for topic, name in remote.items():
            if topic not in source_configs or name not in target_configs:
                continue
            found = drift(
                source_configs[topic],
                target_configs[name],
                exclude=settings.config_properties_exclude,
                protect=settings.config_properties_protect,
                defaults_from=settings.use_defaults_from,
            )
            # A flow that does not synchronise configs looks at them all the same.
            change = ConfigChange() if not settings.sync_topic_configs_enabled else found.change
            for config, what in rewriting_configs(source_configs[topic], target_configs[name]).items():
                if config not in change.set and config not in change.delete:
                    report.troubles.append(f"{flow} {name}: {config} is {what}")
                    rewriting += config == TIMESTAMP_TYPE
            if found.unknown:
                report.troubles.append(f"{flow} {name}: the target has no config {some(found.unknown)}")
            if change:
                changes[name] = change
        refused = self._alter(changes, deadline)
        report.troubles += [
            f"{flow} {name}: the target refused {part}: {error}"
            for name, parts in refused.items()
            for part, error in parts
        ]
        altered = {name: len(change) - len(refused.get(name, ())) for name, change in changes.items()}
        report.counts |= {
            "topics-compared": len(remote),
            "topics-rewriting": rewriting,
            "topics-altered": sum(map(bool, altered.values())),
            "configs-altered": sum(altered.values()),
        }

    def _alter(
        self, changes: Mapping[str, ConfigChange], deadline: Deadline
    ) -> dict[str, list[tuple[ConfigChange, str]]]:
        """Alter remote topics. Returns what was refused, by remote topic: what the target refuses stops no other."""
        outcomes = self.target.alter_configs(changes, deadline) if changes else {}
        refused = {name: [(changes[name], error)] for name, error in outcomes.items() if error}
        parts = {name: changes[name].parts() for name in refused if len(changes[name]) > 1}
        refused |= {name: [] for name in parts}
        # One config of every topic in one call.
        for index in range(max(map(len, parts.values()), default=0)):
            trials = {name: each[index] for name, each in parts.items() if index < len(each)}
            for name, error in self.target.alter_configs(trials, deadline).items():
                if error:
                    refused[name].append((trials[name], error))
        return refused

    def _create(self, counts: Mapping[str, int], deadline: Deadline) -> dict[str, Creation]:
        """Create remote topics. Returns the outcomes by source topic."""
        flow = self.settings
        # Without its configs a topic is not created: a compacted topic would expire records.
        configs, failures = self.source.configs(counts, deadline)
        new = [
            NewRemoteTopic(
                name=flow.remote_topic(topic),
                partitions=counts[topic],
                replication_factor=flow.replication_factor,
                configs=configs_to_copy(
                    configs[topic], flow.config_properties_exclude, defaults_from=flow.use_defaults_from
                ),
            )
            for topic in counts
            if topic in configs
        ]
        created = create_topics(self.target, new, deadline)
        return {
            topic: Creation(failures[topic]) if topic in failures else created[flow.remote_topic(topic)]
            for topic in counts
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRefresh:
    """The task `topics` of one flow."""

    settings: FlowSettings
    source: SourceTopics
    changes: ChangeDetector
    remote_topics: RemoteTopicSync
    refused: RefusedLanes
    scheduled: ScheduledTopicSync
    mappings: MappingSync | None
    """None where the flow does not manage its mappings."""
    pause: MappingPause | None = None
    """The same."""

    def act(self, report: RoundReport, deadline: Deadline) -> None:
        """One round.

        Raises:
            Retriable: a cluster or a store does not answer; what was done until then stands.
        """
        # 1. Discover.
        found, snapshot = self._discover(deadline)
        report.troubles += found.troubles()
        report.comes_soon = awaits_heartbeats(snapshot.on_source, self.settings)
        report.counts |= {
            "topics": len(found.taken),
            "partitions": sum(snapshot.taken.values()),
            "topics-refused": sum(map(len, found.refused.values())),
        }

        # 2. Compare.
        changes = self.changes.detect(snapshot, report, deadline)

        # 3. Create.
        ready = self.remote_topics.create_and_grow(snapshot.taken, report, deadline)
        self.changes.detect_remote(changes.topics, report, deadline)
        self.refused.look(ready, report, deadline)

        # 4. Start. A topic that has just disappeared, or could not be read, keeps its mapping.
        actual = self.mappings.read(deadline) if self.mappings is not None else []
        # Without mappings of ours, a topic that is not scheduled any more is at once in other hands.
        enabled = enabled_topics(actual, self.settings.name) if self.mappings is not None else found.taken
        scheduled = self.scheduled.sync(
            found,
            changes.topics,
            {topic: count for topic, count in ready.items() if topic in changes.topics},
            enabled=enabled,
            just_gone=changes.just_gone,
            report=report,
            deadline=deadline,
        )
        if self.pause is not None and self.pause.act(actual, report, deadline):
            return
        if self.mappings is not None:
            missing = (snapshot.taken.keys() - ready.keys()) | (found.scheduled - scheduled.read.keys())
            unready = missing | changes.just_gone | (found.mapped - changes.topics.keys())
            self.mappings.sync(
                found,
                changes.topics,
                actual,
                returning=scheduled.returning,
                unready=unready,
                report=report,
                deadline=deadline,
            )

    def _discover(self, deadline: Deadline) -> tuple[Discovery, SourceSnapshot]:
        on_source = self.source.partitions(deadline)
        found = discover(on_source, self.settings)
        ids = self.source.topic_ids(found.taken, deadline)
        taken = {topic: on_source[topic] for topic in found.taken if topic in ids}
        partitions = [(topic, partition) for topic, count in taken.items() for partition in range(count)]
        return found, SourceSnapshot(
            on_source=on_source, taken=taken, ids=ids, ends=self.source.ends(partitions, deadline)
        )
