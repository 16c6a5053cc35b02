"""What each part of a flow calls, and of what: one row a part, for DynamoDB, Kafka and Lambda. Rights are made of it.

A call of Kafka's client needs rights by `NEEDS`, on the names that it is about; an action of DynamoDB or Lambda is a
right already. Tests hold the rows against the recorded calls and against the adapters, both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from infra.iam import Part
from infra.iam.kafka_names import data_topics, followed_groups, orphans, remote, scheduled_topics, source_topics
from mirrorless.chain.lane import FlowName
from mirrorless.flow.naming import GAPS_GROUP, JOB_GROUP, LOOK_GROUP, PULL_GROUP, flow_prefix
from mirrorless.flow.policy import HEARTBEATS_TOPIC
from mirrorless.mm2.source_offsets import offsets_topic, worker_group

if TYPE_CHECKING:
    from mirrorless.config.flow import Flow

ResourceKind = Literal["cluster", "topic", "group", "transactional-id"]
"""Kafka's kinds of resources, as they are called in ARNs."""

ACTIONS: Final[Mapping[ResourceKind, tuple[str, ...]]] = {
    "cluster": (
        *("Connect", "DescribeCluster", "AlterCluster"),
        *("DescribeClusterDynamicConfiguration", "WriteDataIdempotently"),
    ),
    "topic": (
        *("DescribeTopic", "CreateTopic", "AlterTopic", "ReadData", "WriteData"),
        *("DescribeTopicDynamicConfiguration", "AlterTopicDynamicConfiguration"),
    ),
    "group": ("DescribeGroup", "AlterGroup", "DeleteGroup"),
    "transactional-id": ("DescribeTransactionalId", "AlterTransactionalId"),
}
"""The actions of `kafka-cluster` by what they are about."""

KIND: Final[Mapping[str, ResourceKind]] = {action: kind for kind, actions in ACTIONS.items() for action in actions}

NOT_ON_SERVERLESS: Final = frozenset({"AlterCluster", "DescribeClusterDynamicConfiguration"})
"""What MSK Serverless does not have."""

POLLERS: Final = "(the pollers of a mapping)"
"""Not ours: Lambda's pollers join the mapping's group by the function's role.
(https://docs.aws.amazon.com/lambda/latest/dg/with-msk-permissions.html)"""

IDEMPOTENT_PRODUCER: Final = "(a producer without transactions)"
"""`enable.idempotence`: a request for a producer id of its own, which no call of the client names."""

BROKER_CONFIGS: Final = "describe_configs (of a broker)"

NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    # Clients. A consumer finds its group's coordinator even if it never commits, and hands a refusal to the caller;
    # READ on the group is what MSK lists as required for ReadData.
    "AdminClient": ("Connect",),
    "Producer": ("Connect",),
    "Consumer": ("Connect", "DescribeGroup", "AlterGroup"),
    # Metadata. Topics that may not be described are left out, groups likewise.
    **dict.fromkeys(("list_topics", "describe_topics"), ("DescribeTopic",)),
    **dict.fromkeys(("list_offsets", "offsets_for_times"), ("DescribeTopic",)),
    # Topics.
    "create_topics": ("CreateTopic",),
    "create_partitions": ("AlterTopic",),
    "describe_configs": ("DescribeTopicDynamicConfiguration",),
    "incremental_alter_configs": ("AlterTopicDynamicConfiguration",),
    # ACLs. The configs of a broker show its authorizer, by rights on the cluster.
    "describe_acls": ("DescribeCluster",),
    **dict.fromkeys(("create_acls", "delete_acls"), ("AlterCluster",)),
    BROKER_CONFIGS: ("DescribeClusterDynamicConfiguration",),
    # Groups.
    **dict.fromkeys(("list_consumer_groups", "describe_consumer_groups"), ("DescribeGroup",)),
    "list_consumer_group_offsets": ("DescribeGroup", "DescribeTopic"),
    "alter_consumer_group_offsets": ("AlterGroup", "ReadData"),
    "delete_consumer_groups": ("DeleteGroup",),  # of drills, by the operator's own credentials
    # Writing.
    "init_transactions": ("DescribeTransactionalId", "AlterTransactionalId"),
    **dict.fromkeys(("commit_transaction", "abort_transaction"), ("AlterTransactionalId",)),
    "produce": ("WriteData",),
    IDEMPOTENT_PRODUCER: ("WriteDataIdempotently",),
    # Reading. A poll of a producer serves its callbacks.
    **dict.fromkeys(("poll", "consume"), ("ReadData",)),
    # What asks a broker for nothing that needs a right.
    **dict.fromkeys(("incremental_assign", "incremental_unassign", "close"), ()),
    **dict.fromkeys(("describe_cluster", "begin_transaction", "flush"), ()),
    # Lambda's.
    POLLERS: ("Connect", "DescribeGroup", "AlterGroup", "DescribeTopic", "ReadData"),
}
"""What each call of Kafka's client needs."""


