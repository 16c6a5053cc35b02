"""MSK IAM (`kafka-cluster`) rights of each part, where a cluster authenticates by IAM.

A part is described by the calls that it makes and the names that they concern; `OPERATIONS` has what a call needs,
`kafka_names` the flow's names. All other clusters need a secret, and have ACLs of their own.

    forward               reads the flow's topics as its mappings' pollers do, and gaps where those copy what no event
                          can carry; writes the remote topics
    pull                  reads the topics that may be scheduled, writes their remote topics
    control, standby      follow groups, write internal topics, look at gaps, settle what is in doubt
    refresh_topics        looks at topics, creates and configures the remote ones, copies ACLs
    jobs                  read and write both sides

A role of another account than the cluster's needs the cluster's own policy as well
(https://docs.aws.amazon.com/msk/latest/developerguide/mvpc-cross-account-permissions.html).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from infra.deployment import Location
from infra.iam import Part, Right
from infra.iam.kafka_names import (
    data_topics,
    distinct,
    followed_groups,
    orphans,
    remote,
    scheduled_topics,
    source_topics,
)
from mirrorless.chain.lane import FlowName
from mirrorless.config.authentication_rules import is_serverless
from mirrorless.config.cluster import Iam
from mirrorless.flow.naming import GAPS_GROUP, JOB_GROUP, LOOK_GROUP, PULL_GROUP, flow_prefix
from mirrorless.flow.policy import HEARTBEATS_TOPIC

if TYPE_CHECKING:
    from infra.deployment import FlowDeployment
    from mirrorless.config.cluster import Cluster
    from mirrorless.config.flow import Flow

_WHY: Final[Mapping[ResourceKind, str]] = {
    "cluster": "",
    "topic": "topics are found by pattern, are heartbeats of any cluster, or begin as `topics.rights.prefixes` says",
    "group": "groups are followed by pattern, and each mapping has a group of its own",
    "transactional-id": "each execution environment has a transactional id of its own",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Some calls, and the names that they are about. None: they are about no such thing."""

    calls: tuple[str, ...]
    topics: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    ids: tuple[str, ...] | None = None

    def about(self, kind: ResourceKind) -> tuple[str, ...]:
        """The names of this kind; a cluster needs none.

        Raises:
            ValueError: a call is about such names, and they are forgotten.
        """
        names = {"cluster": ("",), "topic": self.topics, "group": self.groups, "transactional-id": self.ids}[kind]
        if names is None:
            raise ValueError(f"{self.calls} are about a {kind}, and none is named")
        return names


def rights(part: Part, flow: FlowDeployment) -> list[Right]:
    """What a part of a flow may do on the flow's clusters."""
    uses = _USES.get(part)
    if uses is None:
        return []
    on_source, on_target = uses(flow.flow)
    statements = [*_statements(flow.flow.source, on_source), *_statements(flow.flow.target, on_target)]
    return [_right(statement) for statement in statements]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """The same actions on some names of one kind."""

    cluster: Cluster
    kind: ResourceKind
    actions: tuple[str, ...]
    names: tuple[str, ...]


def _statements(cluster: Cluster, uses: Iterable[Use]) -> Iterator[_Statement]:
    """What some uses of a cluster need, if it authenticates by IAM; what is about the same names together."""
    if not isinstance(cluster.authentication, Iam):
        return
    serverless = is_serverless(cluster)
    actions: dict[tuple[ResourceKind, str], set[str]] = {}
    for use in uses:
        for operation in (operation for call in use.calls for operation in CALLS[call]):
            if operation.serverless or not serverless:
                for name in use.about(operation.kind):
                    actions.setdefault((operation.kind, name), set()).add(f"kafka-cluster:{operation.action}")
    together: dict[tuple[ResourceKind, tuple[str, ...]], list[str]] = {}
    for (kind, name), allowed in actions.items():
        together.setdefault((kind, tuple(sorted(allowed))), []).append(name)
    for (kind, allowed_there), names in together.items():
        yield _Statement(cluster=cluster, kind=kind, actions=allowed_there, names=tuple(names))


