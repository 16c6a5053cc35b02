"""Kafka client calls with the operation that brokers authorize and its MSK IAM action.

Operations are Kafka's own (https://kafka.apache.org/documentation/#operations_resources_and_protocols), actions AWS's
(https://docs.aws.amazon.com/msk/latest/developerguide/kafka-actions.html). Calls that need no right have `()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

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