@dataclass(frozen=True, slots=True)
class Use:
    """Some calls on one cluster, and the names that they are about, by kind."""

    calls: tuple[str, ...]
    names: Mapping[ResourceKind, tuple[str, ...]]

    def about(self, kind: ResourceKind) -> tuple[str, ...]:
        """The names of this kind; a cluster needs none.

        Raises:
            ValueError: a call is about such names, and they are forgotten.
        """
        if kind not in self.names:
            raise ValueError(f"{self.calls} are about a {kind}, and none is named")
        return self.names[kind]


Uses = tuple[list[Use], list[Use]]
"""The uses of a flow's source, and those of its target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCalls:
    """What one part calls.

    Attributes:
        tables: DynamoDB's actions by table.
        clusters: its uses of the clusters of a flow.
        mappings: Lambda's actions.
    """

    tables: Mapping[str, tuple[str, ...]]
    clusters: Callable[[Flow], Uses] = lambda _: ([], [])
    mappings: tuple[str, ...] = ()


def _use(
    *calls: str,
    topics: tuple[str, ...] | None = None,
    groups: tuple[str, ...] | None = None,
    ids: tuple[str, ...] | None = None,
) -> Use:
    given: dict[ResourceKind, tuple[str, ...] | None] = {"topic": topics, "group": groups, "transactional-id": ids}
    return Use(calls, {"cluster": ("",), **{kind: names for kind, names in given.items() if names is not None}})


def _forward(flow: Flow) -> Uses:
    """It reads as its mappings' pollers do, and gaps where it copies what no event can carry; it writes."""
    topics = source_topics(flow)
    there = remote(flow, topics)
    return [
        _use(POLLERS, topics=topics, groups=_mapping_groups(flow)),
        _use("AdminClient", "list_topics", "describe_configs", topics=topics),
        *_gaps(flow, topics),
    ], [
        _writer(flow, there),
        _look(there),
        _use("create_topics", "create_partitions", topics=there),
    ]


def _pull(flow: Flow) -> Uses:
    """Positions are committed for the groups of mappings, as these would commit them."""
    topics = scheduled_topics(flow)
    there = remote(flow, topics)
    return [
        _use("AdminClient", "list_topics", "list_offsets", "describe_configs", topics=topics),
        _use("Consumer", "poll", topics=topics, groups=(PULL_GROUP,)),
        _use(*_GROUP_OFFSETS, topics=topics, groups=tuple(map(flow.group_name, topics))),
    ], [
        _writer(flow, there),
        _look(there),
        _use("create_topics", "create_partitions", "describe_configs", topics=there),
    ]


def _control(flow: Flow) -> Uses:
    """It follows groups, writes internal topics, looks at gaps, and settles what is in doubt."""
    settings, policy = flow.settings, flow.policy
    topics = source_topics(flow)
    there = remote(flow, topics)
    gaps = ("AdminClient", "list_offsets", "describe_configs", "Consumer", "consume")
    on_source = [_use(*gaps, topics=topics, groups=(GAPS_GROUP,))]
    on_target = [
        _use("AdminClient", "list_topics", "list_offsets", topics=there),
        _use("Producer", "init_transactions", ids=_ids(flow)),
        _look(there),
    ]
    if flow.stops_at_oversize:
        where = ("describe_consumer_groups", "list_consumer_group_offsets")
        on_source += [*_gaps(flow, topics), _use(*where, topics=topics, groups=_mapping_groups(flow))]
    if settings.emit_heartbeats_enabled:
        on_target.append(_internal(HEARTBEATS_TOPIC))
        if settings.emit_heartbeats_source_enabled:
            on_source.append(_internal(HEARTBEATS_TOPIC))
    if settings.emit_checkpoints_enabled:
        on_source.append(_follow(flow, topics))
        on_target += [_follow(flow, there), _internal(policy.checkpoints_topic(flow.name.source))]
        if flow.counterpart_map:
            on_target.append(_use("Consumer", "consume", topics=there, groups=(GAPS_GROUP,)))
        if settings.sync_group_offsets_enabled:
            on_target.append(_commit(flow, there))
        if settings.sync_group_offsets_reverse_enabled:
            on_source += [_commit(flow, topics), _internal(policy.checkpoints_topic(flow.name.target))]
        if settings.emit_offset_syncs_enabled:
            on_target.append(_internal(policy.offset_syncs_topic(flow.name.source)))
    return on_source, on_target


