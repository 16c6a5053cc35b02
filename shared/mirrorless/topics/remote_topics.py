"""The sync of remote topics with their source topics: existence, partition counts, configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirrorless.ports.kafka import Deadline
from mirrorless.ports.topics import ConfigChange, NewRemoteTopic, SourceTopics, TargetTopics
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.topics.configs import configs_to_copy, drift
from mirrorless.topics.creation import Creation, create_topics
from mirrorless.topics.discovery import discover, plan_remote_topics, some


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTopicSync:
    """Creates, grows and configures the remote topics of one flow."""

    settings: ControlSettings
    source: SourceTopics
    target: TargetTopics

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
        on_target = self.target.partitions(deadline)
        plan = plan_remote_topics(taken, on_target, self.settings)
        created = self._create(plan.create, deadline) if plan.create else {}
        not_created = {topic: outcome.error for topic, outcome in created.items() if outcome.error}
        grown = self.target.grow({self._remote(topic): count for topic, count in plan.grow.items()}, deadline)
        not_grown = {topic: error for topic in plan.grow if (error := grown.get(self._remote(topic)))}
        flow = self.settings.name
        report.troubles += [f"{flow} {topic}: not created: {error}" for topic, error in not_created.items()]
        report.troubles += [
            f"{flow} {topic}: created without {some(outcome.left_out)}: the target refuses it"
            for topic, outcome in created.items()
            if outcome.left_out
        ]
        report.troubles += [f"{flow} {topic}: not grown: {error}" for topic, error in not_grown.items()]
        report.figures |= {
            "topics-created": len(plan.create) - len(not_created),
            "topics-grown": len(plan.grow) - len(not_grown),
        }
        return {
            topic: min(count, on_target[self._remote(topic)]) if topic in not_grown else count
            for topic, count in taken.items()
            if topic not in not_created
        }

    def sync_configs(self, report: RoundReport, deadline: Deadline) -> None:
        """Bring the remote topics' configs back to their source topics'.

        Raises:
            Retriable: a cluster does not answer.
        """
        settings, flow = self.settings, self.settings.name
        on_source, on_target = self.source.partitions(deadline), self.target.partitions(deadline)
        remote = {
            topic: name for topic in discover(on_source, settings).taken if (name := self._remote(topic)) in on_target
        }
        source_configs, source_errors = self.source.configs(remote, deadline)
        target_configs, target_errors = self.target.configs(remote.values(), deadline)
        report.troubles += [f"{flow} {topic}: the source: {error}" for topic, error in source_errors.items()]
        report.troubles += [f"{flow} {name}: the target: {error}" for name, error in target_errors.items()]
        changes: dict[str, ConfigChange] = {}
        for topic, name in remote.items():
            if topic not in source_configs or name not in target_configs:
                continue
            found = drift(
                source_configs[topic],
                target_configs[name],
                exclude=settings.flow.config_properties_exclude,
                protect=settings.config_properties_protect,
                defaults_from=settings.flow.use_defaults_from,
            )
            if found.unknown:
                report.troubles.append(f"{flow} {name}: the target has no config {some(found.unknown)}")
            if found.change:
                changes[name] = found.change
        refused = self._alter(changes, deadline)
        report.troubles += [
            f"{flow} {name}: the target refused {part}: {error}"
            for name, parts in refused.items()
            for part, error in parts
        ]
        altered = {name: len(change) - len(refused.get(name, ())) for name, change in changes.items()}
        report.figures |= {
            "topics-compared": len(remote),
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
        flow = self.settings.flow
        # Without its configs a topic is not created: a compacted topic would expire records.
        configs, failures = self.source.configs(counts, deadline)
        new = [
            NewRemoteTopic(
                name=self._remote(topic),
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
            topic: Creation(failures[topic]) if topic in failures else created[self._remote(topic)] for topic in counts
        }

    def _remote(self, topic: str) -> str:
        return self.settings.policy.remote_topic(self.settings.name.source, topic)
