"""Names of everything that the replication owns: in environments, in Kafka, in DynamoDB and on Lambda.

A cluster alias has neither a dot nor an underscore, so no two flows share a name.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from mirrorless.chain.lane import FlowName, Lane

# What is foreign, as a part of a key


def bounded(name: str, size: int) -> str:
    """Return a foreign name, or, where it has more bytes than `size`, its beginning and a digest of the whole.

    What is made so is longer than `size`, so no other name is the same. It has 33 bytes more at most.
    """
    encoded = name.encode()
    if len(encoded) <= size:
        return name
    # A character that is cut in two leaves at most three bytes out.
    return f"{encoded[:size].decode(errors='ignore')}~{sha256(encoded).hexdigest()[:32]}"


# Environment variables

FLOW_VARIABLE: Final = "MIRRORLESS_FLOW"
"""A flow's settings as JSON: `mirrorless.flow.settings`."""
PARTIAL_RESPONSES_VARIABLE: Final = "MIRRORLESS_PARTIAL_RESPONSES"
"""`true` where a mapping has ReportBatchItemFailures, and the forwarder names the records that failed."""
NAMESPACE_VARIABLE: Final = "MIRRORLESS_NAMESPACE"
"""The namespace of metrics, where the deployment has a name of its own."""
CONTROL_CALLS_VARIABLE: Final = "MIRRORLESS_CONTROL_CALLS_PER_SECOND"
"""A flow's share of the control calls of Lambda."""
METRICS_PER_TOPIC_VARIABLE: Final = "MIRRORLESS_METRICS_PER_TOPIC"
"""`true` emits metrics of each topic beside the flow's."""
PROFILE_VARIABLE: Final = "MIRRORLESS_PROFILE"
"""`true` prints a stage profile of each event."""
CLIENT_LOG_VARIABLE: Final = "MIRRORLESS_CLIENT_LOG"
"""librdkafka's log level, 0 to 7, of every client: 5 where it is not set, 0 in the operator's commands."""
KEYS_VARIABLE: Final = "MIRRORLESS_KEYS"
"""A lab's folder of keys, in the place of Secrets Manager and KMS: `NAME.json` is what the secret would have."""
ENDS_ONCE_VARIABLE: Final = "MIRRORLESS_ENDS_ONCE"
"""Set where a job's driver ends its run in any case: `mirrorless.jobs.submission`."""
SPARK_MASTER_VARIABLE: Final = "MIRRORLESS_SPARK_MASTER"
"""Spark's master of a job on one machine; EMR Serverless sets its own."""

# Kafka

OWN_NAMES: Final = "mirrorless"
"""Prefix of all consumer groups and transactional ids of the replication."""
OWN_GROUPS: Final = f"{OWN_NAMES}."
"""Prefix of the consumer groups of event source mappings, which read for the replication and are never followed."""
LOOK_GROUP: Final = "mirrorless-look"
GAPS_GROUP: Final = "mirrorless-gaps"
JOB_GROUP: Final = "mirrorless-job"
PULL_GROUP: Final = "mirrorless-pull"
"""Group ids of the replication's own consumers. Clients require one; nothing joins these and nothing is committed."""


def flow_prefix(flow: FlowName) -> str:
    """Return the prefix of a flow's consumer groups and transactional ids: `mirrorless.us-east.eu-west.`."""
    return f"{OWN_GROUPS}{flow.slug}."


def mapping_group(flow: FlowName, topic: str) -> str:
    """Return the consumer group of a topic's event source mapping."""
    return f"{flow_prefix(flow)}{topic}"


def transactional_id(flow: FlowName, writer: str) -> str:
    """Return the transactional id of one writer of a flow, unique to its execution environment or task."""
    return f"{flow_prefix(flow)}{writer}"


# AWS

DEPLOYMENT: Final = "mirrorless"
"""What all names begin with, unless the deployment has a name of its own."""
NAMESPACE: Final = "Mirrorless"
"""The namespace of the metrics."""
FORWARD: Final = "forward"
"""The forwarder's file in `functions/`, and its part of a function's name."""
FORWARD_HANDLER: Final = f"{FORWARD}.handler"
"""The handler of every forwarder."""
PULL: Final = "pull"
"""The file in `functions/` of the function that reads scheduled topics, and its part of that function's name."""
STANDBY: Final = "standby"
"""The part of a function's name: `control` once more, in the target's region, for the time that the home is silent."""
TABLES: Final = ("offset_map", "lanes", "loss_ledger", "checkpoints", "control")
"""The DynamoDB tables of a flow, by what they hold: `mirrorless.flow.tables`."""


def flow_id(flow: FlowName) -> str:
    """Return a flow as AWS resource names have it: `us-east_eu-west`."""
    return f"{flow.source}_{flow.target}"


def flow_tags(flow: FlowName) -> dict[str, str]:
    """Return the tag of a flow's mappings and job runs. The value is the slug: a tag's value may not contain `>`."""
    return {"mirrorless:flow": flow.slug}


def shared_name(part: str) -> str:
    """Return the name of something that all flows share, as in the lab: `mirrorless-offset-map`."""
    return f"{DEPLOYMENT}-{part.replace('_', '-')}"


def pull_schedule(flow: FlowName, shard: int, *, deployment: str = DEPLOYMENT) -> str:
    """Return the name of a shard's schedule: `mirrorless-pull-0-us-east_eu-west`."""
    return resource_name(flow, f"{PULL}-{shard}", deployment=deployment)


def resource_name(flow: FlowName, part: str, *, deployment: str = DEPLOYMENT) -> str:
    """Return the name of a function, table or role of one flow: `mirrorless-offset-map-us-east_eu-west`."""
    return f"{deployment}-{part.replace('_', '-')}-{flow_id(flow)}"


def namespace(deployment: str) -> str:
    """Return the namespace of a deployment's metrics."""
    return NAMESPACE if deployment == DEPLOYMENT else f"{NAMESPACE}/{deployment}"


def reset_command(flow: FlowName, topic: str, partition: int | None, to: str, *, reason: str) -> str:
    """The command that closes a lane's chain. Args: partition: None for every stopped one of the topic."""
    lane = topic if partition is None else f"{topic} {partition}"
    return f"mirrorless lanes reset '{flow}' {lane} --to {to} --reason '{reason}' --execute"


def reset_lane(lane: Lane, to: str | int, *, until: int | None = None) -> str:
    """The same for one lane, between backticks; the reason is the operator's to change."""
    place = str(to) if until is None else f"{to} --until {until}"
    return f"`{reset_command(lane.flow, lane.topic, lane.partition, place, reason='see status')}`"
