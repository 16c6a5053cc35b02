"""Configurations of other replicators, with the traps of real ones: each has secrets, and keys that nobody reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

PASSWORD = "hunter2"  # noqa: S105 -- made up
JAAS = f'org.example.ScramLoginModule required username="mm2" password="{PASSWORD}";'

BOTH_WAYS = f"""
# both directions, by one file
clusters : north_1, South
north_1.bootstrap.servers = n-1:9096,\\
    n-2:9096
South.bootstrap.servers=s-1:9096
north_1.security.protocol = SASL_SSL
north_1.sasl.mechanism = SCRAM-SHA-512
north_1.sasl.jaas.config = {JAAS}
South.security.protocol = SASL_PLAINTEXT
South.sasl.mechanism = PLAIN
South.sasl.jaas.config = {JAAS}
South.producer.enable.idempotence = false
South.offset.storage.replication.factor = 3
north_1->South.enabled = true
north_1->South.topics = events-.*
South->north_1.enabled = true
South->north_1.topics = events-.*
South->nowhere.topics = x
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
replication.policy.separator =
target.cluster.alias =
"source.cluster.alias" = ""
tasks.max = 2
sync.group.offsets.enabled = True
emit.heartbeats.interval.seconds = 5
groups.blacklist = console-consumer-.*
config.storage.replication.factor = 3
exclude.internal.topics = true
my.password = {PASSWORD}
"""

SHARED = {
    "source.cluster.alias": "hq",
    "target.cluster.alias": "edge",
    "source.cluster.bootstrap.servers": "h-1:9098",
    "target.cluster.bootstrap.servers": "e-1:9098",
    "source.cluster.security.protocol": "SASL_SSL",
    "source.cluster.sasl.mechanism": "AWS_MSK_IAM",
    "source.cluster.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    "target.cluster.security.protocol": "SSL",
    "target.cluster.ssl.keystore.password": PASSWORD,
    "target.cluster.batch.size": "5",
    "replication.policy.class": "com.amazonaws.kafka.samples.CustomMM2ReplicationPolicy",
    "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
    "tasks.max": 3,
}


def connector(kind: str, **keys: Any) -> dict[str, Any]:
    """One of the three, as Connect's API takes it."""
    of_kind = {"connector.class": f"org.apache.kafka.connect.mirror.Mirror{kind}Connector", "name": f"mm2-{kind}"}
    return {"name": f"mm2-{kind}", "config": SHARED | of_kind | {key.replace("_", "."): keys[key] for key in keys}}


CONNECTORS = (
    connector("Source", topics="clicks", emit_checkpoints_enabled="true", producer_override_compression_type="gzip"),
    connector("Checkpoint", groups="shop", sync_group_offsets_enabled=True, refresh_topics_interval_seconds="5"),
    connector("Heartbeat", emit_heartbeats_interval_seconds="60"),
)

ENDS = {
    "a": {
        "alias": "oslo",
        "bootstrapServers": "o-1:9093",
        "tls": {"trustedCertificates": [{"secretName": "oslo-ca", "pattern": "*.crt"}]},
        "authentication": {
            "type": "scram-sha-512",
            "username": "mm2",
            "passwordSecret": {"secretName": "mm2-user", "password": PASSWORD},
        },
    },
    "b": {
        "alias": "Rome",
        "bootstrapServers": "r-1:9093",
        "tls": {"trustedCertificates": []},
        "authentication": {
            "type": "tls",
            "certificateAndKey": {"secretName": "rome-user", "certificate": "user.crt", "key": "user.key"},
        },
        "config": {"config.storage.replication.factor": -1, "producer.compression.type": "zstd"},
    },
}
COPIES = {
    "tasksMax": 2,
    "config": {"refresh.topics.interval.seconds": 600_000, "offset-syncs.topic.location": "target"},
}
POINTS = {"config": {"sync.group.offsets.enabled": True, "refresh.groups.interval.seconds": 5}}
PATTERNS = {"topicsPattern": "a.*,bills", "groupsPattern": "shop"}
MIRROR = {"sourceConnector": COPIES, "checkpointConnector": POINTS} | PATTERNS


def resource(version: str, spec: Mapping[str, Any]) -> str:
    whole = {"apiVersion": f"kafka.strimzi.io/{version}", "kind": "KafkaMirrorMaker2", "metadata": {"name": "x"}}
    # JSON is YAML, and lines tell the two apart.
    body = "\n".join(f"{key}: {json.dumps(value)}" for key, value in (whole | {"spec": spec}).items())
    return body.replace('"KafkaMirrorMaker2"', "KafkaMirrorMaker2")


V1 = resource("v1", {"target": ENDS["b"] | {"groupId": "mm2"}, "mirrors": [MIRROR | {"source": ENDS["a"]}]})
V1BETA2 = resource(
    "v1beta2",
    {
        "connectCluster": "Rome",
        "clusters": list(ENDS.values()),
        "mirrors": [MIRROR | {"sourceCluster": "oslo", "targetCluster": "Rome", "heartbeatConnector": {}}],
        "resources": {"limits": {"cpu": 1}},
    },
)
REPLICATOR = f"""
name = copy
connector.class = io.confluent.connect.replicator.ReplicatorSourceConnector
src.kafka.bootstrap.servers = s-1:9092
src.kafka.security.protocol = SASL_SSL
src.kafka.sasl.mechanism = PLAIN
src.kafka.sasl.jaas.config = {JAAS}
src.kafka.timestamps.topic.replication.factor = 1
dest.kafka.bootstrap.servers = d-1:9092
src.consumer.group.id = copy
src.value.converter = io.confluent.connect.avro.AvroConverter
value.converter.basic.auth.user.info = me:{PASSWORD}
topic.whitelist = bills
topic.rename.format = old-\\${{topic}}
confluent.license = {PASSWORD}
tasks.max = 1
"""
