"""`mirrorless topics FLOW`: the topics of a flow on both clusters, and those that it refuses.

A cluster may be down: what it alone has is then None.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from cli.args import add_deployment, add_flow
from cli.clusters import ClusterView, offsets_of
from cli.deployment import DeployedFlows, TopicTrigger, triggers_of
from cli.flow_status import tasks_of
from cli.output import UNKNOWN, TableColumns, console, picked, print_json, say, table
from mirrorless.clock import deadline_in
from mirrorless.flow.settings import FlowSettings
from mirrorless.flow.triggers import SCHEDULE
from mirrorless.reports.format import numbered
from mirrorless.topics.configs import drift
from mirrorless.topics.discovery import Discovery, discover
from mirrorless.topics.topic_state import StoredTopics, TopicState

if TYPE_CHECKING:
    from mirrorless.flow.settings import ClusterSettings
    from mirrorless.ports.topics import ConfigEntry

ANSWER_SECONDS = 10.0
"""Limit for the configs of a flow's topics on one cluster."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `topics`."""
    parser = subparsers.add_parser(
        "topics",
        help="list the flow's topics on both sides: partitions, mappings, config drift, and what is refused",
        epilog="Example: mirrorless topics 'us-east->eu-west'",
    )
    add_flow(parser)
    add_deployment(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Show both clusters and the state of the refresh. Exit code 1 where a topic needs the operator."""
    view = read_topics(DeployedFlows.of(arguments), arguments.flow)
    if arguments.json:
        print_json(as_json(view))
    else:
        show(view)
    return int(view.needs_operator)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """One topic of the flow. None means not known."""

    topic: str
    remote_topic: str
    source_partitions: int | None
    """0 where the source has no such topic."""
    target_partitions: int | None
    """0 where it has not been created yet."""
    trigger: TopicTrigger
    owner: Literal["deployment", "refresh_topics"] | None
    """What creates its mapping: the deployment, or `refresh_topics`; None where it is to have none."""
    mapping: str | None
    """The mapping's state, in a lab; None on AWS, and where there is none."""
    drift: tuple[str, ...] | None
    """Names of configs that the next sync will set or delete on the remote topic."""
    topic_id: str
    """Of the replicated source topic; empty before the first refresh."""
    late: bool
    """Whether it was created after the flow's first refresh."""
    trouble: str
    """What is wrong with it, in a few words; empty for nothing."""
    needs_operator: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsView:
    """The topics of one flow."""

    flow: str
    topics: Sequence[TopicRow]
    refused: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Topics that the flow's list matches and the flow cannot replicate, by cause."""
    troubles: Sequence[str] = ()
    """Reports of the newest refresh, and clusters that do not answer."""

    @property
    def needs_operator(self) -> bool:
        """Whether a topic does."""
        return any(row.needs_operator for row in self.topics)


def read_topics(deployment: DeployedFlows, flow_text: str) -> TopicsView:
    """Read a flow's topics."""
    flow = deployment.flow_name(flow_text)
    settings, stores = deployment.looking(flow), deployment.stores(flow)
    memory = StoredTopics.of(stores.documents.read(flow, "topic"))
    troubles = [
        trouble
        for task in tasks_of(stores.documents, settings)
        if task.task in {"topics", "configs"} and task.last is not None
        for trouble in (*task.last.troubles, *([task.last.error] if task.last.error else []))
    ]
    source, target = (ClusterView(partial(offsets_of, each, flow)) for each in (settings.source, settings.target))

    # Where the source does not answer: topics named literally, and topics of earlier refreshes.
    on_source = source.partitions()
    known = on_source if on_source is not None else dict.fromkeys({*settings.topic_filter.literals, *memory.topics}, 0)
    found = discover(known, settings)
    on_target = target.partitions()

    gone = [topic for topic, seen in memory.topics.items() if seen.gone_at is not None]
    topics = sorted({*found.taken, *found.missing, *gone})
    remote = {topic: settings.policy.remote_topic(flow.source, topic) for topic in topics}
    both = {topic: remote[topic] for topic in found.taken if remote[topic] in (on_target or ())}
    drifted, trigger = _drift(both, source, target, settings), triggers_of(settings, stores.documents)

    def row(topic: str) -> TopicRow:
        mapping, seen = deployment.mapping(flow, topic), memory.topics.get(topic)
        here = None if on_source is None else on_source.get(topic, 0)
        there = None if on_target is None else on_target.get(remote[topic], 0)
        return TopicRow(
            topic=topic,
            remote_topic=remote[topic],
            source_partitions=here,
            target_partitions=there,
            trigger=trigger(topic),
            owner=_owner(topic, found, settings),
            mapping=mapping.state if mapping is not None else None,
            drift=drifted.get(topic),
            topic_id=seen.topic_id if seen is not None else "",
            late=seen.late if seen is not None else False,
            trouble=trouble_of(seen, here=here, there=there),
            needs_operator=seen is not None and (seen.recreated or seen.remote_recreated) is not None,
        )

    return TopicsView(
        flow=str(flow),
        topics=[row(topic) for topic in topics],
        refused={str(cause): each for cause, each in found.refused.items()} if on_source is not None else {},
        troubles=[*troubles, *(side.trouble for side in (source, target) if side.trouble)],
    )


def _owner(topic: str, found: Discovery, settings: FlowSettings) -> Literal["deployment", "refresh_topics"] | None:
    if settings.triggers.of(topic) == SCHEDULE:
        return None
    return "deployment" if topic in found.template else "refresh_topics"


def trouble_of(seen: TopicState | None, *, here: int | None, there: int | None) -> str:
    """What is wrong with a topic, in a few words; empty for nothing.

    Args:
        seen: its state in the refresh.
        here: its partitions on the source.
        there: the remote topic's partitions.
    """
    if seen is not None and seen.recreated is not None:
        return f"re-created: a reset is due for {numbered(len(seen.recreated.waiting), 'lane')}"
    if seen is not None and seen.remote_recreated is not None:
        lanes = numbered(len(seen.remote_recreated.waiting), "lane")
        return f"the remote topic was re-created: a reset is due for {lanes}"
    if here == 0:
        return "not on the source" if seen is None else "gone from the source"
    if there == 0:
        return "no remote topic yet"
    if here is not None and there is not None and there < here:
        return "the remote topic has fewer partitions"
    return ""


def _drift(
    both: Mapping[str, str], source: ClusterView, target: ClusterView, settings: FlowSettings
) -> dict[str, tuple[str, ...]]:
    """The drifted configs of each topic that both clusters describe. `both`: remote topic by source topic."""
    from mirrorless.adapters.kafka.topics import KafkaTopics  # noqa: PLC0415 -- commands without Kafka start sooner

    def configs(view: ClusterView, cluster: ClusterSettings, names: Iterable[str]) -> Mapping[str, list[ConfigEntry]]:
        topics = KafkaTopics(cluster, flow=str(settings.name), role="operator")
        return view.read(lambda: topics.configs(list(names), deadline_in(ANSWER_SECONDS))[0]) or {}

    here = configs(source, settings.source, both) if both else {}
    there = configs(target, settings.target, both.values()) if both else {}
    found = {}
    for topic, remote_topic in both.items():
        if topic in here and remote_topic in there:
            change = drift(
                here[topic],
                there[remote_topic],
                exclude=settings.config_properties_exclude,
                protect=settings.config_properties_protect,
                defaults_from=settings.use_defaults_from,
            ).change
            found[topic] = tuple(sorted({*change.set, *change.delete}))
    return found


def as_json(view: TopicsView) -> dict[str, Any]:
    """The topics for programs; null for what is not known."""
    return picked(view, "flow needs_operator refused troubles") | {"topics": [_row_as_json(row) for row in view.topics]}


def _row_as_json(row: TopicRow) -> dict[str, Any]:
    return picked(row, "topic remote_topic source_partitions target_partitions trouble") | {
        "trigger": row.trigger.configured,
        "trigger_changing": row.trigger.changing,
        "mapping_made_by": row.owner,
        "mapping_state": row.mapping,
        "config_drift": row.drift,
        "topic_id": row.topic_id or None,
        "found_late": row.late,
    }


def show(view: TopicsView) -> None:
    """Print the topics."""
    console().print(table(view.flow, _COLUMNS, view.topics))
    for row in view.topics:
        if row.drift:
            say(f"  {row.topic}: {', '.join(row.drift)} differ; the next sync sets them as on the source.")
    for cause, names in view.refused.items():
        say(f"  refused ({cause}): {', '.join(names)}")
    for trouble in view.troubles:
        say(f"  {trouble}")


def _partitions(row: TopicRow) -> str:
    here, there = (UNKNOWN if count is None else str(count) for count in (row.source_partitions, row.target_partitions))
    return here if here == there else f"{here} -> {there}"


_COLUMNS: TableColumns[TopicRow] = (
    ("=topic", lambda row: row.topic),
    ("=remote topic", lambda row: row.remote_topic),
    (">partitions", _partitions),
    ("trigger", lambda row: row.trigger),
    ("mapping by", lambda row: ": ".join(filter(None, (row.owner, row.mapping))) or "-"),
    (">drift", lambda row: UNKNOWN if row.drift is None else len(row.drift)),
    ("=topic id", lambda row: row.topic_id or "-"),
    ("late", lambda row: "late" if row.late else ""),
    ("trouble", lambda row: f"! {row.trouble}" if row.needs_operator else row.trouble),
)
