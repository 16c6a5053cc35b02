"""What is done about a flow's topics in one round? Look, watch, create and grow, map; and, less often, sync configs.

    1. Look     the source's topics, which of them the flow takes, their ids and ends.
    2. Watch    against what was known: re-created, truncated and vanished topics; lanes stop before anything else.
    3. Shape    remote topics are created and grown, before any record needs them.
    4. Map      offsets where the flow does not begin at the first record, then event source mappings.

Each step can die and be done again: what a step learnt is written once it was acted upon. One topic's failure is told
and leaves the others alone; only what concerns a whole cluster or a whole store ends the round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from mirrorless import topic_watch
from mirrorless.chain import RUNNING, Chains, Head, LaneStates, Stop
from mirrorless.control_settings import ControlSettings
from mirrorless.discovery import Discovery, discover, plan_remote_topics, some
from mirrorless.documents import Documents
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.groups import Committed, Groups, Place
from mirrorless.lane import Lane
from mirrorless.mappings import MappingPlan, Mappings, Outcome, mapping_request, plan_mappings
from mirrorless.remote_topic import configs_to_copy
from mirrorless.rounds import Report
from mirrorless.target import Deadline
from mirrorless.topic_configs import ConfigChange, drift
from mirrorless.topic_watch import Beginning, Ends, SeenTopic
from mirrorless.topics import NewRemoteTopic, SourceTopics, TargetTopics

NEAR_SECONDS: Final = 5.0
"""What is kept of the deadline: no further call to Lambda is begun, and the next round goes on."""


@dataclass(slots=True)
class Memory:
    """What earlier rounds have written."""

    beginning: Beginning | None
    topics: dict[str, SeenTopic]
    ends: Ends

    @classmethod
    def of(cls, documents: Mapping[str, bytes]) -> Memory:
        """Read the documents `topics`, `topic/...` and `topic-ends/...`."""
        beginning = documents.get("topics")
        seen = (msgspec.json.decode(text, type=SeenTopic) for text in _under("topic/", documents))
        return cls(
            beginning=None if beginning is None else msgspec.json.decode(beginning, type=Beginning),
            topics={each.topic: each for each in seen},
            ends=topic_watch.decode_ends(_under("topic-ends/", documents)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRefresh:
    """The tasks `topics` and `configs` of one flow."""

    settings: ControlSettings
    source: SourceTopics
    target: TargetTopics
    source_groups: Groups
    documents: Documents
    chains: Chains
    states: LaneStates
    mappings: Mappings | None
    """None where the flow's mappings are nobody's to manage."""
    clock: Callable[[], int]
    """ms since the epoch."""

    # The task `topics`

    def refresh(self, report: Report, deadline: Deadline) -> None:
        """One round.

        Raises:
            Retriable: a cluster or a store does not answer; what was done until then stands.
        """
        # 1. Look.
        on_source = self.source.partitions(deadline)
        found = discover(on_source, self.settings)
        report.troubles += found.troubles()
        ids = self.source.topic_ids(found.taken, deadline)
        memory = Memory.of(self.documents.read(self.settings.name, "topic"))
        beginning = memory.beginning or self._begin(on_source)
        counts = {topic: on_source[topic] for topic in found.taken if topic in ids}
        ends = self.source.ends(
            ((topic, partition) for topic, count in counts.items() for partition in range(count)), deadline
        )

        # 2. Watch.
        seen = self._first_sights(counts, ids, memory, beginning, ends, report, deadline)
        seen |= self._known(counts, ids, memory, report)
        gone = self._gone(on_source, memory, report)
        self._stop_truncated(counts, ids, memory, ends, report, deadline)
        self._remember(memory, seen | gone, topic_watch.merged_ends(memory.ends, ends, counts, keep=gone))

        # 3. Shape.
        shapeless = self._shape(counts, report, deadline)

        # 4. Map.
        if self.mappings is not None:
            just_gone = {topic for topic in gone if memory.topics[topic].gone_at is None}
            unready = shapeless | (found.mapped - seen.keys()) | just_gone
            self._map(self.mappings, found, seen, unready, report, deadline)
        report.figures |= {
            "topics": len(found.taken),
            "partitions": sum(counts.values()),
            "topics-refused": sum(len(names) for names in found.refused.values()),
            "topics-gone": len(gone),
            "topics-recreated": sum(each.recreated is not None for each in seen.values()),
        }

    def _begin(self, on_source: Mapping[str, int]) -> Beginning:
        """Note what is there before the flow: at once and in one document, so that no death in between blurs it."""
        there = tuple(sorted(topic for topic in on_source if not self.settings.policy.is_internal_topic(topic)))
        beginning = Beginning(at=self.clock(), topics=there)
        self.documents.write(self.settings.name, {"topics": msgspec.json.encode(beginning)})
        return beginning

    # Watch

    def _first_sights(
        self,
        counts: Mapping[str, int],
        ids: Mapping[str, str],
        memory: Memory,
        beginning: Beginning,
        ends: Mapping[Place, int],
        report: Report,
        deadline: Deadline,
    ) -> dict[str, SeenTopic]:
        """What is known of topics that are seen for the first time."""
        news = [topic for topic in counts if topic not in memory.topics]
        there_before = frozenset(beginning.topics)
        starts, unknown = self._starts(
            {topic: counts[topic] for topic in news if topic in there_before}, ends, deadline
        )
        if unknown:
            report.troubles.append(
                f"not begun yet: {some(tuple(unknown))}: the source does not tell where their partitions end"
            )
        return {
            topic: SeenTopic(
                topic=topic,
                topic_id=ids[topic],
                partitions=counts[topic],
                first_seen=self.clock(),
                late=topic not in there_before,
                start=starts.get(topic, ()),
            )
            for topic in news
            if topic not in unknown
        }

    def _starts(
        self, counts: Mapping[str, int], ends: Mapping[Place, int], deadline: Deadline
    ) -> tuple[dict[str, tuple[int, ...]], list[str]]:
        """Where topics begin that were there before the flow; and those of which it cannot be told yet."""
        try:
            start = topic_watch.start_of(self.settings.start)
        except ValueError:
            raise Retriable(
                f"start {self.settings.start!r} is neither a word nor a moment",
                where=str(self.settings.name),
                hint="deploy the schedules again from replication.yaml",
            ) from None
        if start is None or not counts:
            return {}, []
        places = [(topic, partition) for topic, count in counts.items() for partition in range(count)]
        at = {} if isinstance(start, str) else self.source.offsets_at(places, start, deadline)
        known: dict[str, tuple[int, ...]] = {}
        unknown = []
        for topic, count in counts.items():
            offsets = [_start_of((topic, partition), start, at, ends) for partition in range(count)]
            if None in offsets:
                unknown.append(topic)
            else:
                known[topic] = tuple(each for each in offsets if each is not None)
        return known, unknown

    def _known(
        self, counts: Mapping[str, int], ids: Mapping[str, str], memory: Memory, report: Report
    ) -> dict[str, SeenTopic]:
        """What is known now of topics that were seen before; lanes of re-created ones stop."""
        seen = {}
        for topic, count in counts.items():
            before = memory.topics.get(topic)
            if before is None:
                continue
            if before.topic_id == ids[topic]:
                seen[topic] = topic_watch.look(before, partitions=count)
                continue
            heads = self._heads(topic, range(max(count, before.partitions)))
            now = topic_watch.look_at_recreated(
                before,
                topic_id=ids[topic],
                partitions=count,
                heads={lane.partition: head for lane, head in heads.items()},
            )
            seen[topic] = now
            if now.recreated is None:
                continue
            waiting = sorted(now.recreated.waiting)
            self._stop(
                {
                    Lane(self.settings.name, topic, partition): topic_watch.recreated_stop(
                        self.settings.name, now, partition, now=self.clock()
                    )
                    for partition in waiting
                },
                report,
            )
            command = topic_watch.reset_command(self.settings.name, topic, "PARTITION", "earliest")
            report.troubles.append(
                f"{self.settings.name} {topic}: deleted on the source and created again (topic id {before.topic_id}, "
                f"now {ids[topic]}): partitions {_listed(waiting)} stand still until `{command}`"
            )
        return seen

    def _gone(self, on_source: Mapping[str, int], memory: Memory, report: Report) -> dict[str, SeenTopic]:
        """What is known of topics that were seen and are not on the source any more."""
        gone = {
            topic: topic_watch.look_at_gone(before, now=self.clock())
            for topic, before in memory.topics.items()
            if topic not in on_source
        }
        for topic, seen in gone.items():
            ends = memory.ends.get(topic, [])
            heads = self._heads(topic, range(len(ends)))
            positions = [heads[Lane(self.settings.name, topic, partition)].position for partition in range(len(ends))]
            for partition, (position, end) in topic_watch.unfinished(
                [max(each, _began(seen, partition)) for partition, each in enumerate(positions)], ends
            ).items():
                command = topic_watch.reset_command(self.settings.name, topic, partition, str(end))
                report.troubles.append(
                    f"{Lane(self.settings.name, topic, partition)}: deleted on the source, which ended at {end}, and "
                    f"replicated up to {position}: what lay between, transaction markers included, is lost; to settle "
                    f"it: `{command}`"
                )
        return gone

    def _stop_truncated(
        self,
        counts: Mapping[str, int],
        ids: Mapping[str, str],
        memory: Memory,
        ends: Mapping[Place, int],
        report: Report,
        deadline: Deadline,
    ) -> None:
        """Stop the lanes that have replicated more than the source still has."""
        same = {topic for topic in counts if topic in memory.topics and memory.topics[topic].topic_id == ids[topic]}
        suspects = [place for place in topic_watch.receded(memory.ends, ends) if place[0] in same]
        if not suspects:
            return
        # The heads first, the ends after them: a lane that goes on meanwhile is not taken for one that went too far.
        heads = self.chains.heads([Lane(self.settings.name, *place) for place in suspects])
        ends_after = self.source.ends(suspects, deadline)
        stops: dict[Lane, Stop] = {}
        for place in suspects:
            lane = Lane(self.settings.name, *place)
            end, position = ends_after.get(place), heads[lane].position
            if end is not None and position > end:
                stops[lane] = topic_watch.truncated_stop(
                    self.settings.name, place, end=end, position=position, now=self.clock()
                )
                report.troubles.append(f"{lane}: {stops[lane].detail}")
            else:
                report.troubles.append(
                    f"{lane}: the source lost records that were not replicated: it ended at "
                    f"{topic_watch.last_end(memory.ends, place)} and ends at {ends[place]}"
                )
        self._stop(stops, report)

    def _stop(self, stops: Mapping[Lane, Stop], report: Report) -> None:
        """Stop lanes, but for those that are stopped already, for whatever reason."""
        states = self.states.read(stops)
        running = [lane for lane in stops if states.get(lane, RUNNING).stop is None]
        for lane in running:
            self.states.stop(lane, stops[lane])
        report.figures["lanes-stopped"] = report.figures.get("lanes-stopped", 0) + len(running)

    def _heads(self, topic: str, partitions: Iterable[int]) -> dict[Lane, Head]:
        return self.chains.heads([Lane(self.settings.name, topic, partition) for partition in partitions])

    def _remember(self, memory: Memory, seen: Mapping[str, SeenTopic], ends: Ends) -> None:
        """Write what is new."""
        news = {
            f"topic/{topic}": msgspec.json.encode(each)
            for topic, each in seen.items()
            if memory.topics.get(topic) != each
        }
        old_ends = topic_watch.encode_ends(memory.ends)
        news |= {key: text for key, text in topic_watch.encode_ends(ends).items() if old_ends.get(key) != text}
        if news:
            self.documents.write(self.settings.name, news)
        for key in old_ends.keys() - topic_watch.encode_ends(ends).keys():
            self.documents.delete(self.settings.name, key)

    # Shape

    def _shape(self, counts: Mapping[str, int], report: Report, deadline: Deadline) -> set[str]:
        """Create and grow remote topics; the topics whose remote topic is not there."""
        plan = plan_remote_topics(counts, self.target.partitions(deadline), self.settings)
        configs, failures = self.source.configs(plan.create, deadline) if plan.create else ({}, {})
        failures = {topic: f"the source does not tell its configs: {told}" for topic, told in failures.items()}
        flow = self.settings.flow
        created = self.target.create(
            [
                NewRemoteTopic(
                    name=self._remote(topic),
                    partitions=count,
                    replication_factor=flow.replication_factor,
                    configs=configs_to_copy(
                        configs[topic],
                        flow.config_properties_exclude,
                        defaults_from=self.settings.use_defaults_from,
                    ),
                )
                for topic, count in plan.create.items()
                if topic in configs
            ],
            deadline,
        )
        failures |= {
            topic: told for topic in plan.create if topic in configs and (told := created.get(self._remote(topic)))
        }
        grown = self.target.grow({self._remote(topic): count for topic, count in plan.grow.items()}, deadline)
        stunted = {topic: told for topic in plan.grow if (told := grown.get(self._remote(topic)))}
        report.troubles += [f"{self.settings.name} {topic}: not created: {told}" for topic, told in failures.items()]
        report.troubles += [f"{self.settings.name} {topic}: not grown: {told}" for topic, told in stunted.items()]
        report.figures["topics-created"] = len(plan.create) - len(failures)
        report.figures["topics-grown"] = len(plan.grow) - len(stunted)
        return set(failures)

    def _remote(self, topic: str) -> str:
        return self.settings.policy.remote_topic(self.settings.name.source, topic)

    # Map

    def _map(
        self,
        mappings: Mappings,
        found: Discovery,
        seen: dict[str, SeenTopic],
        unready: Collection[str],
        report: Report,
        deadline: Deadline,
    ) -> None:
        """Bring the mappings to where they should be, as far as time allows."""
        plan = plan_mappings(
            mappings.list(deadline),
            {topic: mapping_request(self.settings, topic) for topic in sorted(found.mapped)},
            flow=self.settings.name,
            keep=found.literals | frozenset(unready),
        )
        changes: list[tuple[str, str, Callable[[], Outcome]]] = [
            *(
                ("created", topic, _later(self._create_mapping, mappings, seen, topic, request, deadline))
                for topic, request in plan.create.items()
            ),
            *(
                ("updated", topic, _later(mappings.update, uuid, fields, deadline))
                for topic, (uuid, fields) in plan.update.items()
            ),
            *(("deleted", topic, _later(mappings.delete, uuid, deadline)) for topic, uuid in plan.delete.items()),
        ]
        done = dict.fromkeys(("created", "updated", "deleted"), 0)
        pending = len(plan.busy)
        for number, (what, topic, change) in enumerate(changes):
            if deadline() < NEAR_SECONDS:
                pending += len(changes) - number
                break
            try:
                outcome = change()
            except Retriable as exc:
                # What Lambda or the source did not do for one, it will hardly do for the rest.
                pending += len(changes) - number
                report.troubles.append(f"{self.settings.name} {topic}: the mapping was not {what}: {exc}")
                break
            except MirrorlessError as exc:
                report.troubles.append(f"{self.settings.name} {topic}: the mapping was not {what}: {exc}")
                continue
            done[what] += outcome == "done"
            pending += outcome == "busy"
        _tell_disabled(plan, report)
        report.figures |= {f"mappings-{what}": count for what, count in done.items()}
        report.figures["mappings-pending"] = pending

    def _create_mapping(
        self, mappings: Mappings, seen: dict[str, SeenTopic], topic: str, request: dict[str, object], deadline: Deadline
    ) -> Outcome:
        """Commit where the topic begins, unless that was done, and create its mapping."""
        known = seen[topic]
        if known.start and not known.start_committed:
            self._commit_start(known, deadline)
            seen[topic] = replace(known, start_committed=True)
            self.documents.write(self.settings.name, {f"topic/{topic}": msgspec.json.encode(seen[topic])})
        return mappings.create(request, deadline)

    def _commit_start(self, known: SeenTopic, deadline: Deadline) -> None:
        """Let the mapping's group begin where the flow does. What it has committed itself stays."""
        group = self.settings.consumer_group(known.topic)
        committed = self.source_groups.committed([group], deadline)
        if group not in committed:
            raise MirrorlessError(
                f"the source does not tell what group {group} has committed",
                where=f"{self.settings.name} {known.topic}",
                hint="grant the function access to the consumer groups mirrorless.* of the source",
            )
        missing = {
            (known.topic, partition): Committed(offset)
            for partition, offset in enumerate(known.start)
            if (known.topic, partition) not in committed[group]
        }
        if missing:
            self.source_groups.commit(group, missing, deadline)

    # The task `configs`

    def sync_configs(self, report: Report, deadline: Deadline) -> None:
        """Bring the remote topics' configs back to their source topics'.

        Raises:
            Retriable: a cluster does not answer.
        """
        settings = self.settings
        on_source, on_target = self.source.partitions(deadline), self.target.partitions(deadline)
        remote = {
            topic: name for topic in discover(on_source, settings).taken if (name := self._remote(topic)) in on_target
        }
        theirs, untold = self.source.configs(remote, deadline)
        ours, untold_here = self.target.configs(remote.values(), deadline)
        report.troubles += [f"{settings.name} {topic}: the source: {told}" for topic, told in untold.items()]
        report.troubles += [f"{settings.name} {name}: the target: {told}" for name, told in untold_here.items()]
        changes: dict[str, ConfigChange] = {}
        for topic, name in remote.items():
            if topic not in theirs or name not in ours:
                continue
            found = drift(
                theirs[topic],
                ours[name],
                exclude=settings.flow.config_properties_exclude,
                protect=settings.config_properties_protect,
                defaults_from=settings.use_defaults_from,
            )
            if found.unknown:
                report.troubles.append(f"{settings.name} {name}: the target does not know {some(found.unknown)}")
            if found.change:
                changes[name] = found.change
        outcomes = self.target.alter_configs(changes, deadline) if changes else {}
        refused = {name: told for name, told in outcomes.items() if told}
        report.troubles += [
            f"{settings.name} {name}: the target refused to set {some(tuple(changes[name].set))}: {told}"
            for name, told in refused.items()
        ]
        altered = [change for name, change in changes.items() if name not in refused]
        report.figures |= {
            "topics-compared": len(remote),
            "topics-altered": len(altered),
            "configs-altered": sum(map(len, altered)),
        }


def _under(prefix: str, documents: Mapping[str, bytes]) -> Iterable[bytes]:
    return (text for key, text in documents.items() if key.startswith(prefix))


def _start_of(place: Place, start: str | int, at: Mapping[Place, int], ends: Mapping[Place, int]) -> int | None:
    """Where a partition begins: at its end, or at a moment; at its end too if nothing is that young."""
    if isinstance(start, str):
        return ends.get(place)
    return ends.get(place) if at.get(place) == topic_watch.UNKNOWN else at.get(place)


def _began(seen: SeenTopic, partition: int) -> int:
    """Where the flow began with a partition: nothing before it was asked for."""
    return seen.start[partition] if partition < len(seen.start) else 0


def _listed(partitions: Iterable[int]) -> str:
    return ", ".join(map(str, partitions))


def _later(act: Callable[..., Outcome], *arguments: object) -> Callable[[], Outcome]:
    return lambda: act(*arguments)


def _tell_disabled(plan: MappingPlan, report: Report) -> None:
    if plan.disabled:
        report.troubles.append(
            f"disabled mappings: {some(plan.disabled)}: nothing is replicated until somebody enables them again"
        )