def _right(statement: _Statement) -> Right:
    """The statement by ARNs."""
    path, unknown = _path(statement.cluster)
    names = distinct(statement.names)
    wild = _WHY[statement.kind] if any("*" in name for name in names) else ""
    return Right(
        actions=statement.actions,
        resources=tuple(_arn(statement.cluster, statement.kind, f"{path}/{name}" if name else path) for name in names),
        reason="; ".join(filter(None, (unknown, wild))),
    )


def _arn(cluster: Cluster, kind: ResourceKind, resource: str) -> str:
    """The ARN of something on a cluster."""
    place = Location(account=_owner(cluster), region=cluster.region or "*")
    return place.arn("kafka", f"{kind}/{resource}")


def _path(cluster: Cluster) -> tuple[str, str]:
    """The name and the id of a cluster as ARNs have them, and why a part of it is missing."""
    kind, *rest = cluster.msk_arn.split(":", 5)[5].split("/") if cluster.msk_arn else [""]
    if kind == "cluster":
        return "/".join(rest), ""
    if kind == "vpc-connection":
        # .../vpc-connection/<the cluster's account>/<the cluster's name>/<the connection's own id>
        return f"{rest[1]}/*", f"the ARN of a VPC connection lacks the id of {cluster.alias}"
    return "*/*", f"the name of {cluster.alias} is in `msk.cluster.arn` alone, which is not set"


def _owner(cluster: Cluster) -> str:
    """The account of a cluster; that of a VPC connection is its client's."""
    if cluster.msk_arn and ":vpc-connection/" in cluster.msk_arn:
        return cluster.msk_arn.split("/")[1]
    return cluster.account or "*"


# The parts. Each answers with its uses of the source and of the target.

_Uses = tuple[list[Use], list[Use]]


def _forward(flow: Flow) -> _Uses:
    topics = source_topics(flow)
    there = remote(flow, topics)
    return [
        Use(calls=(POLLERS,), topics=topics, groups=_mapping_groups(flow)),
        Use(calls=("AdminClient", "list_topics", "describe_configs"), topics=topics),
        *_gaps(flow, topics),
    ], [
        _writer(flow, there),
        _look(there),
        Use(calls=("create_topics", "create_partitions"), topics=there),
    ]


def _pull(flow: Flow) -> _Uses:
    """Positions are committed for the groups of mappings, as these would commit them."""
    topics = scheduled_topics(flow)
    there = remote(flow, topics)
    groups = tuple(map(flow.group_name, topics))
    return [
        Use(calls=("AdminClient", "list_topics", "list_offsets", "describe_configs"), topics=topics),
        Use(calls=("Consumer", "poll"), topics=topics, groups=(PULL_GROUP,)),
        Use(calls=_GROUP_OFFSETS, topics=topics, groups=groups),
    ], [
        _writer(flow, there),
        _look(there),
        Use(calls=("create_topics", "create_partitions", "describe_configs"), topics=there),
    ]


