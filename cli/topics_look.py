"""How do both sides have a flow's topics, and what does the refresh know of them? What `topics` reads, and how.

A silent cluster costs what it alone knows: that is then None.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from cli.deployment import DeployedFlows
from cli.format import numbered
from cli.scheduled import tasks_of
from cli.topics_view import TopicRow, TopicsView
from mirrorless.errors import MirrorlessError
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.topics.discovery import Discovery, discover
from mirrorless.topics.topic_configs import drift
from mirrorless.topics.topic_state import Memory, SeenTopic

if TYPE_CHECKING:
    from mirrorless.adapters.kafka.offsets import KafkaOffsets
    from mirrorless.adapters.kafka.topics import KafkaTopics
    from mirrorless.ports.topics import ConfigEntry
    from mirrorless.settings import ClusterSettings

ANSWER_SECONDS = 10.0
"""How long a cluster may take to tell everything about its topics."""

_T = TypeVar("_T")


def look_at(deployment: DeployedFlows, flow_text: str) -> TopicsView:
    """Read everything about a flow's topics."""
    flow = deployment.flow_name(flow_text)
    settings, stores = deployment.control_settings(flow), deployment.stores(flow)
    memory = Memory.of(stores.documents.read(flow, "topic"))
    troubles = [
        trouble
        for task in tasks_of(stores.documents, settings)
        if task.task in {"topics", "configs"} and task.last is not None
        for trouble in (*task.last.troubles, *([task.last.error] if task.last.error else []))
    ]
    source, target = _Side(settings.flow.source, str(flow)), _Side(settings.flow.target, str(flow))

    # What the source has; where it is silent, what was named and what was seen.
    on_source = source.partitions()
    known = on_source if on_source is not None else dict.fromkeys({*settings.topic_filter.literals, *memory.topics}, 0)
    found = discover(known, settings)
    on_target = target.partitions()

    gone = [topic for topic, seen in memory.topics.items() if seen.gone_at is not None]
    topics = sorted({*found.taken, *found.missing, *gone})
    remote = {topic: settings.policy.remote_topic(flow.source, topic) for topic in topics}
    both = {topic: remote[topic] for topic in found.taken if remote[topic] in (on_target or ())}
    drifted = _drift(both, source, target, settings)

    def row(topic: str) -> TopicRow:
        mapping, seen = deployment.mapping(flow, topic), memory.topics.get(topic)
        here = None if on_source is None else on_source.get(topic, 0)
        there = None if on_target is None else on_target.get(remote[topic], 0)
        return TopicRow(
            topic=topic,
            remote_topic=remote[topic],
            source_partitions=here,
            target_partitions=there,
            owner="deployment" if topic in found.literals else "schedule",
            mapping=mapping.state if mapping is not None else None,
            drift=drifted.get(topic),
            topic_id=seen.topic_id if seen is not None else "",
            late=seen.late if seen is not None else False,
            trouble=trouble_of(seen, here=here, there=there),
            needs_operator=seen is not None and seen.recreated is not None,
        )

    return TopicsView(
        flow=str(flow),
        topics=[row(topic) for topic in topics],
        refused=_refused(found) if on_source is not None else {},
        troubles=[*troubles, *(side.trouble for side in (source, target) if side.trouble)],
    )


def trouble_of(seen: SeenTopic | None, *, here: int | None, there: int | None) -> str:
    """What the operator should know of a topic, in a few words.

    Args:
        seen: what the refresh knows of it.
        here: its partitions on the source.
        there: the remote topic's partitions.
    """
    if seen is not None and seen.recreated is not None:
        return f"re-created: `lanes reset` is due for {numbered(len(seen.recreated.waiting), 'lane')}"
    if here == 0:
        return "not on the source" if seen is None else "gone from the source"
    if there == 0:
        return "no remote topic yet"
    if here is not None and there is not None and there < here:
        return "the remote topic has fewer partitions"
    return ""


def _refused(found: Discovery) -> dict[str, Sequence[str]]:
    return {str(cause): names for cause, names in found.refused.items()}


def _drift(
    both: Mapping[str, str], source: _Side, target: _Side, settings: ControlSettings
) -> dict[str, tuple[str, ...]]:
    """The drifted configs of each topic that both sides describe. `both`: remote topic by source topic."""
    if not both:
        return {}
    here, there = source.configs(both), target.configs(both.values())
    found = {}
    for topic, remote_topic in both.items():
        if topic not in here or remote_topic not in there:
            continue
        change = drift(
            here[topic],
            there[remote_topic],
            exclude=settings.flow.config_properties_exclude,
            protect=settings.config_properties_protect,
            defaults_from=settings.use_defaults_from,
        ).change
        found[topic] = tuple(sorted({*change.set, *change.delete}))
    return found


class _Side:
    """One cluster's topics, where it can be reached. After its first silence it is not asked again."""

    def __init__(self, cluster: ClusterSettings, flow: str) -> None:
        self._cluster = cluster
        self._flow = flow
        self.trouble = ""

    def partitions(self) -> dict[str, int] | None:
        """Every topic with its number of partitions; None when the cluster is silent."""
        # By the one client that keeps silent about a silent cluster: the functions' clients log what they meet.
        return self._ask(lambda: _offsets(self._cluster, self._flow).partitions())

    def configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        """Every config of the topics that the cluster describes."""
        end = time.monotonic() + ANSWER_SECONDS
        wanted = list(names)
        return (
            self._ask(lambda: _topics(self._cluster, self._flow).configs(wanted, lambda: end - time.monotonic())[0])
            or {}
        )

    def _ask(self, question: Callable[[], _T]) -> _T | None:
        if self.trouble:
            return None
        try:
            return question()
        except (MirrorlessError, ImportError) as exc:
            self.trouble = str(exc)
            return None


def _offsets(cluster: ClusterSettings, flow: str) -> KafkaOffsets:
    from mirrorless.adapters.kafka.offsets import KafkaOffsets  # noqa: PLC0415 -- commands without Kafka start sooner

    return KafkaOffsets(cluster, flow=flow)


def _topics(cluster: ClusterSettings, flow: str) -> KafkaTopics:
    from mirrorless.adapters.kafka.topics import KafkaTopics  # noqa: PLC0415 -- same

    return KafkaTopics(cluster, flow=flow, role="operator")