def _refresh_topics(flow: Flow) -> Uses:
    """It looks at topics, creates and configures the remote ones, and copies ACLs."""
    settings = flow.settings
    topics = source_topics(flow)
    there = remote(flow, topics)
    on_source, on_target = [], []
    if settings.refresh_topics_enabled:
        look = ("AdminClient", "list_topics", "describe_topics", "list_offsets", "describe_configs")
        on_source.append(_use(*look, topics=topics))
        grow = ("AdminClient", "list_topics", "create_topics", "create_partitions", "describe_configs")
        on_target.append(_use(*grow, topics=there))
        if settings.start != "earliest" or flow.has_pull or not flow.mapped_by_arn:
            # The offsets of mappings' groups are set where found topics begin elsewhere than at their first record,
            # where topics change back from schedules, and where the source gets other addresses.
            on_source.append(_use(*_GROUP_OFFSETS, topics=topics, groups=_mapping_groups(flow)))
    if settings.sync_topic_configs_enabled:
        compare = ("AdminClient", "list_topics", "describe_configs")
        on_source.append(_use(*compare, topics=topics))
        on_target.append(_use(*compare, "incremental_alter_configs", topics=there))
    if settings.sync_topic_acls_enabled:
        read = ("AdminClient", "describe_acls", BROKER_CONFIGS)
        on_source += [_use(*read), _use("list_topics", topics=topics)]
        on_target.append(_use(*read, "create_acls", "delete_acls"))
    return on_source, on_target


def _jobs(flow: Flow) -> Uses:
    """`backfill` and `verify` go from the source to the target; `reconcile` copies back what is new there."""
    topics = data_topics(flow)
    there = remote(flow, topics)
    back = flow_prefix(FlowName(flow.name.target, flow.name.source))
    on_source, on_target = (
        [
            _writer(flow, names + orphans(names)),
            _look(names + orphans(names)),
            _read(names + orphans(names)),
            _use("create_topics", topics=orphans(names)),
            # What is brought back is written by the flow turned around.
            _use("init_transactions", "commit_transaction", ids=(f"{back}*",)),
            _follow(flow, names),
            _commit(flow, names),
        ]
        for names in (topics, there)
    )
    if not flow.settings.reconcile_enabled:
        on_source = [_look(topics), _read(topics), _follow(flow, topics)]
    on_source.append(_use(*_GROUP_OFFSETS, topics=topics, groups=_mapping_groups(flow)))
    on_target.append(_use("create_topics", "create_partitions", topics=there))
    return on_source, on_target


def _migrating(flow: Flow) -> Uses:
    """An operator audits copies, finds where MirrorMaker 2 stands, takes over from it, and gives back."""
    topics, policy = data_topics(flow), flow.policy
    alias = policy.prefix(flow.name.source)
    offsets, there = (offsets_topic(alias),), remote(flow, topics)
    said = (policy.offset_syncs_topic(flow.name.source), policy.checkpoints_topic(flow.name.source))
    compare = ("AdminClient", "list_topics", "list_offsets", "describe_configs", "Consumer", "consume")
    return [
        _use(*compare, topics=(*topics, policy.offset_syncs_topic(flow.name.target)), groups=(JOB_GROUP,)),
        _use("alter_consumer_group_offsets", topics=topics, groups=_mapping_groups(flow)),
    ], [
        _use(*compare, topics=there + offsets + said, groups=(JOB_GROUP,)),
        _follow(flow, there),
        _use("describe_consumer_groups", groups=(worker_group(alias),)),
        _use("Producer", IDEMPOTENT_PRODUCER, "produce", topics=offsets),
    ]


_GROUP_OFFSETS: Final = ("describe_consumer_groups", "list_consumer_group_offsets", "alter_consumer_group_offsets")


def _writer(flow: Flow, topics: tuple[str, ...]) -> Use:
    """A producer of ours. Without transactions too it settles those that are left from a time with them."""
    calls = ["Producer", "list_topics", "produce", "init_transactions"]
    if flow.settings.delivery == "exactly_once":
        calls += ["begin_transaction", "commit_transaction", "abort_transaction"]
    else:
        calls.append(IDEMPOTENT_PRODUCER)
    return _use(*calls, topics=topics, ids=_ids(flow))


def _gaps(flow: Flow, topics: tuple[str, ...]) -> list[Use]:
    """Look in gaps for records that no event can carry."""
    calls = ("Consumer", "poll", "offsets_for_times")
    return [_use(*calls, topics=topics, groups=(GAPS_GROUP,))] if flow.stops_at_oversize else []


def _look(topics: tuple[str, ...]) -> Use:
    """Read a place of a log."""
    return _use("AdminClient", "list_offsets", "Consumer", "poll", topics=topics, groups=(LOOK_GROUP,))