def _control(flow: Flow) -> _Uses:
    settings, policy = flow.settings, flow.policy
    topics = source_topics(flow)
    there = remote(flow, topics)
    gaps = ("AdminClient", "list_offsets", "describe_configs", "Consumer", "consume")
    on_source = [Use(calls=gaps, topics=topics, groups=(GAPS_GROUP,))]
    on_target = [
        Use(calls=("AdminClient", "list_topics", "list_offsets"), topics=there),
        Use(calls=("Producer", "init_transactions"), ids=_ids(flow)),
        _look(there),
    ]
    if flow.copies_oversize:
        where = ("describe_consumer_groups", "list_consumer_group_offsets")
        on_source += [*_gaps(flow, topics), Use(calls=where, topics=topics, groups=_mapping_groups(flow))]
        on_target += [_writer(flow, there), Use(calls=("create_topics", "create_partitions"), topics=there)]
    if settings.emit_heartbeats_enabled:
        on_target.append(_internal(HEARTBEATS_TOPIC))
        if settings.emit_heartbeats_source_enabled:
            on_source.append(_internal(HEARTBEATS_TOPIC))
    if settings.emit_checkpoints_enabled:
        on_source.append(_follow(flow, topics))
        on_target += [_follow(flow, there), _internal(policy.checkpoints_topic(flow.name.source))]
        if flow.counterpart_map:
            on_target.append(Use(calls=("Consumer", "consume"), topics=there, groups=(GAPS_GROUP,)))
        if settings.sync_group_offsets_enabled:
            on_target.append(_commit(flow, there))
        if settings.sync_group_offsets_reverse_enabled:
            on_source += [_commit(flow, topics), _internal(policy.checkpoints_topic(flow.name.target))]
        if settings.emit_offset_syncs_enabled:
            on_target.append(_internal(policy.offset_syncs_topic(flow.name.source)))
    return on_source, on_target


def _refresh_topics(flow: Flow) -> _Uses:
    settings = flow.settings
    topics = source_topics(flow)
    there = remote(flow, topics)
    on_source, on_target = [], []
    if settings.refresh_topics_enabled:
        look = ("AdminClient", "list_topics", "describe_topics", "list_offsets", "describe_configs")
        on_source.append(Use(calls=look, topics=topics))
        grow = ("AdminClient", "list_topics", "create_topics", "create_partitions", "describe_configs")
        on_target.append(Use(calls=grow, topics=there))
        if settings.start != "earliest" or flow.has_pull or not flow.mapped_by_arn:
            # The offsets of mappings' groups are set where found topics begin elsewhere than at their first record,
            # where topics change back from schedules, and where the source gets other addresses.
            on_source.append(Use(calls=_GROUP_OFFSETS, topics=topics, groups=_mapping_groups(flow)))
    if settings.sync_topic_configs_enabled:
        compare = ("AdminClient", "list_topics", "describe_configs")
        on_source.append(Use(calls=compare, topics=topics))
        on_target.append(Use(calls=(*compare, "incremental_alter_configs"), topics=there))
    if settings.sync_topic_acls_enabled:
        read = ("AdminClient", "describe_acls", BROKER_CONFIGS)
        on_source += [Use(calls=read), Use(calls=("list_topics",), topics=topics)]
        on_target.append(Use(calls=(*read, "create_acls", "delete_acls")))
    return on_source, on_target


def _jobs(flow: Flow) -> _Uses:
    """`backfill` and `verify` go from the source to the target; `reconcile` copies back what is new there."""
    topics = data_topics(flow)
    there = remote(flow, topics)
    on_source, on_target = (
        [
            _writer(flow, names + orphans(names)),
            _look(names + orphans(names)),
            _read(names + orphans(names)),
            Use(calls=("create_topics",), topics=orphans(names)),
            # What is brought back is written by the flow turned around.
            Use(
                calls=("init_transactions", "commit_transaction"),
                ids=(f"{flow_prefix(FlowName(flow.name.target, flow.name.source))}*",),
            ),
            _follow(flow, names),
            _commit(flow, names),
        ]
        for names in (topics, there)
    )
    if not flow.settings.reconcile_enabled:
        on_source = [_look(topics), _read(topics), _follow(flow, topics)]
    on_source.append(Use(calls=_GROUP_OFFSETS, topics=topics, groups=_mapping_groups(flow)))
    on_target.append(Use(calls=("create_topics", "create_partitions"), topics=there))
    return on_source, on_target


_USES: Final[Mapping[Part, Callable[[Flow], _Uses]]] = {
    "forward": _forward,
    "pull": _pull,
    "control": _control,
    "standby": _control,
    "refresh_topics": _refresh_topics,
    "jobs": _jobs,
}


_GROUP_OFFSETS: Final = ("describe_consumer_groups", "list_consumer_group_offsets", "alter_consumer_group_offsets")


def _writer(flow: Flow, topics: tuple[str, ...]) -> Use:
    """A producer of ours. Without transactions too it settles those that are left from a time with them."""
    calls = ["Producer", "list_topics", "produce", "init_transactions"]
    if flow.settings.delivery == "exactly_once":
        calls += ["begin_transaction", "commit_transaction", "abort_transaction"]
    else:
        calls.append(IDEMPOTENT_PRODUCER)
    return Use(calls=tuple(calls), topics=topics, ids=_ids(flow))


def _gaps(flow: Flow, topics: tuple[str, ...]) -> list[Use]:
    """Read gaps for records that no event can carry."""
    calls = ("Consumer", "poll", "get_watermark_offsets")
    return [Use(calls=calls, topics=topics, groups=(GAPS_GROUP,))] if flow.copies_oversize else []


def _look(topics: tuple[str, ...]) -> Use:
    """Read a place of a log."""
    return Use(calls=("AdminClient", "list_offsets", "Consumer", "poll"), topics=topics, groups=(LOOK_GROUP,))


def _read(topics: tuple[str, ...]) -> Use:
    """Read logs as jobs do, and see how their topics are made."""
    calls = ("AdminClient", "list_offsets", "Consumer", "consume", "describe_topics", "describe_configs")
    return Use(calls=calls, topics=topics, groups=(JOB_GROUP, GAPS_GROUP))


def _internal(topic: str) -> Use:
    """Keep an internal topic: looked for, created, written to without transactions."""
    calls = ("AdminClient", "list_topics", "create_topics", "Producer", IDEMPOTENT_PRODUCER, "produce")
    return Use(calls=calls, topics=(topic,))


def _follow(flow: Flow, topics: tuple[str, ...]) -> Use:
    """See where groups stand."""
    calls = ("AdminClient", "list_consumer_groups", "describe_consumer_groups", "list_consumer_group_offsets")
    return Use(calls=calls, topics=topics, groups=followed_groups(flow))


def _commit(flow: Flow, topics: tuple[str, ...]) -> Use:
    """Give sleeping groups their offsets."""
    return Use(calls=("alter_consumer_group_offsets",), topics=topics, groups=followed_groups(flow))


def _mapping_groups(flow: Flow) -> tuple[str, ...]:
    return (flow.group_name("*"),)


def _ids(flow: Flow) -> tuple[str, ...]:
    return (f"{flow_prefix(flow.name)}*",)


ResourceKind = Literal["cluster", "topic", "group", "transactional-id"]
"""The kinds of resources, as they are called in ARNs."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on one kind of resource.

    Attributes:
        kind: of the resource.
        name: in Kafka's ACLs; `CONNECT` is MSK's alone.
        action: in IAM, without the prefix `kafka-cluster:`.
        serverless: whether MSK Serverless has it.
    """

    kind: ResourceKind
    name: str
    action: str
    serverless: bool = True


CONNECT: Final = Operation("cluster", "CONNECT", "Connect")
DESCRIBE_CLUSTER: Final = Operation("cluster", "DESCRIBE", "DescribeCluster")
ALTER_CLUSTER: Final = Operation("cluster", "ALTER", "AlterCluster", serverless=False)
DESCRIBE_CLUSTER_CONFIGS: Final = Operation(
    "cluster", "DESCRIBE_CONFIGS", "DescribeClusterDynamicConfiguration", serverless=False
)
IDEMPOTENT_WRITE: Final = Operation("cluster", "IDEMPOTENT_WRITE", "WriteDataIdempotently")
DESCRIBE_TOPIC: Final = Operation("topic", "DESCRIBE", "DescribeTopic")
CREATE_TOPIC: Final = Operation("topic", "CREATE", "CreateTopic")
ALTER_TOPIC: Final = Operation("topic", "ALTER", "AlterTopic")
DESCRIBE_TOPIC_CONFIGS: Final = Operation("topic", "DESCRIBE_CONFIGS", "DescribeTopicDynamicConfiguration")
ALTER_TOPIC_CONFIGS: Final = Operation("topic", "ALTER_CONFIGS", "AlterTopicDynamicConfiguration")
READ_TOPIC: Final = Operation("topic", "READ", "ReadData")
WRITE_TOPIC: Final = Operation("topic", "WRITE", "WriteData")
DESCRIBE_GROUP: Final = Operation("group", "DESCRIBE", "DescribeGroup")
READ_GROUP: Final = Operation("group", "READ", "AlterGroup")
DELETE_GROUP: Final = Operation("group", "DELETE", "DeleteGroup")
DESCRIBE_ID: Final = Operation("transactional-id", "DESCRIBE", "DescribeTransactionalId")
WRITE_ID: Final = Operation("transactional-id", "WRITE", "AlterTransactionalId")