def _read(topics: tuple[str, ...]) -> Use:
    """Read logs as jobs do, and see how their topics are made."""
    calls = ("AdminClient", "list_offsets", "Consumer", "consume", "describe_topics", "describe_configs")
    return _use(*calls, topics=topics, groups=(JOB_GROUP, GAPS_GROUP))


def _internal(topic: str) -> Use:
    """Keep an internal topic: looked for, created, written to without transactions."""
    calls = ("AdminClient", "list_topics", "create_topics", "Producer", IDEMPOTENT_PRODUCER, "produce")
    return _use(*calls, topics=(topic,))


def _follow(flow: Flow, topics: tuple[str, ...]) -> Use:
    """See where groups stand."""
    calls = ("AdminClient", "list_consumer_groups", "describe_consumer_groups", "list_consumer_group_offsets")
    return _use(*calls, topics=topics, groups=followed_groups(flow))


def _commit(flow: Flow, topics: tuple[str, ...]) -> Use:
    """Give sleeping groups their offsets."""
    return _use("alter_consumer_group_offsets", topics=topics, groups=followed_groups(flow))


def _mapping_groups(flow: Flow) -> tuple[str, ...]:
    return (flow.group_name("*"),)


def _ids(flow: Flow) -> tuple[str, ...]:
    return (f"{flow_prefix(flow.name)}*",)


_DOCUMENTS: Final = ("Query", "PartiQLInsert", "PartiQLUpdate", "BatchWriteItem")
"""Documents are read by their prefix, and written under a lease; parts of large ones need no condition."""

_LEASE: Final = ("UpdateItem",)
"""A lease is taken, renewed and released on a condition."""

_JOURNALS: Final = ("Query", "BatchGetItem", "PutItem", "UpdateItem")
"""An entry is put on a condition, and settled by an update."""

_CONTROL: Final = PartCalls(
    tables={
        "offset_map": ("Query", "BatchGetItem", "UpdateItem"),
        "lanes": ("BatchGetItem", "Scan", "UpdateItem"),
        "loss_ledger": ("GetItem", "PutItem"),
        "checkpoints": (*_DOCUMENTS, "DeleteItem"),
        "control": _DOCUMENTS + _LEASE,
    },
    clusters=_control,
)

PARTS: Final[Mapping[Part, PartCalls]] = {
    "forward": PartCalls(
        tables={"offset_map": _JOURNALS, "lanes": ("BatchGetItem", "UpdateItem"), "loss_ledger": ("PutItem",)},
        clusters=_forward,
    ),
    "pull": PartCalls(
        tables={
            "offset_map": _JOURNALS,
            "lanes": ("BatchGetItem", "UpdateItem"),
            "loss_ledger": ("PutItem",),
            "control": ("Query", "BatchWriteItem", "UpdateItem"),
        },
        clusters=_pull,
    ),
    "control": _CONTROL,
    "standby": _CONTROL,
    "refresh_topics": PartCalls(
        tables={
            "offset_map": ("Query", "BatchGetItem"),
            "lanes": ("BatchGetItem", "Scan", "UpdateItem"),
            "control": _DOCUMENTS + _LEASE,
        },
        clusters=_refresh_topics,
        mappings=(
            *("ListEventSourceMappings", "CreateEventSourceMapping", "TagResource", "ListTags"),
            *("UpdateEventSourceMapping", "DeleteEventSourceMapping"),
        ),
    ),
    "remove_mappings": PartCalls(
        tables={"control": _LEASE}, mappings=("ListEventSourceMappings", "ListTags", "DeleteEventSourceMapping")
    ),
    "jobs": PartCalls(
        tables={
            "offset_map": _JOURNALS,
            "lanes": ("BatchGetItem", "UpdateItem"),
            "loss_ledger": ("Query", "PutItem"),
            "checkpoints": ("Query", "BatchWriteItem"),
        },
        clusters=_jobs,
    ),
}

MIGRATING: Final = PartCalls(
    tables={
        "offset_map": ("Query", "BatchGetItem", "PutItem"),
        "lanes": ("UpdateItem",),
        "checkpoints": ("Query", "BatchWriteItem"),
        "control": ("Query", "BatchWriteItem"),
    },
    clusters=_migrating,
)
"""What operators call who come from MirrorMaker 2."""

APPLIES_RULES: Final[frozenset[Part]] = frozenset({"forward", "pull", "control", "jobs"})
"""Parts that read the keys of a flow's `transforms`: to mask, or to compare what was masked with its original."""

KEEPS_RULES: Final = ("Query", "BatchWriteItem")
"""A rule is kept in the table `control` before it is used first."""