POLLERS: Final = "(the pollers of a mapping)"
"""Not ours: Lambda's pollers join the mapping's group by the function's role.
(https://docs.aws.amazon.com/lambda/latest/dg/with-msk-permissions.html)"""

IDEMPOTENT_PRODUCER: Final = "(a producer without transactions)"
"""`enable.idempotence`: a request for a producer id of its own, which no call of the client names."""

BROKER_CONFIGS: Final = "describe_configs (of a broker)"

CALLS: Final[Mapping[str, tuple[Operation, ...]]] = {
    # Clients. A consumer finds its group's coordinator even if it never commits, and hands a refusal to the caller;
    # READ on the group is what MSK lists as required for ReadData.
    "AdminClient": (CONNECT,),
    "Producer": (CONNECT,),
    "Consumer": (CONNECT, DESCRIBE_GROUP, READ_GROUP),
    # Metadata. Topics that may not be described are left out, groups likewise.
    "list_topics": (DESCRIBE_TOPIC,),
    "describe_topics": (DESCRIBE_TOPIC,),
    "list_offsets": (DESCRIBE_TOPIC,),
    "offsets_for_times": (DESCRIBE_TOPIC,),
    "get_watermark_offsets": (DESCRIBE_TOPIC,),
    "describe_cluster": (),
    # Topics.
    "create_topics": (CREATE_TOPIC,),
    "create_partitions": (ALTER_TOPIC,),
    "describe_configs": (DESCRIBE_TOPIC_CONFIGS,),
    "incremental_alter_configs": (ALTER_TOPIC_CONFIGS,),
    # ACLs. The configs of a broker show its authorizer, by rights on the cluster.
    "describe_acls": (DESCRIBE_CLUSTER,),
    "create_acls": (ALTER_CLUSTER,),
    "delete_acls": (ALTER_CLUSTER,),
    BROKER_CONFIGS: (DESCRIBE_CLUSTER_CONFIGS,),
    # Groups.
    "list_consumer_groups": (DESCRIBE_GROUP,),
    "describe_consumer_groups": (DESCRIBE_GROUP,),
    "list_consumer_group_offsets": (DESCRIBE_GROUP, DESCRIBE_TOPIC),
    "alter_consumer_group_offsets": (READ_GROUP, READ_TOPIC),
    "delete_consumer_groups": (DELETE_GROUP,),  # of drills, by the operator's own credentials
    # Writing.
    "init_transactions": (DESCRIBE_ID, WRITE_ID),
    "begin_transaction": (),
    "produce": (WRITE_TOPIC,),
    "flush": (),
    "commit_transaction": (WRITE_ID,),
    "abort_transaction": (WRITE_ID,),
    IDEMPOTENT_PRODUCER: (IDEMPOTENT_WRITE,),
    # Reading. A poll of a producer serves its callbacks.
    "assign": (),
    "incremental_assign": (),
    "incremental_unassign": (),
    "unassign": (),
    "pause": (),
    "poll": (READ_TOPIC,),
    "consume": (READ_TOPIC,),
    "close": (),
    # Lambda's.
    POLLERS: (CONNECT, DESCRIBE_GROUP, READ_GROUP, DESCRIBE_TOPIC, READ_TOPIC),
}
